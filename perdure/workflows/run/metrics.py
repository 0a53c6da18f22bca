"""Counts the entries of a session's journal as they come. Temporal's meter counts nothing during a replay."""

from __future__ import annotations

from collections.abc import Iterable

from temporalio import workflow

from perdure.journal.entries import (
    AnswerAccepted,
    CallExpired,
    Entry,
    EventLogged,
    InvocationSettled,
    InvocationStarted,
    Within,
)
from perdure.journal.events import Event
from perdure.journal.projection import Projection


def count(entry: Entry, projection: Projection) -> None:
    """Count an entry as it is appended: invocations by status, failures by step, calls that wait and are answered."""
    app = workflow.info().workflow_type
    match entry:
        case InvocationStarted():
            _add("perdure_invocations", "Invocations that came to a status.", app=app, status="started")
        case InvocationSettled():
            _add("perdure_invocations", "Invocations that came to a status.", app=app, status=entry.status)
            for failure in entry.failures:
                _add(
                    "perdure_failures",
                    "Branches of invocations that failed for good.",
                    app=app,
                    agent=failure.agent,
                    step=failure.step,
                )
        case EventLogged():
            _count_calls(app, "opened", _opened(entry.event))
        case AnswerAccepted():
            _count_calls(app, "answered", (response.name for response in entry.event.get_function_responses()))
        case CallExpired():
            call = projection.timed.get(entry.call_id)
            _count_calls(app, "expired", (call.pending.name if call is not None else "",))
        case Within():
            # A scope's invocation is no other one, and what waits there has one call.
            if isinstance(entry.entry, EventLogged | CallExpired | Within):
                count(entry.entry, projection.scopes[entry.call_id])
        case _:
            pass


def _opened(event: Event) -> Iterable[str | None]:
    opened = event.long_running_tool_ids or ()
    return (call.name for call in event.get_function_calls() if call.id in opened)


def _count_calls(app: str, what: str, tools: Iterable[str | None]) -> None:
    for tool in tools:
        _add(
            "perdure_waiting_calls",
            "Calls that began to wait for an answer, were answered, or expired.",
            app=app,
            tool=tool or "",
            change=what,
        )


def _add(name: str, description: str, **attributes: str) -> None:
    workflow.metric_meter().create_counter(name, description).add(1, attributes)
