"""Builds pages of a session's log, the projected session, and its page in the Temporal UI. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.journal import events
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import take
from perdure.journal.events import QUESTIONS, REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_RECONCILE, asked_about
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.journal.packing import pack_part
from perdure.journal.projection import Call, Invocation, Projection
from perdure.messages.keys import SessionKey
from perdure.messages.session import (
    EFFECTS,
    EVENTS,
    JOURNAL,
    PAGE_BYTES,
    PENDING,
    PLAN,
    SESSION,
    EventsPage,
    InvocationView,
    JournalPage,
    PageInput,
    PendingView,
    PlanView,
    SessionView,
)
from perdure.plan.nodes import Plan
from perdure.rules.model_calls import is_at_limit
from perdure.views.forms.declared import example_answer
from perdure.views.ledger import effects_page

_SHORT_ARGS_BYTES = 10_000
_LONG_ARGS_BYTES = 100_000

_MESSAGE = 1000
"""Characters of a message that an open call is listed with."""

_TOLD = 500
"""The newest invocations: a session's view tells of these, and of earlier ones that are not finished."""
_UNFINISHED = ("queued", "running", "waiting", "failed", "stopped")

_SHOWN = 10
"""Invocations on the workflow's page in the Temporal UI."""


def events_page(projection: Projection, request: PageInput) -> EventsPage:
    """Return a page of the event log, and the invocation that was asked about."""
    invocation = projection.invocations.get(request.invocation_id or "")
    return EventsPage(
        events=tuple(take(projection.events, request.since, request.max_bytes)),
        total=len(projection.events),
        status=session_status(projection),
        invocation=invocation_view(projection, invocation) if invocation else None,
    )


def journal_page(projection: Projection, request: PageInput) -> JournalPage:
    """Return a page of the journal."""
    packed, _ = pack_part(projection.entries, request.since, request.max_bytes)
    return JournalPage(packed=packed, offset=request.since, total=len(projection.entries))


def session_view(projection: Projection, key: SessionKey) -> SessionView:
    """Return the projected session."""
    return SessionView(
        app_name=key.app,
        user_id=key.user,
        id=key.session,
        state=projection.state,
        status=session_status(projection),
        invocations=tuple(invocation_view(projection, invocation) for invocation in _told(projection)),
        invocation_count=len(projection.invocations),
        event_count=len(projection.events),
        last_update_time=projection.events[-1].timestamp if projection.events else 0.0,
    )


def look(projection: Projection, key: SessionKey, name: str, *args: Any) -> Any:
    """Answer a session's query of some name as its workflow does."""
    if name in (SESSION, PENDING):
        return session_view(projection, key) if name == SESSION else pending_view(projection)
    if name == PLAN:
        return PlanView(plan=projection.plans.get(args[0].digest))
    return {EVENTS: events_page, JOURNAL: journal_page, EFFECTS: effects_page}[name](projection, args[0])


def _told(projection: Projection) -> list[Invocation]:
    """Return the invocations that a session's view tells of: as many as the answer of a query takes."""
    invocations = list(projection.invocations.values())
    newest = {invocation.id for invocation in invocations[-_TOLD:]}
    return [invocation for invocation in invocations if invocation.id in newest or invocation.status in _UNFINISHED][
        -2 * _TOLD :
    ]


def invocation_view(projection: Projection, invocation: Invocation) -> InvocationView:
    """Return an invocation as readers see it."""
    return InvocationView(
        id=invocation.id,
        status=invocation.status,
        agent=invocation.agent or None,
        failures=invocation.failures,
        pending=_shortened(projection.open_calls(invocation.id), _SHORT_ARGS_BYTES),
        plan=invocation.plan,
        reason=invocation.reason,
        settled=invocation.settled,
        resumable=projection.is_resumable(invocation)
        and (invocation.status in ("failed", "stopped") or is_at_limit(invocation)),
    )


