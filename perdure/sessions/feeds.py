"""Feeds: the growing logs of sessions, each read once for all in this process who follow it.

Each look asks the server what the session's history has gained, and two hundred may follow one session: so they have
one look in common.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from perdure.journal.events import Event
from perdure.messages.session import EventsPage
from perdure.sessions.event_batches import EventBatch, ShownKept
from perdure.sessions.follower import Follower

_MOST_EVENTS = 1000
_MOST_BYTES = 4_000_000
"""What a feed holds of the log, at most; whoever is farther behind reads pages of his own."""

Page = Callable[[int], Awaitable[EventsPage]]
"""Reads a page of the log from an offset on."""


class Feed:
    """One session's log from where its first follower began."""

    def __init__(self, page: Page, follower: Follower, since: int) -> None:
        """Begin to read.

        Args:
            page: Reads the log.
            follower: Says when the log may have grown.
            since: Where to begin.
        """
        self._page = page
        self.follower = follower
        self._events: list[Event] = []
        self._sizes: list[int] = []
        self._start = since
        self._more = asyncio.Event()
        self._own_pages = asyncio.Lock()
        self._error: Exception | None = None
        self._kept: tuple[Event, ...] = ()
        """What is kept, and not in the log yet."""
        self.readers = 0
        self.total: int | None = None
        """Events in the log when it was last looked at."""
        self._task = asyncio.create_task(self._read())

    @property
    def end(self) -> int:
        """Events in the log, as far as it was read."""
        return self._start + len(self._events)

    @property
    def is_over(self) -> bool:
        """Whether it can read no further."""
        return self._task.done()

    def close(self) -> None:
        """Read no further."""
        self._task.cancel()

    async def next(self, since: int, shown: ShownKept, patience: float) -> EventBatch:
        """Return events from an offset on, as soon as there are any; none if none came for so many seconds.

        Args:
            since: The offset.
            shown: What was shown before it was in the log.
            patience: Seconds.

        Raises:
            PerdureError: The log cannot be read.
        """
        if since < self._start:
            # One after the other: Temporal lets only few queries of one workflow wait.
            async with self._own_pages:
                events = (await self._page(since)).events
            return EventBatch(events=events, shown=shown.logged(events))
        if since >= self.end and self._error is None and not shown.fresh(self._kept_behind(since)):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._more.wait()
        if self._start <= since < self.end:
            events = tuple(self._events[since - self._start :])
            return EventBatch(events=events, shown=shown.logged(events), kept=shown.show(self._kept))
        if self._error is not None:
            raise self._error
        return EventBatch(kept=shown.show(self._kept_behind(since)))

    def _kept_behind(self, since: int) -> tuple[Event, ...]:
        """Return what is kept behind an offset, which must be the log's end as it was read."""
        return self._kept if since == self.end else ()

    async def _read(self) -> None:
        try:
            while True:
                asked = time.monotonic()
                page = await self._page(self.end)
                took = time.monotonic() - asked
                self.total = page.total
                if page.events:
                    self._append(page)
                if self.end >= page.total:
                    fresh = self._keep(page.kept)
                    await self.follower.news(found=fresh or bool(page.events), took=took, more_within=page.more_within)
        except Exception as error:
            # Whoever follows raises it.
            self._error = error
        finally:
            self._wake()

    def _keep(self, kept: tuple[Event, ...]) -> bool:
        """Take what is kept beside the log; returns whether there is more of it."""
        known = {event.id: event for event in self._kept}
        fresh = any(known.get(event.id) != event for event in kept)
        if fresh:
            # The same objects, as long as they are kept: whoever makes a frame of one makes it once.
            self._kept = tuple(known[event.id] if known.get(event.id) == event else event for event in kept)
            self._wake()
        elif len(kept) < len(known):
            self._kept = kept
        return fresh

    def _append(self, page: EventsPage) -> None:
        # Some of it is in the log now; the look that reaches its end says what is kept behind that.
        self._kept = ()
        if page.total - self.end - len(page.events) > _MOST_EVENTS:
            # The rest is for pages of their own: it would not be kept.
            self._start, self._events, self._sizes = page.total, [], []
            self._wake()
            return
        self._events += page.events
        self._sizes += (len(event.to_json()) for event in page.events)
        dropped, size = 0, sum(self._sizes)
        while dropped < len(self._events) - 1 and (size > _MOST_BYTES or len(self._events) - dropped > _MOST_EVENTS):
            size -= self._sizes[dropped]
            dropped += 1
        del self._events[:dropped], self._sizes[:dropped]
        self._start += dropped
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class Feeds:
    """The feeds that somebody follows, by workflow id."""

    def __init__(self, lend: Callable[[str], Follower], take_back: Callable[[str, Follower], None]) -> None:
        """Make none.

        Args:
            lend: Returns what says when a log may have grown, by the key; it is this feed's until it ends.
            take_back: Takes it back.
        """
        self._lend = lend
        self._take_back = take_back
        self._feeds: dict[str, Feed] = {}

    def length(self, key: str) -> int | None:
        """Return the length of a log that somebody follows, if it was looked at; it may have grown since then."""
        feed = self._feeds.get(key)
        return feed.total if feed is not None and not feed.is_over else None

    async def follow(self, key: str, since: int, *, page: Page, patience: float) -> AsyncGenerator[EventBatch, None]:
        """Yield a log's events from an offset on, some at a time, for ever; none in a silence of `patience` seconds.

        Args:
            key: Which log.
            since: The offset.
            page: Reads a page of it.
            patience: Seconds.

        Raises:
            PerdureError: The log cannot be read.
        """
        feed = self._feeds.get(key)
        if feed is None or feed.is_over:
            feed = self._feeds[key] = Feed(page, self._lend(key), since)
        feed.readers += 1
        shown = ShownKept()
        try:
            while True:
                batch = await feed.next(since, shown, patience)
                since += len(batch.events)
                yield batch
        finally:
            feed.readers -= 1
            if not feed.readers:
                feed.close()
                self._take_back(key, feed.follower)
                if self._feeds.get(key) is feed:
                    del self._feeds[key]
