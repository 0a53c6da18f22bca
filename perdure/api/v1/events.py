"""Routes of a session's log: by page, and as a stream that a client takes up again where it lost it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from perdure.api.auth.standing import Standing, StandingOf
from perdure.api.base.backend import Backend, BackendOf
from perdure.api.base.statuses import ServerEnding, error_frame
from perdure.api.base.streams import ENDING, data_frame, event_frame
from perdure.api.v1.addressing import SESSION, Where, WhereOf
from perdure.api.v1.schemas import EventPage
from perdure.errors import SessionNotFound
from perdure.journal.events import Event

_BEAT = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes a quiet stream for a dead one."""

_PAGE_BYTES = 2_000_000
"""A page of events ends behind the one with which it has so many; one alone may have 1.9 MB."""

_LOOK_UP = 1.0
"""Seconds after which a stream looks whether its server or credential ends; waiting would cost each event a task."""

router = APIRouter()


@router.get(SESSION + "/events", response_model=EventPage)
async def list_events(
    where: WhereOf,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return events of the log from an offset on; `next` is the offset behind them. A page has a few MB at the most.

    With the last ones come those of steps whose activity goes on, in `kept`: they have no offset until it ends.
    """
    found: list[Event] = []
    size = 0
    async with backend.patience():
        session = await where.runner.get_session(**where.key.arguments)
        total = session.event_count
        async with aclosing(where.runner.events(**where.key.arguments, since=since)) as events:
            while len(found) < limit and size < _PAGE_BYTES and (event := await anext(events, None)) is not None:
                found.append(event)
                size += len(event.to_json())
    # What came in between counts, too.
    next_, shown = since + len(found), {event.id for event in found}
    kept = [event for event in session.kept if event.id not in shown] if next_ == total else []
    page = EventPage(events=tuple(found), next=next_, total=max(total, next_ if found else 0), kept=tuple(kept))
    return Response(page.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")


@router.get(SESSION + "/events/stream", response_class=StreamingResponse)
async def follow_events(
    where: WhereOf,
    backend: BackendOf,
    standing: StandingOf,
    since: Annotated[int, Query(ge=0)] = 0,
    partial: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream a session's events from an offset on, for as long as the client stays.

    A frame's `id` is the offset behind its event, so a client that comes back with `Last-Event-ID` misses none. Where
    an activity takes several steps, an event comes as soon as its step is kept, without an `id`, and when the log has
    it a frame with nothing but that; who was cut off in between gets it once more. With `partial`, further frames
    without one come in between, if the server hears of any: pieces of what a model is writing, under the id of the
    event that will hold all of it.
    """
    if last_event_id:
        if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
            raise HTTPException(400, f"the Last-Event-ID {last_event_id[:50]!r} is none of this stream: a number")
        since = int(last_event_id)
    async with backend.patience():
        total = await where.runner.event_count(**where.key.arguments, at_least=since)
    if since > total:
        raise HTTPException(400, f"the log has {total} events, so there is no offset {since}")
    frames = _frames(where, backend, since, partial=partial, standing=standing)
    return StreamingResponse(frames, media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def _frames(
    where: Where, backend: Backend, since: int, *, partial: bool, standing: Standing
) -> AsyncIterator[str]:
    said = time.monotonic()
    batches = where.runner.event_batches(
        **where.key.arguments, since=since, patience=min(_LOOK_UP, _BEAT), streaming=partial
    )
    try:
        async with aclosing(batches):
            async for batch in batches:
                await standing.check()
                frames: list[str] = []
                # Followers of pieces read the log for themselves, so nobody else has the same event.
                make = event_frame if partial else _FRAMES.frame
                for event in batch.events:
                    since += not event.partial
                    if event.partial:
                        frames.append(make(event))
                    else:
                        frames.append(f"id: {since}\n" + ("\n" if event.id in batch.shown else make(event)))
                frames += map(make, batch.kept)
                if not frames and time.monotonic() - said >= _BEAT:
                    frames = [": still here\n\n"]
                if frames:
                    said = time.monotonic()
                    yield "".join(frames)
                if backend.closing.is_set():
                    raise ServerEnding(ENDING)
    except SessionNotFound:
        # It was deleted meanwhile.
        return
    except Exception as error:
        yield f"event: error\n{data_frame(error_frame(error))}"


_KEPT_LENGTH = 20_000
"""Characters of a frame that is kept at most: many large ones would fill the memory."""


class _Frames:
    """The frames of events that many followers get, each made once."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._frames: OrderedDict[int, tuple[Event, str]] = OrderedDict()

    def frame(self, event: Event) -> str:
        """Return an event's frame."""
        # As long as the event is kept here, no other one has its identity.
        known = self._frames.get(id(event))
        if known is not None:
            return known[1]
        frame = event_frame(event)
        if len(frame) > _KEPT_LENGTH:
            return frame
        self._frames[id(event)] = event, frame
        if len(self._frames) > self._kept:
            self._frames.popitem(last=False)
        return frame


_FRAMES = _Frames(200)
