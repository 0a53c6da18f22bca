"""Reads what the pages show: the calls that wait over all sessions, and one session with its log."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.api.auth.identity import OPERATOR, Identity
from perdure.api.base.backend import Backend
from perdure.api.pages.formats import MOST_TEXT, Entry, timeline
from perdure.api.pages.rendering import temporal_link
from perdure.api.pages.tree import Agent, agent_tree, at_work
from perdure.api.pages.uploads import most_bytes
from perdure.errors import PerdureError
from perdure.journal.entries import Failure
from perdure.journal.events import USER, Event
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionKey
from perdure.plan.nodes import Plan
from perdure.recovery.raised_steps import with_raised_steps
from perdure.sessions.listing import ListedSession
from perdure.sessions.pending import Found, Wanted, ask_waiting
from perdure.sessions.pollers import is_served
from perdure.views.explanation import InvocationExplanation, RaisedStep, SessionExplanation
from perdure.views.forms.answers import AnswerForm, answer_form

MOST_CALLS = 100
MOST_SESSIONS = 50
MOST_EVENTS = 200
"""What one page shows of each."""

MOST_ASKED = 200
"""Sessions that are asked what waits in them."""

_PATIENCE = timedelta(seconds=4)
"""How long the sessions are read: a long one may not hold up the others."""

_QUERIES_AT_ONCE = 20

_FAILURES = (PerdureError, RPCError, WorkflowQueryFailedError)
"""How a session fails to answer, such as one that is stuck; the others are shown all the same."""


@dataclass(frozen=True)
class Waiting:
    """A call that waits, and its session."""

    session: ListedSession
    form: AnswerForm


@dataclass(frozen=True)
class Inbox:
    """The content of the inbox."""

    waiting: list[Waiting]
    waiting_count: int
    sessions: list[ListedSession]
    session_count: int
    apps: list[str]
    users: list[str]
    tools: list[str]
    unread: dict[str, int]
    """By app, how many sessions could not be read, or not in time."""
    unserved: list[str]
    """Apps with sessions that are shown, and no worker."""
    unasked: int
    """Sessions that wait, too, and are too many to be asked."""
    everybody: bool
    """Sessions of all users are shown."""


@dataclass(frozen=True)
class OwnSessions:
    """Somebody's own sessions; where nobody has to say who they are, everybody's."""

    newest: list[ListedSession]
    count: int


@dataclass(frozen=True)
class Shown:
    """An invocation on a session's page."""

    told: InvocationExplanation
    agents: Agent | None
    raised: tuple[RaisedStep, ...]
    """Where its steps raised; for operators."""

    def trace_of(self, failure: Failure) -> str:
        """Return where a failure was raised; empty where that is not known, or not for who reads it."""
        return next((step.trace for step in self.raised if step.is_of(self.told.id, failure)), "")

    @property
    def tried_again(self) -> list[RaisedStep]:
        """What is being tried again, after it raised."""
        return [step for step in self.raised if step.next_attempt is not None and step.invocation_id == self.told.id]

    @property
    def at_work(self) -> tuple[str, ...]:
        """Names of the agents that are at work, as far as they are known."""
        return at_work(self.agents) if self.agents is not None and self.told.status == "running" else ()


@dataclass(frozen=True)
class SessionPage:
    """The content of a session's page."""

    session: SessionExplanation
    forms: list[AnswerForm]
    invocations: list[Shown]
    """Newest first."""
    entries: list[Entry]
    arrived: list[Entry]
    """What was sent, and is not in the log yet."""
    start: int
    """Offset of the first event that is shown."""
    end: int
    may_run: bool
    temporal: str | None
    took: float
    """Seconds that it took to read; the longer, the less often the page renews itself."""
    keeps_artifacts: bool
    """The server knows where artifacts are."""
    most_bytes: int
    """What the files of a message may have together."""

    def failed_after(self, entry: Entry) -> list[Shown]:
        """Return the invocation whose last event this is, if it has failed."""
        if self.end < self.session.event_count or entry.invocation_id not in self._failed:
            return []
        last = next(one for one in reversed(self.entries) if one.invocation_id == entry.invocation_id)
        return [self._failed[entry.invocation_id]] if last is entry else []

    @cached_property
    def _failed(self) -> dict[str, Shown]:
        return {one.told.id: one for one in self.invocations if one.told.failures}


async def read_inbox(backend: Backend, wanted: Wanted) -> Inbox:
    """Read the calls that wait in all sessions that somebody may see, and those sessions."""
    user = backend.access.whose(wanted.user_id)
    apps = await backend.apps()
    every = await _list(backend, apps if wanted.app is None else [wanted.app], user)
    sessions = [session for session in every if wanted.tool is None or wanted.tool in (session.pending_tools or ())]
    # The oldest are asked first.
    waiting = [session for session in reversed(every) if wanted.may_wait_in(session)]
    asked = waiting[:MOST_ASKED]
    found = await ask_waiting(backend.client, wanted, asked, patience=_PATIENCE, silence=backend.silence)
    shown = sorted({session.app_name for session in [*asked, *sessions[:MOST_SESSIONS]]})
    served = await asyncio.gather(*(is_served(backend.client, app) for app in shown))
    return Inbox(
        waiting=await _forms(backend, found.calls[:MOST_CALLS]),
        waiting_count=len(found.calls),
        sessions=sessions[:MOST_SESSIONS],
        session_count=len(sessions),
        apps=apps,
        users=sorted({session.user_id for session in every})[:MOST_SESSIONS],
        tools=sorted({tool for session in every for tool in session.pending_tools or ()}),
        unread=dict(sorted(Counter(session.app_name for session in found.unanswered).items())),
        unserved=[app for app, has_worker in zip(shown, served, strict=True) if not has_worker],
        unasked=len(waiting) - len(asked),
        everybody=backend.access.whose(None) is None,
    )


