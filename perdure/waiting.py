"""The calls that wait for a person, over all sessions of all apps, page by page."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Annotated

from pydantic import BeforeValidator, Field
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import InvalidMessage, PerdureError, SessionNotFound
from perdure.messages import PENDING, PendingCall, PendingView, split_workflow_id, workflow_id
from perdure.payloads import adapt
from perdure.search import PENDING_TOOLS, STATUS, USER_ID
from perdure.sessions import ListedSession, Sessions, listed
from perdure.views import awaited_tool

_AT_ONCE = 20
_PAGE = 100
"""Sessions that are looked at together."""

_MARK_BYTES = 8

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
    """Which calls are wanted; what is `None` does not matter."""

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


@dataclass(frozen=True)
class WaitingPage:
    """Some of the calls that wait."""

    calls: tuple[Found, ...]
    """Oldest first within the page; the sessions come in the order of Temporal's listing, newest first."""
    next: str | None
    """Where the next page begins; `None` behind the last one."""
    unanswered: int
    """Sessions whose worker did not answer, so that their calls are missing."""


async def find_waiting(
    client: Client,
    wanted: Wanted,
    *,
    limit: int = 100,
    cursor: str | None = None,
    patience: timedelta = timedelta(seconds=10),
) -> WaitingPage:
    """Return a page of the calls that wait: those of as many sessions as it takes to have `limit` of them.

    A listing may be a moment behind. Where the namespace lacks Perdure's search attributes, each session is asked.

    Args:
        client: A client of the Temporal server.
        wanted: Which calls.
        limit: The page ends behind the session with which there are so many calls, or before.
        cursor: `next` of the page before.
        patience: The page ends, and sessions that are silent are left out, so that it takes not much longer.

    Raises:
        InvalidMessage: The cursor is none.
    """
    now = time.time()
    seeker = _Seeker(adapt(client), wanted, patience.total_seconds())
    token, found = _decoded(cursor, wanted), list[Found]()
    while True:
        sessions, token = await seeker.sessions(min(limit, _PAGE), token)
        found += [pair for pair in await seeker.ask(sessions) if wanted.takes(pair[1], now)]
        if not token or len(found) >= limit or seeker.is_late:
            break
    found.sort(key=lambda pair: pair[1].since)
    return WaitingPage(tuple(found), _encoded(token, wanted), seeker.unanswered)


async def all_waiting(client: Client, wanted: Wanted) -> AsyncGenerator[WaitingPage, None]:
    """Yield page after page."""
    cursor: str | None = None
    while True:
        page = await find_waiting(client, wanted, cursor=cursor)
        yield page
        cursor = page.next
        if cursor is None:
            return


class _Seeker:
    """Lists sessions that may wait, and asks them."""

    def __init__(self, client: Client, wanted: Wanted, patience: float) -> None:
        self._client = client
        self._wanted = wanted
        self._patience = patience / 2
        self._began = asyncio.get_running_loop().time()
        self._apps: dict[str, Sessions] = {}
        self._silent: set[str] = set()
        """Apps no worker of which answers."""
        self._published = True
        """The namespace has Perdure's search attributes."""
        self.unanswered = 0

    @property
    def is_late(self) -> bool:
        """Whether so much of the time is gone that nothing more is to be begun."""
        return asyncio.get_running_loop().time() > self._began + self._patience

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

    def _query(self) -> str:
        wanted = self._wanted
        terms = ["ExecutionStatus != 'ContinuedAsNew'"]
        if wanted.app is not None:
            terms.append(f"WorkflowType = '{wanted.app}'")
        if wanted.app is not None and wanted.user_id is not None:
            # A listing may be a moment behind, so one user's sessions are all asked.
            terms.append(f"WorkflowId STARTS_WITH '{workflow_id(wanted.app, wanted.user_id, '')}'")
        elif self._published:
            # A session that has not run yet, such as an imported one, has published nothing.
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
        app, user_id, _ = split_workflow_id(run.id)
        return (
            app == run.workflow_type
            and app.isidentifier()
            and self._wanted.app in (None, app)
            and self._wanted.user_id in (None, user_id)
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
        return newest.run_id == run.run_id and await self._of(run.workflow_type).is_left(listed(run))

    def _of(self, app: str) -> Sessions:
        return self._apps.setdefault(app, Sessions(app, self._client, reenter=False))

    async def ask(self, sessions: list[ListedSession]) -> list[Found]:
        """Return what sessions wait for; those that do not answer are counted."""
        for app in {session.app_name for session in sessions} - self._apps.keys():
            if not await self._of(app).is_served():
                self._silent.add(app)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(session: ListedSession) -> list[Found]:
            async with gate:
                if session.app_name in self._silent:
                    self.unanswered += 1
                    return []
                return await self._ask(session)

        return [pair for pairs in await asyncio.gather(*map(one, sessions)) for pair in pairs]

    async def _ask(self, session: ListedSession) -> list[Found]:
        query = self._of(session.app_name).query(
            session.user_id, session.id, PENDING, result_type=PendingView, closed=True
        )
        try:
            now = asyncio.get_running_loop().time()
            async with asyncio.timeout_at(min(now + self._patience, self._began + 2 * self._patience)):
                view: PendingView = await query
        except SessionNotFound:
            return []
        except TimeoutError:
            # The others of this app would be as silent.
            self._silent.add(session.app_name)
            self.unanswered += 1
            return []
        except (PerdureError, RPCError, WorkflowQueryFailedError):
            # It is stuck; the others are none the worse for it.
            self.unanswered += 1
            return []
        return [(session, call) for call in view.calls]


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
        raise InvalidMessage("the cursor is none: take the `next` of the page before, and ask for the same calls")
    return token


def _mark(token: bytes, wanted: Wanted) -> bytes:
    """Return what tells a cursor from a slip: it is none of another question."""
    return sha256(repr(wanted).encode() + token).digest()[:_MARK_BYTES]
