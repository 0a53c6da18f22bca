"""Reads a session's event log, page by page, and follows it as it grows."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager

from temporalio.client import Client

from perdure.errors import InvocationFailed
from perdure.events import USER, Event
from perdure.feeds import Feeds
from perdure.following import Follower
from perdure.messages import EventsPage, PageInput, workflow_id
from perdure.sessions import Sessions

_KEPT_FOLLOWERS = 1000

_SILENCE = 60.0
"""Seconds; a follower of single events is not told of a silence."""


class LogReader:
    """The logs of one app's sessions."""

    def __init__(self, app_name: str, client: Client, sessions: Sessions) -> None:
        self._app_name = app_name
        self._client = client
        self._sessions = sessions
        self._followers: OrderedDict[str, Follower] = OrderedDict()
        self._feeds = Feeds(self._lend, self._take_back)
        self._lengths: dict[str, asyncio.Task[int]] = {}

    async def events(self, user_id: str, session_id: str, since: int, *, follow: bool) -> AsyncGenerator[Event, None]:
        """Yield the log's events from an offset on; with `follow`, go on for ever as it grows."""
        if follow:
            async with aclosing(self.batches(user_id, session_id, since, patience=_SILENCE)) as batches:
                async for batch in batches:
                    for event in batch:
                        yield event
            return
        while True:
            page = await self._sessions.events(user_id, session_id, PageInput(since=since), closed=True)
            for event in page.events:
                yield event
            since += len(page.events)
            if since >= page.total:
                return

    async def batches(
        self, user_id: str, session_id: str, since: int, *, patience: float
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        """Yield the log's events from an offset on, some at a time, for ever; none in a silence of some seconds."""

        async def page(since: int) -> EventsPage:
            return await self._sessions.events(user_id, session_id, PageInput(since=since))

        key = workflow_id(self._app_name, user_id, session_id)
        async with aclosing(self._feeds.follow(key, since, page=page, patience=patience)) as batches:
            async for batch in batches:
                yield batch

    async def length(self, user_id: str, session_id: str) -> int:
        """Return the number of events in the log; not asked for where somebody follows it anyway."""
        key = workflow_id(self._app_name, user_id, session_id)
        known = self._feeds.length(key)
        if known is not None:
            return known
        # Many who come at once ask once.
        asked = self._lengths.get(key)
        if asked is None:
            asked = self._lengths[key] = asyncio.create_task(self._length(user_id, session_id))
            asked.add_done_callback(lambda task: self._lengths.pop(key, None))
        return await asyncio.shield(asked)

    async def _length(self, user_id: str, session_id: str) -> int:
        # Of the log nothing is wanted: a page from beyond its end.
        return (await self._sessions.events(user_id, session_id, PageInput(since=sys.maxsize), closed=True)).total

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
        follower = self._lend(key)
        try:
            yield follower
        finally:
            self._take_back(key, follower)

    def _lend(self, key: str) -> Follower:
        return self._followers.pop(key, None) or Follower(self._client, key)

    def _take_back(self, key: str, follower: Follower) -> None:
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
