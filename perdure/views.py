"""What a session shows of itself: pages of its log, the projected session, and its page in the Temporal UI. Pure."""

from __future__ import annotations

import json

from perdure.journal import take
from perdure.messages import EventsPage, JournalPage, PageInput, PendingCall, SessionView
from perdure.projection import Invocation, Projection

_SHOWN = 10
"""Invocations on the workflow's page in the Temporal UI."""


def events_page(projection: Projection, request: PageInput) -> EventsPage:
    """Return a page of the event log, and the invocation that was asked about."""
    invocation = projection.invocations.get(request.invocation_id or "")
    return EventsPage(
        events=tuple(take(projection.events, request.since, request.max_bytes)),
        total=len(projection.events),
        status=projection.session_status(),
        invocation=projection.invocation_view(invocation) if invocation else None,
    )


def journal_page(projection: Projection, request: PageInput) -> JournalPage:
    """Return a page of the journal."""
    entries = tuple(take(projection.entries, request.since, request.max_bytes))
    return JournalPage(entries=entries, total=len(projection.entries))


def session_view(projection: Projection, app: str, user_id: str, session_id: str) -> SessionView:
    """Return the projected session."""
    return SessionView(
        app_name=app,
        user_id=user_id,
        id=session_id,
        state=projection.state,
        status=projection.session_status(),
        invocations=tuple(projection.invocation_view(i) for i in projection.invocations.values()),
        event_count=len(projection.events),
        last_update_time=projection.events[-1].timestamp if projection.events else 0.0,
    )


def details(projection: Projection) -> str:
    """Return Markdown for the workflow's page in the Temporal UI: the invocations and what each awaits."""
    lines = [f"**{projection.session_status()}** · {len(projection.events)} events", ""]
    invocations = list(projection.invocations.values())[-_SHOWN:]
    for invocation in reversed(invocations):
        lines.extend(_invocation_lines(projection, invocation))
    hidden = len(projection.invocations) - len(invocations)
    if hidden > 0:
        lines.append(f"… and {hidden} earlier invocations")
    return "\n".join(lines)


def _invocation_lines(projection: Projection, invocation: Invocation) -> list[str]:
    lines = [f"- `{invocation.id}` **{invocation.status}** ({invocation.agent or 'not started'})"]
    for failure in invocation.failures:
        lines.append(f"  - `{failure.agent}` failed in `{failure.step}`: {_one_line(failure.cause)}")
    if invocation.reason:
        lines.append(f"  - {_one_line(invocation.reason)}")
    lines.extend(_call_line(call) for call in projection.open_calls(invocation.id))
    return lines


def _call_line(call: PendingCall) -> str:
    answer = json.dumps({"id": call.id, "response": {}})
    return f"  - waits for `{call.name}` of `{call.agent}`: signal `function_response` with `{answer}`"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:299]}…"