async def read_own_sessions(backend: Backend, identity: Identity) -> OwnSessions:
    """List the sessions of whoever asks, newest first."""
    found = await _list(backend, await backend.apps(), identity.subject)
    return OwnSessions(found[:MOST_SESSIONS], len(found))


async def _list(backend: Backend, apps: Sequence[str], user: str | None) -> list[ListedSession]:
    listed = await asyncio.gather(*(backend.runner(app, user).list_sessions(user_id=user) for app in apps))
    return sorted((session for found in listed for session in found), key=lambda session: -session.started)


async def _forms(backend: Backend, calls: Sequence[Found]) -> list[Waiting]:
    gate = asyncio.Semaphore(_QUERIES_AT_ONCE)

    async def form(session: ListedSession, call: PendingCall) -> Waiting:
        async with gate:
            plan = await _plan_of_call(backend, session, call)
            return Waiting(session, answer_form(backend.told(session.app_name, call), plan))

    return list(await asyncio.gather(*(form(session, call) for session, call in calls)))


async def _plan_of_call(backend: Backend, session: ListedSession, call: PendingCall) -> Plan | None:
    """Return the plan of a call's invocation; without it, the answer is asked for as text."""
    try:
        return await backend.plan(session.key, call.invocation_id, digest=call.plan)
    except _FAILURES:
        return None


async def read_call(
    backend: Backend, key: SessionKey, call_id: str, given: Mapping[str, str] | None = None
) -> AnswerForm | None:
    """Return the form of a call, as it was filled in; `None` if the call is not open.

    Raises:
        SessionNotFound: There is no such session.
    """
    waiting = await backend.runner_of(key).pending(**key.arguments)
    for session, call in waiting:
        if call.id == call_id:
            plan = await _plan_of_call(backend, session, call)
            return answer_form(backend.told(key.app, call), plan, given)
    return None


async def read_past_call(backend: Backend, key: SessionKey, call_id: str) -> list[Entry]:
    """Return what a session's log has of a call that is not open: the call, and its responses and answers.

    Raises:
        SessionNotFound: There is no such session.
    """
    runner, found = backend.runner_of(key), list[Event]()
    async with aclosing(runner.events(**key.arguments)) as events:
        async for event in events:
            said = (*event.get_function_calls(), *event.get_function_responses())
            if any(one.id == call_id for one in said):
                found.append(event)
    return timeline(found)


async def read_session(
    backend: Backend,
    identity: Identity,
    key: SessionKey,
    *,
    before: int | None = None,
    filled_in: Mapping[str, AnswerForm] | None = None,
    most: int = MOST_TEXT,
) -> SessionPage:
    """Return a session as its page shows it.

    Args:
        backend: Where it is read from.
        identity: Who reads it.
        key: Which session.
        before: Show the events before this offset. Default: the newest.
        filled_in: By call id, forms that were filled in wrongly.
        most: Characters of a text that are shown.

    Raises:
        SessionNotFound: There is none.
    """
    began = time.monotonic()
    runner = backend.runner_of(key)
    told = await runner.explain(**key.arguments)
    if OPERATOR in identity.roles:
        told = await with_raised_steps(backend.client, told)
    end = told.event_count if before is None else max(0, min(before, told.event_count))
    start = max(0, end - MOST_EVENTS)
    events: list[Event] = []
    async with aclosing(runner.events(**key.arguments, since=start)) as found:
        while start + len(events) < end and (event := await anext(found, None)) is not None:
            events.append(event)
    if end == told.event_count:
        events += told.kept
    shown, forms = await _invocations(backend, told, events)
    return SessionPage(
        session=told,
        forms=[(filled_in or {}).get(form.call.id, form) for form in forms],
        invocations=shown,
        entries=timeline(events, most, start),
        arrived=timeline((event for one in told.invocations for event in one.arrived), most),
        start=start,
        end=end,
        may_run=identity.may_run(key.user),
        temporal=temporal_link(backend.config.temporal_ui, backend.namespace, key),
        took=time.monotonic() - began,
        keeps_artifacts=backend.config.artifacts is not None,
        most_bytes=most_bytes(backend.config),
    )


async def _invocations(
    backend: Backend, told: SessionExplanation, events: list[Event]
) -> tuple[list[Shown], list[AnswerForm]]:
    shown: list[Shown] = []
    forms: list[AnswerForm] = []
    for invocation in told.invocations:
        plan = await backend.plan(told.key, invocation.id, digest=invocation.plan)
        authors = {event.author for event in events if event.invocation_id == invocation.id and event.author != USER}
        tree = agent_tree(plan, invocation, authors) if plan is not None else None
        shown.append(Shown(invocation, tree, told.raised))
        forms.extend(answer_form(awaited.call, plan) for awaited in invocation.awaits)
    return shown[::-1], forms
