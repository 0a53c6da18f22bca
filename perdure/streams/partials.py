"""Builds partial events of one session, in step with its log."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Iterator
from itertools import groupby
from typing import Any

from perdure.journal.events import Event
from perdure.plan.contents import types
from perdure.streams.hub import Draft, News, Piece, Subscription

ATTEMPT = "perdure:attempt"
"""Key in the `custom_metadata` of a partial event: which attempt of the model call it is of. A greater number than
before, under the same event id, means that the answer begins anew."""

_REMEMBERED = 1000
"""Event ids."""


class Partials:
    """The models' unfinished answers in a session, as events, for one follower of its log.

    None comes before an event that the model had seen, after its own final event, or of an attempt that another has
    taken over from.
    """

    def __init__(self, subscription: Subscription | None, invocation_id: str | None = None) -> None:
        """Read what a subscription to one session brings, of one invocation if it is given; nothing without one."""
        self._invocation_id = invocation_id
        self._subscription = subscription
        self._held: list[News] = []
        self._hurried: OrderedDict[str, None] = OrderedDict()
        self._attempts: OrderedDict[str, float] = OrderedDict()
        """The newest attempt that was shown, by event id; infinity when the event itself was."""

    def close(self) -> None:
        """Read nothing any more."""
        if self._subscription is not None:
            self._subscription.close()

    def logged(self, event: Event) -> list[Event]:
        """Return the pieces of an event that were not shown yet, since it is about to be shown itself."""
        if self._subscription is None:
            return []
        found, self._held = [*self._held, *self._subscription.take()], []
        pieces: list[Event] = []
        for news in found:
            if news.draft.id == event.id:
                pieces += self._shown(news)
            else:
                self._held.append(news)
        self._attempts[event.id] = float("inf")
        _shorten(self._attempts)
        return pieces

    async def until(self, news: Coroutine[Any, Any, None], since: int) -> AsyncGenerator[Event, None]:
        """Yield partial events until there may be news of the log, or a model is known to have seen more of it.

        Args:
            news: Waits for news of the log.
            since: How many events of the log were shown.
        """
        if self._subscription is None:
            await news
            return
        looking = asyncio.ensure_future(news)
        try:
            while not looking.done():
                for event in self._ready(self._subscription, since):
                    yield event
                if self._hurries():
                    return
                await _either(looking, self._subscription.changed())
            looking.result()
        finally:
            looking.cancel()
            # It must be over before anybody waits for news again; a failure that is not told now comes again then.
            await asyncio.gather(looking, return_exceptions=True)

    def _ready(self, subscription: Subscription, since: int) -> Iterator[Event]:
        found, self._held = [*self._held, *subscription.take()], []
        for news in found:
            if news.draft.offset > since:
                self._held.append(news)
            else:
                yield from self._shown(news)

    def _shown(self, news: News) -> list[Event]:
        """Return pieces as the event that is to be shown of them, if any."""
        draft = news.draft
        if self._invocation_id not in (None, draft.invocation_id) or not news.pieces:
            return []
        if draft.attempt < self._attempts.get(draft.id, 0):
            return []
        self._attempts[draft.id] = draft.attempt
        _shorten(self._attempts)
        return partial_events(draft, news.pieces)

    def _hurries(self) -> bool:
        """Return whether the log is to be looked at now, since a model has seen more of it; once for each answer."""
        fresh = [news.draft.id for news in self._held if news.draft.id not in self._hurried]
        self._hurried.update(dict.fromkeys(fresh))
        _shorten(self._hurried)
        return bool(fresh)


async def _either(looking: asyncio.Future[None], change: Coroutine[Any, Any, None]) -> None:
    changed = asyncio.ensure_future(change)
    try:
        await asyncio.wait({looking, changed}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changed.cancel()


def partial_events(draft: Draft, pieces: list[Piece]) -> list[Event]:
    """Return pieces of an answer as events, in ADK's form: texts in one, whole events one by one."""
    events: list[Event] = []
    for whole, group in groupby(pieces, key=lambda piece: piece.event is not None):
        found = list(group)
        events += [_whole_event(draft, piece.event or "") for piece in found] if whole else [_of_texts(draft, found)]
    return events


def _whole_event(draft: Draft, data: str) -> Event:
    update: dict[str, Any] = {
        "id": draft.id,
        "timestamp": time.time(),
        "author": draft.author,
        "invocation_id": draft.invocation_id,
        "branch": draft.branch,
        "partial": True,
    }
    event = Event.model_validate_json(data)
    if draft.attempt > 1:
        update["custom_metadata"] = {**(event.custom_metadata or {}), ATTEMPT: draft.attempt}
    return event.model_copy(update=update)


def _of_texts(draft: Draft, pieces: list[Piece]) -> Event:
    parts = [
        types.Part(text="".join(piece.text for piece in group), thought=thought or None)
        for thought, group in groupby(pieces, key=lambda piece: piece.thought)
    ]
    return Event(
        id=draft.id,
        timestamp=time.time(),
        author=draft.author,
        invocation_id=draft.invocation_id,
        branch=draft.branch,
        content=types.Content(role="model", parts=parts),
        partial=True,
        custom_metadata={ATTEMPT: draft.attempt},
    )


def _shorten(known: OrderedDict[str, Any]) -> None:
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