def session_status(projection: Projection) -> SessionStatus:
    """Return the session's status, by precedence: running, failed, waiting, stopped, idle.

    A failed or stopped invocation counts while it can be resumed, or if it is the newest.
    """
    newest = next(reversed(projection.invocations.values()), None)
    found = {
        invocation.status
        for invocation in projection.invocations.values()
        if invocation.status not in ("failed", "stopped") or invocation is newest or projection.is_resumable(invocation)
    }
    if projection.turns or found & {"running", "queued"}:
        return "running"
    if "failed" in found:
        return "failed"
    if "waiting" in found:
        return "waiting"
    return "stopped" if "stopped" in found else "idle"


def details(projection: Projection) -> str:
    """Return Markdown for the workflow's page in the Temporal UI: the invocations and what each awaits."""
    lines = [f"**{session_status(projection)}** · {len(projection.events)} events", ""]
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
        lines.append(f"- `{failure.agent}` failed in `{failure.step}`: {_one_line(failure.cause)}")
    if invocation.reason:
        lines.append(f"- {_one_line(invocation.reason)}")
    plan = projection.plan_of(invocation)
    lines.extend(_call_line(call, plan) for call in projection.open_calls(invocation.id))
    return lines


def _call_line(call: PendingCall, plan: Plan | None) -> str:
    answer = json.dumps({"id": call.id, "response": example_answer(call, plan)}, ensure_ascii=False)
    match call.name:
        case events.REQUEST_CONFIRMATION:
            what = f"approval of `{awaited_tool(call)}`"
        case events.REQUEST_CREDENTIAL:
            what = f"a credential for `{awaited_tool(call)}`"
        case events.REQUEST_RECONCILE:
            what = f"word on `{awaited_tool(call)}`, in doubt: {_one_line(str(call.args.get('reason', '')))},"
        case _:
            what = f"`{call.name}`"
    until = f" until {time_text(call.deadline)}" if call.deadline is not None else ""
    return f"- waits for {what} of `{call.agent}`{until}: signal `function_response` with `{answer}`"


def shortened(call: PendingCall, most: int) -> PendingCall:
    """Return an open call without its arguments if they take more than `most` bytes; the event has them all."""
    size = payload_size(call)
    return call if size <= most else call.model_copy(update={"args": {"(left out)": f"{size} bytes; see the event"}})


def pending_view(projection: Projection) -> PendingView:
    """Return the session's open calls, each with what its invocation began with."""
    calls = _shortened(projection.open_calls(), _LONG_ARGS_BYTES)
    return PendingView(calls=tuple(_with_origin(projection, call) for call in calls))


def _with_origin(projection: Projection, call: PendingCall) -> PendingCall:
    invocation = projection.invocations.get(call.invocation_id)
    if invocation is None:
        return call
    text = invocation.message.text or ""
    message = text if len(text) <= _MESSAGE else f"{text[:_MESSAGE]}…"
    return call.model_copy(update={"message": message, "plan": invocation.plan})


def _shortened(calls: Sequence[PendingCall], most: int) -> tuple[PendingCall, ...]:
    """Return open calls in a size that the answer of a query takes: the more there are, the shorter each."""
    most = min(most, PAGE_BYTES // max(len(calls), 1))
    return tuple(shortened(call, most) for call in calls)


QUESTION_WORDS = {
    REQUEST_CONFIRMATION: "approval of",
    REQUEST_CREDENTIAL: "credential for",
    REQUEST_RECONCILE: "word on what became of",
}
"""What a question asks for, before the name of the tool that it is about."""


def awaited_tool(call: PendingCall) -> str:
    """Return the tool that an open call is about: of a confirmation, the one to be confirmed."""
    return call.about or str(asked_about(call.args).get("name", call.name)) if call.name in QUESTIONS else call.name


LAST_TIME = 253_402_300_799.0
"""The end of the year 9999, in seconds since the epoch; no calendar goes on from there."""


def time_text(timestamp: float) -> str:
    """Return a time in ISO 8601, in UTC, to the second."""
    # A deadline in an imported plan may be later than any calendar.
    return datetime.fromtimestamp(min(timestamp, LAST_TIME), UTC).isoformat(timespec="seconds")


def expired_cause(call: Call) -> str:
    """Return the cause of an invocation's failure by a call whose deadline has passed."""
    deadline = time_text(call.expired or 0.0)
    return f"no answer came by the deadline of the call, {deadline}; a resume waits for it without a deadline"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:299]}…"
