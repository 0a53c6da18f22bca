"""Finds the calls that wait for a person, over all sessions of all apps, page by page.

A listing has what waits in each session, so that none is asked; what does not fit there is read from its history.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Annotated

from pydantic import BeforeValidator, Field
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import InvalidMessage, PerdureError, SessionNotFound
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import PENDING_TOOLS, STATUS, USER_ID
from perdure.messages.session import PENDING, PendingView
from perdure.sessions.journal_copies import journal_copies
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.listing import ListedSession, listed
from perdure.sessions.requests import WorkflowRequests
from perdure.temporal.payloads import adapt
from perdure.views.pages import awaited_tool

_AT_ONCE = 20
"""Sessions of one app that are asked at the same time."""

_PAGE = 100
"""Sessions that are looked at together."""

_SILENT_FOR = 30.0
"""Seconds for which a session that did not answer is not asked again by those who remember it."""

_MARK_BYTES = 8

_NO_CURSOR = "the cursor is none: take the `next` of the page before, and ask for the same calls"

_NO_TOKEN = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN})
"""How Temporal fails on a token that it did not make; which one depends on its database."""

_PLAIN = re.compile(r"[A-Za-z0-9 ._@:+-]+")
"""Texts that stand in a query as they are; sessions with others are sorted out here."""


def _seconds(value: object) -> object:
    """Return a text that is a number as one; others are ISO 8601 durations."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Duration = Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))]
"""A duration as people write it: seconds, or ISO 8601 (`PT1H`, `P2D`)."""

Found = tuple[ListedSession, PendingCall]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A filter of waiting calls; what is `None` does not matter."""

    app: str | None = None
    user_id: str | None = None
    tool: str | None = None
    """The tool whose call waits; of an approval or a question, the one that it is about."""
    older_than: timedelta | None = None
    """For how long they have waited at least."""

    def takes(self, call: PendingCall, now: float) -> bool:
        """Return whether a call is wanted."""
        if self.tool is not None and self.tool not in (call.name, awaited_tool(call)):
            return False
        return self.older_than is None or call.since <= now - self.older_than.total_seconds()

    def may_wait_in(self, session: ListedSession) -> bool:
        """Return whether such a call may wait in a session of the app and user, as far as its listing tells."""
        tools = session.pending_tools
        return tools is None or (bool(tools) if self.tool is None else self.tool in tools)


@dataclass(frozen=True)
class WaitingPage:
    """A page of the calls that wait."""

    calls: tuple[Found, ...]
    """Oldest first within the page; the sessions come in the order of Temporal's listing, newest first."""
    next: str | None = None
    """Where the next page begins; `None` behind the last one."""
    unanswered: tuple[ListedSession, ...] = ()
    """Sessions whose history could not be read, or not in time, so that their calls are missing."""


class Silence:
    """Remembers for half a minute who did not answer: whoever looks again and again waits for them once."""

    def __init__(self) -> None:
        """Know of no silent session."""
        self._until: dict[str, float] = {}

    def note(self, session: ListedSession) -> None:
        """Note that a session did not answer."""
        now = time.monotonic()
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until[session.workflow_id] = now + _SILENT_FOR

    def __contains__(self, session: ListedSession) -> bool:
        """Return whether a session did not answer of late."""
        return self._until.get(session.workflow_id, 0.0) > time.monotonic()


async def find_waiting(
    client: Client,
    wanted: Wanted,
    *,
    limit: int = 100,
    cursor: str | None = None,
    patience: timedelta = timedelta(seconds=10),
) -> WaitingPage:
    """Return a page of the calls that wait: those of as many sessions as it takes to have `limit` of them.

    A listing may be a moment behind. Where the namespace lacks Perdure's search attributes, each session is read.

    Args:
        client: A client of the Temporal server.
        wanted: Which calls.
        limit: The page ends behind the session with which there are so many calls, or before.
        cursor: `next` of the page before.
        patience: The page ends, and sessions that are silent are left out, so that it takes not much longer.

    Raises:
        InvalidMessage: The cursor is none.
    """
    client, began, seconds = adapt(client), time.monotonic(), patience.total_seconds()
    lister = _Lister(client, wanted)
    asker = _Asker(client, wanted, each=seconds / 2, until=began + seconds, silence=Silence())
    token = _decoded(cursor, wanted)
    while True:
        try:
            sessions, token = await lister.sessions(min(limit, _PAGE), token)
        except RPCError as error:
            if cursor is not None and error.status in _NO_TOKEN:
                raise InvalidMessage(_NO_CURSOR) from error
            raise
        await asker.ask(sessions)
        # So late, nothing more is begun.
        if not token or len(asker.found) >= limit or time.monotonic() > began + seconds / 2:
            return asker.page(_encoded(token, wanted))


