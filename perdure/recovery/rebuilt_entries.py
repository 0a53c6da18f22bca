"""Makes entries of the journal from what history tells of steps."""

from __future__ import annotations

from perdure.journal.entries import CallbackRan, Entry, ModelCalled, StateChanged, ToolRan, ToolStarted
from perdure.journal.events import Event, notice_event
from perdure.journal.projection import Invocation, Projection
from perdure.journal.tool_output import RunTimes, ToolOutput
from perdure.messages.callbacks import AgentCallback, CallbackInput
from perdure.messages.session import ModelInput, ModelOutput, ToolInput
from perdure.rules.failures import MAX_CAUSE
from perdure.rules.ids import derived_id
from perdure.rules.tool_responses import requested_confirmation

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


def lost_start(call: ToolInput, cause: str, started: float, time: float, *, elsewhere: bool) -> ToolRan:
    """Return the entry of a tool that was refused its start; `elsewhere` says that another invocation made the call."""
    return ToolRan(
        call_id=call.function_call_id,
        key_salt=call.key_salt,
        invocation_id=call.invocation_id if elsewhere else None,
        outcome="lost",
        started=round(started, 3),
        ended=round(time, 3),
        cause=cause[:MAX_CAUSE],
    )


def lost_steps(call: ModelInput, entries: int, time: float) -> StateChanged:
    """Return the entry of an activity that took several steps as its run was closed: history does not tell of them.

    Args:
        call: What the activity began with.
        entries: Length of the journal, of which the event's id is made.
        time: When the run was closed.
    """
    message = (
        f"the workflow was closed while an activity took several steps of agent {call.agent!r}: what it did is not"
        " known, and its tools may have taken effect; a resume takes these steps again"
    )
    return StateChanged(event=notice_event(f"lost-{entries}", "STEPS_LOST", message, time))


def tool_ran(projection: Projection, invocation: Invocation, calling: Event, call_id: str, times: RunTimes) -> ToolRan:
    """Return the entry of a tool that returned."""
    return ToolRan(
        call_id=call_id,
        key_salt=projection.key_salt,
        invocation_id=invocation.id if calling.invocation_id != invocation.id else None,
        attempts=times.attempt,
        started=round(times.started, 3),
        ended=round(times.ended, 3),
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
    return ModelCalled(agent=call.agent, invocation_id=call.invocation_id, run=call.run, again=again)


def is_final(calling: Event, call_id: str, kept: ToolOutput | None, confirmed: bool) -> bool:
    """Return whether what is kept of a call is its result, and not the question after whose answer it ran again."""
    if kept is None or kept.awaits_callbacks or not confirmed:
        return kept is not None and not kept.awaits_callbacks
    return not any(call.id == call_id and requested_confirmation(call, kept) for call in calling.get_function_calls())


def steps_before(projection: Projection, call: ModelInput, output: ModelOutput) -> tuple[ModelInput, tuple[Entry, ...]]:
    """Return the call to which a model's answer came, and what no slice tells of the steps before."""
    if output.before is None:
        return call, ()
    entries = output.before.entries
    is_logged = projection.model_calls[call.agent] > call.call_index
    calls = sum(isinstance(entry, ModelCalled) for entry in entries)
    return call.model_copy(update={"call_index": call.call_index + calls}), () if is_logged else entries
