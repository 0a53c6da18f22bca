"""Calls in doubt: an at-most-once tool was started, and nobody knows whether it took effect. Pure.

The agent asks with a long-running call of `perdure_reconcile`, in the manner of ADK's confirmations; the answer is a
`Verdict`. What the tool's own `reconcile` function says is a `Reconciled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.journal.entries import ToolOutput
from perdure.journal.events import REQUEST_RECONCILE, Event
from perdure.messages.session import NOT_REGISTERED
from perdure.plan.contents import types
from perdure.plan.nodes import ToolPlan

NOT_HAPPENED: Mapping[str, Any] = {
    "error": "This tool call was interrupted, and it is known that it did not take place. Call again if it is needed."
}
"""What the model is told of a call that did not take effect."""

CUT_OFF = "it was started, and the run was cut off before its result came"
"""Why a call is in doubt of which nothing more is known."""

UNDECIDED = "its reconcile function cannot tell"

INTERRUPTED = frozenset({"WorkerShutdown", "ActivityPause", "ActivityReset"})
"""Types under which Temporal's SDK reports an activity that was interrupted from outside of its code."""

ALREADY_STARTED, LOST_START = "AlreadyStarted", "LostStart"
"""Types of the errors of a call that was not started, since it, or another of its tool, was: before a reset."""

REFUSED = frozenset({ALREADY_STARTED, LOST_START})

NOT_CLAIMED = "NotClaimed"
"""Type of the error of a call that was not started, since the server takes no claim of its start."""

NOT_STARTED = frozenset({NOT_REGISTERED, NOT_CLAIMED})
"""Types of the errors of calls of which it is known that they were not started: neither the tool's, nor in doubt."""


def is_silent(error_type: str | None, *, timed_out: bool) -> bool:
    """Return whether a failed activity did not report its failure itself."""
    return timed_out or error_type in INTERRUPTED | REFUSED


def leaves_doubt(tool: ToolPlan, *, silent: bool, not_started: bool) -> bool:
    """Return whether an at-most-once call that failed is in doubt at once; otherwise its invocation fails first.

    Where the model is to be told of a failure, the call is in doubt before: it may have taken effect.
    """
    return not not_started and (silent or tool.on_failure == "tell_model")


@dataclass(frozen=True)
class Reconciled:
    """The verdict of a tool's `reconcile` function on a call that was cut off."""

    happened: bool
    """The call took effect."""
    result: Any = None
    """Then: what the tool would have returned, as JSON."""


@dataclass(frozen=True)
class Doubt:
    """A call that was started, and whose result is unknown."""

    call: types.FunctionCall
    key: str = ""
    """Its idempotency key."""
    started: float = 0.0
    """Seconds since the epoch at which it was started."""
    reason: str = ""
    """Why its result is unknown."""
    request_id: str | None = None
    """The open `perdure_reconcile` call about it, if there is one already."""


def doubt_request(doubts: Sequence[Doubt], ids: Iterable[str]) -> Event:
    """Return the event that asks about calls in doubt: one `perdure_reconcile` call for each."""
    requests = [
        types.FunctionCall(
            id=request_id,
            name=REQUEST_RECONCILE,
            args={
                "originalFunctionCall": {"id": doubt.call.id, "args": doubt.call.args or {}, "name": doubt.call.name},
                "idempotencyKey": doubt.key,
                "startedAt": doubt.started,
                "reason": doubt.reason,
            },
        )
        for doubt, request_id in zip(doubts, ids, strict=False)
    ]
    parts = [types.Part(function_call=request) for request in requests]
    return Event(
        content=types.Content(role="user", parts=parts),
        long_running_tool_ids=frozenset(request.id or "" for request in requests),
    )


def reconciled_output(output: ToolOutput) -> ToolOutput | None:
    """Return a call's output as its tool's `reconcile` function tells it; `None` if that cannot tell."""
    match output.result:
        case {"happened": True, "result": result}:
            return ToolOutput(result=result, actions=output.actions)
        case {"happened": False}:
            return ToolOutput(result=dict(NOT_HAPPENED))
        case _:
            return None
