"""Reads a session's event log, page by page, and follows it as it grows."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager

from temporalio.client import Client

from perdure.errors import InvocationFailed
from perdure.journal.events import Event
from perdure.messages.keys import SessionKey
from perdure.messages.session import EVENTS, JOURNAL, EventsPage, PageInput
from perdure.sessions.event_batches import EventBatch, ShownKept
from perdure.sessions.feeds import Feeds
from perdure.sessions.follower import Follower
from perdure.sessions.kept_entries import events_of
from perdure.sessions.requests import SessionClosed, WorkflowRequests
from perdure.streams.hub import Subscription, TokenHub
from perdure.streams.partials import Partials

_KEPT_FOLLOWERS = 1000
_EXPECTED_SECONDS = 30.0

_CLOSED_PAUSE = 2.0
"""Seconds between two looks at a session whose workflow is closed."""

_TAKEN_WITHIN = 0.3
"""Seconds in which a workflow takes in what an activity has returned, if a worker is up."""

_SILENCE = 60.0
"""Seconds; a follower of single events is not told of a silence."""


class LogReader:
    """Reads and follows the logs of one app's sessions, with the models' partial answers if there is a hub."""

    def __init__(self, client: Client, requests: WorkflowRequests, streams: TokenHub | None = None) -> None:
        self._client = client
        self._requests = requests
        self._streams = streams
        self._expected: dict[str, list[Subscription]] = {}
        self._followers: OrderedDict[str, Follower] = OrderedDict()
        self._feeds = Feeds(self._lend, self._take_back)
        self._lengths: dict[str, asyncio.Task[int]] = {}

    def expect(self, key: SessionKey) -> Callable[[], None]:
        """Let workers stream what a session's models write, until a follower is there; for half a minute.

        Returns:
            Takes it back.
        """
        if self._streams is None:
            return lambda: None
        session = key.workflow_id
        expected = self._streams.subscribe(session)
        self._expected.setdefault(session, []).append(expected)
        timer = asyncio.get_running_loop().call_later(_EXPECTED_SECONDS, self._unexpect, session, expected)

        def take_back() -> None:
            timer.cancel()
            self._unexpect(session, expected)

        return take_back

    def _unexpect(self, session: str, expected: Subscription) -> None:
        if expected in self._expected.get(session, ()):
            expected.close()
            self._forget_expected(session, expected)

    def _forget_expected(self, session: str, expected: Subscription) -> None:
        found = self._expected[session]
        found.remove(expected)
        if not found:
            del self._expected[session]

    def _take_expected(self, session: str, since: int) -> Subscription | None:
        """Return a subscription from before a message was sent, which misses nothing of what models write for it."""
        found = self._expected.get(session)
        if not found:
            return None
        expected = found[0]
        self._forget_expected(session, expected)
        expected.skip_ended(since)
        return expected

    async def page(
        self, key: SessionKey, request: PageInput, *, closed: bool = False, kept: bool = False
    ) -> EventsPage:
        """Return a page of the log; with `kept`, also what is kept behind it.

        Raises:
            InvocationFailed: The workflow is closed, and `closed` is false.
        """
        try:
            if not kept:
                page: EventsPage = await self._requests.look(key, EVENTS, request, closed=closed)
                return page
            looked = await self._requests.look_kept(key, EVENTS, request, closed=closed)
        except SessionClosed as error:
            raise InvocationFailed(
                request.invocation_id or "?",
                agent="?",
                step="workflow",
                cause=f"the session's workflow was {error}",
                resumable=True,
            ) from error
        return looked.answer.model_copy(update={"kept": events_of(looked.kept), "more_within": looked.within})

    async def _journal_length(self, key: SessionKey) -> tuple[int, float | None, bool]:
        """Return the number of entries, kept ones, too, when more may be kept, and whether the workflow is closed."""
        # Of the journal nothing is wanted: a page from beyond its end.
        request = PageInput(since=sys.maxsize)
        try:
            looked = await self._requests.look_kept(key, JOURNAL, request, closed=False)
        except SessionClosed:
            return (await self._requests.look(key, JOURNAL, request)).total, None, True
        return looked.answer.total + len(looked.kept), looked.within, False

    async def events(
        self, key: SessionKey, since: int, *, follow: bool, streaming: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the log's events from an offset on; with `follow`, for ever, as it grows and as steps are kept."""
        if follow:
            batches = self.batches(key, since, patience=_SILENCE, streaming=streaming)
            async with aclosing(batches):
                async for batch in batches:
                    for event in (*batch.events, *batch.kept):
                        if event.partial or event.id not in batch.shown:
                            yield event
            return
        while True:
            page = await self.page(key, PageInput(since=since), closed=True)
            for event in page.events:
                yield event
            since += len(page.events)
            if since >= page.total:
                return

    async def batches(
        self, key: SessionKey, since: int, *, patience: float, streaming: bool = False
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield the log's events from an offset on, some at a time, for ever; none in a silence of some seconds."""

        async def read(since: int) -> EventsPage:
            return await self.page(key, PageInput(since=since), kept=True)

        if streaming and self._streams is not None:
            found = _with_silences(self._written(key, since, read), patience)
        else:
            found = self._feeds.follow(key.workflow_id, since, page=read, patience=patience)
        async with aclosing(found):
            async for batch in found:
                yield batch

    async def _written(
        self, key: SessionKey, since: int, read: Callable[[int], Awaitable[EventsPage]]
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield the log's events, and what models are writing; each such follower looks for itself."""
        shown = ShownKept()
        with (
            self._follower(key) as follower,
            self._partials(key) as partials,
        ):
            while True:
                page = await read(since)
                for event in page.events:
                    yield EventBatch(events=(*partials.logged(event), event), shown=shown.logged([event]))
                since += len(page.events)
                if since >= page.total:
                    fresh = shown.show(page.kept)
                    for event in fresh:
                        yield EventBatch(events=tuple(partials.logged(event)), kept=(event,))
                    news = follower.news(found=bool(page.events or fresh), more_within=page.more_within)
                    async with aclosing(partials.until(news, since + len(page.kept))) as written:
                        async for event in written:
                            yield EventBatch(events=(event,))

    async def length(self, key: SessionKey, at_least: int = 0) -> int:
        """Return the number of events in the log; not asked for where a follower here knows of enough."""
        session = key.workflow_id
        known = self._feeds.length(session)
        if known is not None and known >= at_least:
            return known
        # Many who come at once ask once.
        asked = self._lengths.get(session)
        if asked is None:
            asked = self._lengths[session] = asyncio.create_task(self._length(key))
            asked.add_done_callback(lambda task: self._lengths.pop(session, None))
        return await asyncio.shield(asked)

    async def _length(self, key: SessionKey) -> int:
        # Of the log nothing is wanted: a page from beyond its end.
        return (await self.page(key, PageInput(since=sys.maxsize), closed=True)).total

    async def grown(self, key: SessionKey, length: int) -> int:
        """Wait until a session's journal, with what is kept beside it, has another length than `length`; returns it."""
        # Who asks has just seen something.
        found = True
        with self._follower(key) as follower:
            while True:
                now, within, is_closed = await self._journal_length(key)
                if now < length:
                    # What was kept is neither here nor there until the workflow has taken it in.
                    await asyncio.sleep(_TAKEN_WITHIN)
                    now, within, is_closed = await self._journal_length(key)
                if now != length:
                    return now
                if is_closed:
                    # Only another run, which brings it back, lets it grow.
                    await asyncio.sleep(_CLOSED_PAUSE)
                    continue
                await follower.news(found=found, more_within=within)
                found = False

    async def follow(
        self,
        key: SessionKey,
        invocation_id: str,
        since: int,
        *,
        streaming: bool = False,
        live: bool = True,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of an invocation's agents until it gives up the turn, each once: as soon as it is kept.

        Raises:
            InvocationFailed: It failed, or the session's workflow was closed meanwhile.
        """
        shown = ShownKept()
        with (
            self._follower(key) as follower,
            self._partials(key, invocation_id, since, on=streaming) as partials,
        ):
            # What is written meanwhile is shown as it is written.
            if not live and not streaming:
                await self._requests.wait(key, invocation_id)
            while True:
                request = PageInput(since=since, invocation_id=invocation_id)
                asked = time.monotonic()
                page = await self.page(key, request, kept=True)
                took = time.monotonic() - asked
                since += len(page.events)
                known = shown.logged(page.events)
                fresh = shown.show(page.kept) if since >= page.total else ()
                for event in (*(one for one in page.events if one.id not in known), *fresh):
                    for partial in partials.logged(event):
                        yield partial
                    if event.invocation_id == invocation_id and not event.is_users:
                        yield event
                if since >= page.total:
                    if _settled(page):
                        return
                    news = follower.news(found=bool(page.events or fresh), took=took, more_within=page.more_within)
                    async with aclosing(partials.until(news, since + len(page.kept))) as written:
                        async for event in written:
                            yield event

    @contextmanager
    def _partials(
        self, key: SessionKey, invocation_id: str | None = None, since: int = 0, *, on: bool = True
    ) -> Generator[Partials]:
        """Read what a session's models write, if it is wanted: for who sent a message, from before that."""
        session = key.workflow_id
        subscription = None
        if on and self._streams is not None:
            expected = self._take_expected(session, since) if invocation_id is not None else None
            subscription = expected or self._streams.subscribe(session)
        partials = Partials(subscription, invocation_id)
        try:
            yield partials
        finally:
            partials.close()

    @contextmanager
    def _follower(self, key: SessionKey) -> Generator[Follower]:
        """Lend a follower to one caller at a time; it is kept, since it knows where the history ends."""
        session = key.workflow_id
        follower = self._lend(session)
        try:
            yield follower
        finally:
            self._take_back(session, follower)

    def _lend(self, session: str) -> Follower:
        return self._followers.pop(session, None) or Follower(self._client, session)

    def _take_back(self, session: str, follower: Follower) -> None:
        self._followers[session] = follower
        if len(self._followers) > _KEPT_FOLLOWERS:
            self._followers.popitem(last=False)


async def _with_silences(
    batches: AsyncGenerator[EventBatch, None], patience: float
) -> AsyncGenerator[EventBatch, None]:
    """Yield batches, and an empty one in each silence of so many seconds."""
    step: asyncio.Future[EventBatch | None] = asyncio.ensure_future(anext(batches, None))
    try:
        while True:
            done, _ = await asyncio.wait({step}, timeout=patience)
            if not done:
                yield EventBatch()
                continue
            batch = step.result()
            if batch is None:
                return
            step = asyncio.ensure_future(anext(batches, None))
            yield batch
    finally:
        step.cancel()
        await asyncio.wait({step})
        await batches.aclose()


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