async def ask_waiting(
    client: Client, wanted: Wanted, sessions: Iterable[ListedSession], *, patience: timedelta, silence: Silence
) -> WaitingPage:
    """Return the calls that wait in sessions that were listed already.

    Args:
        client: A client of the Temporal server.
        wanted: Which of their calls.
        sessions: The sessions, of any apps.
        patience: Those that are silent for so long are left out.
        silence: Who did not answer of late and is not asked again; who does not answer now is added.
    """
    seconds = patience.total_seconds()
    asker = _Asker(adapt(client), wanted, each=seconds, until=time.monotonic() + seconds, silence=silence)
    await asker.ask(sessions)
    return asker.page()


async def all_waiting(client: Client, wanted: Wanted) -> AsyncGenerator[WaitingPage, None]:
    """Yield page after page."""
    cursor: str | None = None
    while True:
        page = await find_waiting(client, wanted, cursor=cursor)
        yield page
        cursor = page.next
        if cursor is None:
            return


class _Lister:
    """Lists sessions that may wait."""

    def __init__(self, client: Client, wanted: Wanted) -> None:
        self._client = client
        self._wanted = wanted
        self._published = True
        """The namespace has Perdure's search attributes."""

    async def sessions(self, number: int, token: bytes) -> tuple[list[ListedSession], bytes]:
        """Return some sessions that may wait, and where to go on."""
        try:
            page, token = await self._list(number, token)
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT or not self._published:
                raise
            self._published = False
            page, token = await self._list(number, token)
        sessions = [listed(run) for run in page if self._fits(run) and await self._is_newest(run)]
        return sessions, token

    async def _list(self, number: int, token: bytes) -> tuple[list[WorkflowExecution], bytes]:
        runs = self._client.list_workflows(self._query(), page_size=number, next_page_token=token or None)
        await runs.fetch_next_page()
        return list(runs.current_page or ()), runs.next_page_token or b""

    def counted(self) -> str:
        """Return the query of those that are known to wait."""
        # A closed run may have been brought back, and is that session's.
        return " AND ".join([*self._terms(), "ExecutionStatus = 'Running'", self._published_term()])

    def _terms(self) -> list[str]:
        wanted = self._wanted
        terms = ["ExecutionStatus != 'ContinuedAsNew'"]
        if wanted.app is not None:
            terms.append(f"WorkflowType = '{wanted.app}'")
        if wanted.app is not None and wanted.user_id is not None:
            terms.append(f"WorkflowId STARTS_WITH '{SessionKey(wanted.app, wanted.user_id, '').workflow_id}'")
        return terms

    def _query(self) -> str:
        wanted, terms = self._wanted, self._terms()
        # A listing may be a moment behind, so one user's sessions are all asked.
        if (wanted.app is None or wanted.user_id is None) and self._published:
            # A session that has not run yet may have published nothing.
            terms.append(f"(({self._published_term()}) OR ({STATUS.name} IS NULL AND ExecutionStatus = 'Running'))")
        return " AND ".join(terms)

    def _published_term(self) -> str:
        wanted = self._wanted
        terms = [f"{PENDING_TOOLS.name} IS NOT NULL"]
        if wanted.tool is not None and _PLAIN.fullmatch(wanted.tool):
            terms = [f"{PENDING_TOOLS.name} = '{wanted.tool}'"]
        if wanted.user_id is not None and _PLAIN.fullmatch(wanted.user_id):
            terms.append(f"{USER_ID.name} = '{wanted.user_id}'")
        return " AND ".join(terms)

    def _fits(self, run: WorkflowExecution) -> bool:
        """Return whether a workflow is a session that is wanted; there may be others in the namespace."""
        if run.id.count("/") != 2:
            return False
        key = SessionKey.parse(run.id)
        return (
            key.app == run.workflow_type
            and key.app.isidentifier()
            and self._wanted.app in (None, key.app)
            and self._wanted.user_id in (None, key.user)
        )

    async def _is_newest(self, run: WorkflowExecution) -> bool:
        """Return whether a run is its session's newest: a closed one may have been brought back, or deleted."""
        if run.status == WorkflowExecutionStatus.RUNNING:
            return True
        try:
            newest = await self._client.get_workflow_handle(run.id).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            raise
        lifecycle = Lifecycle(self._client)
        return newest.run_id == run.run_id and await lifecycle.exists(SessionKey.parse(run.id))


