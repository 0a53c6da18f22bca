"""Makes entries of the journal from what history tells of steps."""

from __future__ import annotations

from perdure.journal.entries import CallbackRan, Entry, ModelCalled, ToolRan, ToolStarted
from perdure.messages.callbacks import AgentCallback, CallbackInput
from perdure.messages.session import ModelInput, ToolInput
from perdure.rules.model_answers import derived_id

SAME_TIME = 0.002
"""Seconds by which the journal's time of a workflow task may differ from history's."""


def callback_ran(call: CallbackInput, which: AgentCallback, seed: str, at: int, events: int) -> CallbackRan:
    """Return the entry of callbacks that came back; `at` tells the rounds of a loop apart."""
    place = (call.agent, call.branch, which, call.run)
    return CallbackRan(
        invocation_id=call.invocation_id,
        agent=call.agent,
        branch=call.branch,
        which=which,
        ids=tuple(derived_id(seed, "callback", at, *place, index) for index in range(events)),
        run=call.run,
    )


def tool_start(call: ToolInput, time: float) -> ToolStarted:
    """Return the entry of an at-most-once tool that was started."""
    return ToolStarted(
        invocation_id=call.invocation_id,
        call_id=call.function_call_id,
        agent=call.agent,
        tool=call.tool,
        idempotency_key=call.idempotency_key,
        timestamp=time,
    )


def not_started(call: ToolInput, time: float) -> ToolRan:
    """Return the entry of an at-most-once tool that was noted as started, and was not."""
    return ToolRan(
        call_id=call.function_call_id, key_salt=call.key_salt, outcome="not_started", started=round(time, 3), ended=time
    )


def is_same_start(known: Entry, entry: ToolStarted) -> bool:
    """Return whether two entries tell of one start of a tool."""
    return (
        isinstance(known, ToolStarted)
        and known.call_id == entry.call_id
        and abs(known.timestamp - entry.timestamp) < SAME_TIME
    )


def model_called(call: ModelInput, again: str | None = None) -> ModelCalled:
    """Return the entry of a model call that came back; `again` says why it is made once more."""
    return ModelCalled(
        agent=call.agent, invocation_id=call.invocation_id, branch=call.branch, run=call.run, again=again
    )
