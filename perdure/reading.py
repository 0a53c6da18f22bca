"""Reads a session's event log, page by page, and follows it as it grows."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

from temporalio.client import Client, WorkflowQueryRejectedError

from perdure.errors import InvocationFailed
from perdure.events import USER, Event
from perdure.following import Follower
from perdure.messages import EventsPage, PageInput, workflow_id
from perdure.sessions import Sessions

_KEPT_FOLLOWERS = 1000

_CLOSED_PAUSE = 2.0
"""Seconds between two looks at a session whose workflow is closed."""


class LogReader:
    """The logs of one app's sessions."""

    def __init__(self, app_name: str, client: Client, sessions: Sessions) -> None:
        self._app_name = app_name
        self._client = client
        self._sessions = sessions
        self._followers: OrderedDict[str, Follower] = OrderedDict()

    async def events(self, user_id: str, session_id: str, since: int, *, follow: bool) -> AsyncGenerator[Event, None]:
        """Yield the log's events from an offset on; with `follow`, go on for ever as it grows."""
        with self._follower(user_id, session_id) as follower:
            while True:
                page = await self._sessions.events(user_id, session_id, PageInput(since=since), closed=not follow)
                for event in page.events:
                    yield event
                since += len(page.events)
                if since >= page.total:
                    if not follow:
                        return
                    await follower.news(found=bool(page.events))

    async def grown(self, user_id: str, session_id: str, length: int) -> int:
        """Wait until a session's journal has another length than `length`; returns it."""
        with self._follower(user_id, session_id) as follower:
            while True:
                try:
                    found = await self._sessions.journal_length(user_id, session_id, closed=False)
                except WorkflowQueryRejectedError:
                    found = await self._sessions.journal_length(user_id, session_id, closed=True)
                    if found == length:
                        # Only another run, which brings it back, lets it grow.
                        await asyncio.sleep(_CLOSED_PAUSE)
                        continue
                if found != length:
                    return found
                await follower.news(found=False)

    async def follow(
        self, user_id: str, session_id: str, invocation_id: str, since: int
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of an invocation's agents until it gives up the turn.

        Raises:
            InvocationFailed: It failed, or the session's workflow was closed meanwhile.
        """
        with self._follower(user_id, session_id) as follower:
            while True:
                request = PageInput(since=since, invocation_id=invocation_id)
                asked = time.monotonic()
                page = await self._sessions.events(user_id, session_id, request)
                took = time.monotonic() - asked
                for event in page.events:
                    if event.invocation_id == invocation_id and event.author != USER:
                        yield event
                since += len(page.events)
                if since >= page.total:
                    if _settled(page):
                        return
                    await follower.news(found=bool(page.events), took=took)

    @contextmanager
    def _follower(self, user_id: str, session_id: str) -> Generator[Follower]:
        """Lend a follower to one caller at a time; it is kept, since it knows where the history ends."""
        key = workflow_id(self._app_name, user_id, session_id)
        follower = self._followers.pop(key, None) or Follower(self._client, key)
        try:
            yield follower
        finally:
            self._followers[key] = follower
            if len(self._followers) > _KEPT_FOLLOWERS:
                self._followers.popitem(last=False)


def _settled(page: EventsPage) -> bool:
    """Return whether the invocation has given up the turn.

    Raises:
        InvocationFailed: By failing.
    """
    view = page.invocation
    if view is None or view.status in ("waiting", "finished", "stopped"):
        return True
    if view.status != "failed":
        return False
    first, *others = view.failures
    cause = first.cause + (f" (and {len(others)} more branches failed)" if others else "")
    raise InvocationFailed(view.id, agent=first.agent, step=first.step, cause=cause, resumable=view.resumable)
