"""Reads a session's event log, page by page, and follows it as it grows."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager

from temporalio.client import Client

from perdure.errors import InvocationFailed
from perdure.events import USER, Event
from perdure.following import Follower
from perdure.messages import EventsPage, PageInput, workflow_id
from perdure.sessions import Sessions
from perdure.streams.hub import Subscription, TokenHub
from perdure.streams.partials import Partials

_KEPT_FOLLOWERS = 1000
_EXPECTED_SECONDS = 30.0


class LogReader:
    """The logs of one app's sessions, and what their models are writing, if there is a hub to tell."""

    def __init__(self, app_name: str, client: Client, sessions: Sessions, streams: TokenHub | None = None) -> None:
        self._app_name = app_name
        self._client = client
        self._sessions = sessions
        self._streams = streams
        self._expected: dict[str, Subscription] = {}
        self._followers: OrderedDict[str, Follower] = OrderedDict()

    def expect(self, user_id: str, session_id: str) -> None:
        """Let workers stream what a session's models write, until a follower is there; for half a minute."""
        if self._streams is not None:
            session = workflow_id(self._app_name, user_id, session_id)
            expected = self._expected.get(session)
            if expected is None:
                expected = self._expected[session] = self._streams.subscribe(session)
            asyncio.get_running_loop().call_later(_EXPECTED_SECONDS, self._unexpect, session, expected)

    def _unexpect(self, session: str, expected: Subscription) -> None:
        expected.close()
        if self._expected.get(session) is expected:
            del self._expected[session]

    async def events(
        self, user_id: str, session_id: str, since: int, *, follow: bool, streaming: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the log's events from an offset on; with `follow`, go on for ever as it grows."""
        with (
            self._follower(user_id, session_id) as follower,
            self._partials(user_id, session_id, on=streaming and follow) as partials,
        ):
            while True:
                page = await self._sessions.events(user_id, session_id, PageInput(since=since), closed=not follow)
                for event in page.events:
                    for partial in partials.logged(event):
                        yield partial
                    yield event
                since += len(page.events)
                if since >= page.total:
                    if not follow:
                        return
                    news = follower.news(found=bool(page.events))
                    async with aclosing(partials.until(news, since)) as written:
                        async for event in written:
                            yield event

    async def follow(
        self, user_id: str, session_id: str, invocation_id: str, since: int, *, streaming: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of an invocation's agents until it gives up the turn.

        Raises:
            InvocationFailed: It failed, or the session's workflow was closed meanwhile.
        """
        with (
            self._follower(user_id, session_id) as follower,
            self._partials(user_id, session_id, invocation_id, on=streaming) as partials,
        ):
            while True:
                request = PageInput(since=since, invocation_id=invocation_id)
                asked = time.monotonic()
                page = await self._sessions.events(user_id, session_id, request)
                took = time.monotonic() - asked
                for event in page.events:
                    for partial in partials.logged(event):
                        yield partial
                    if event.invocation_id == invocation_id and event.author != USER:
                        yield event
                since += len(page.events)
                if since >= page.total:
                    if _settled(page):
                        return
                    news = follower.news(found=bool(page.events), took=took)
                    async with aclosing(partials.until(news, since)) as written:
                        async for event in written:
                            yield event

    @contextmanager
    def _partials(
        self, user_id: str, session_id: str, invocation_id: str | None = None, *, on: bool
    ) -> Generator[Partials]:
        """Read what a session's models write, if it is wanted."""
        session = workflow_id(self._app_name, user_id, session_id)
        partials = Partials(self._streams if on else None, session, invocation_id)
        if on and session in self._expected:
            self._unexpect(session, self._expected[session])
        try:
            yield partials
        finally:
            partials.close()

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