class _Asker:
    """Reads what sessions wait for, those of each app beside the others', and gathers it."""

    def __init__(self, client: Client, wanted: Wanted, *, each: float, until: float, silence: Silence) -> None:
        """Make one that waits so many seconds for each session, and for none longer than until that monotonic time."""
        self._client = client
        self._wanted = wanted
        self._each = each
        self._until = until
        self._silence = silence
        self._now = time.time()
        self._apps: dict[str, WorkflowRequests] = {}
        self.found: list[Found] = []
        self._unanswered: list[ListedSession] = []

    def page(self, token: str | None = None) -> WaitingPage:
        """Return all that was gathered."""
        found = tuple(sorted(self.found, key=lambda pair: pair[1].since))
        return WaitingPage(found, token, tuple(self._unanswered))

    async def ask(self, sessions: Iterable[ListedSession]) -> None:
        """Gather what sessions wait for, and those that do not answer."""
        by_app = defaultdict[str, list[ListedSession]](list)
        for session in sessions:
            if session in self._silence:
                self._unanswered.append(session)
            else:
                by_app[session.app_name].append(session)
        await asyncio.gather(*(self._ask_app(app, of_app) for app, of_app in by_app.items()))

    async def _ask_app(self, app: str, sessions: list[ListedSession]) -> None:
        if app not in self._apps:
            self._apps[app] = WorkflowRequests(app, self._client, Lifecycle(self._client))
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(session: ListedSession) -> None:
            if (calls := await self._listed(session)) is not None:
                self._find(session, calls)
                return
            async with gate:
                begun_late = self._until - time.monotonic() < self._each / 2
                calls = await self._ask(session)
            if calls is not None:
                self._find(session, calls)
                return
            self._unanswered.append(session)
            if not begun_late:
                # Those for which there was no time, the next look reads.
                self._silence.note(session)

        await asyncio.gather(*map(one, sessions))

    def _find(self, session: ListedSession, calls: Iterable[PendingCall]) -> None:
        self.found += [(session, call) for call in calls if self._wanted.takes(call, self._now)]

    async def _listed(self, session: ListedSession) -> tuple[PendingCall, ...] | None:
        """Return what the listing has, which may be a moment behind: one user's sessions are all read."""
        one_user = self._wanted.app is not None and self._wanted.user_id is not None
        if one_user or journal_copies(self._client).may_be_listed_late(session.workflow_id):
            return None
        try:
            return await session.listed_calls(self._client)
        except Exception:
            # Encrypted without the keys, or of another version: whoever reads its history says which.
            return None

    async def _ask(self, session: ListedSession) -> tuple[PendingCall, ...] | None:
        try:
            async with asyncio.timeout(min(self._each, self._until - time.monotonic())):
                view: PendingView = await self._apps[session.app_name].look(session.key, PENDING)
        except SessionNotFound:
            return ()
        except (PerdureError, RPCError, TimeoutError):
            # Its history cannot be read, or not in time; the others are none the worse for it.
            return None
        return view.calls


async def count_waiting(client: Client, wanted: Wanted) -> int | None:
    """Return in how many open sessions such calls wait, whatever their age, by the listing, which may be a moment late.

    `None` if no query tells: the namespace lacks Perdure's search attributes, a name is none that one can hold, or the
    server does not answer it.
    """
    names = [wanted.tool, wanted.user_id if wanted.app is None else None]
    if any(name is not None and not _PLAIN.fullmatch(name) for name in names):
        return None
    try:
        return (await adapt(client).count_workflows(_Lister(client, wanted).counted())).count
    except RPCError:
        return None


def _encoded(token: bytes, wanted: Wanted) -> str | None:
    return base64.urlsafe_b64encode(_mark(token, wanted) + token).decode() if token else None


def _decoded(cursor: str | None, wanted: Wanted) -> bytes:
    """Return Temporal's own token; one that it does not know it would not refuse, but fail on."""
    if cursor is None:
        return b""
    try:
        data = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    token = data[_MARK_BYTES:]
    if not token or _mark(token, wanted) != data[:_MARK_BYTES]:
        raise InvalidMessage(_NO_CURSOR)
    return token


def _mark(token: bytes, wanted: Wanted) -> bytes:
    """Return what tells a cursor from a slip: it is none of another question."""
    return sha256(repr(wanted).encode() + token).digest()[:_MARK_BYTES]
