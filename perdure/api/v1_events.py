"""A session's log: by page, and as a stream that a client takes up again where it lost it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from perdure.api.backend import Backend, BackendOf
from perdure.api.problems import problems
from perdure.api.statuses import error_frame
from perdure.api.streams import data_frame, event_frame, until_gone
from perdure.api.v1_schemas import EventPage
from perdure.api.where import SESSION, Where, WhereOf
from perdure.errors import SessionNotFound
from perdure.events import Event

_BEAT = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes a quiet stream for a dead one."""

router = APIRouter()


@router.get(SESSION + "/events", response_model=EventPage, responses=problems(413))
async def list_events(
    where: WhereOf,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return events of the log from an offset on; `next` is the offset behind them."""
    found: list[Event] = []
    async with backend.patience():
        total = (await where.runner.get_session(**where.keys)).event_count
        async with aclosing(where.runner.events(**where.keys, since=since)) as events:
            while len(found) < limit and (event := await anext(events, None)) is not None:
                found.append(event)
    # What came in between counts, too.
    next_ = since + len(found)
    page = EventPage(events=tuple(found), next=next_, total=max(total, next_ if found else 0))
    return Response(page.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")


@router.get(SESSION + "/events/stream", response_class=StreamingResponse, responses=problems(413))
async def attach(
    where: WhereOf,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream a session's events from an offset on, for as long as the client stays.

    A frame's `id` is the offset behind its event, so a client that comes back with `Last-Event-ID` misses none and sees
    none twice.
    """
    if last_event_id:
        if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
            raise HTTPException(400, f"the Last-Event-ID {last_event_id[:50]!r} is none of this stream: a number")
        since = int(last_event_id)
    async with backend.patience():
        total = (await where.runner.get_session(**where.keys)).event_count
    if since > total:
        raise HTTPException(400, f"the log has {total} events, so there is no offset {since}")
    frames = _frames(where, backend, since)
    return StreamingResponse(frames, media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def _frames(where: Where, backend: Backend, since: int) -> AsyncIterator[str]:
    events = _with_beats(where.runner.events(**where.keys, since=since, follow=True))
    try:
        async with aclosing(until_gone(events, backend.closing)) as beating:
            async for event in beating:
                if event is None:
                    yield ": still here\n\n"
                else:
                    since += 1
                    yield f"id: {since}\n{event_frame(event)}"
    except SessionNotFound:
        # It was deleted meanwhile.
        return
    except Exception as error:
        yield f"event: error\n{data_frame(error_frame(error))}"


async def _with_beats(events: AsyncGenerator[Event, None], pause: float | None = None) -> AsyncGenerator[Event | None]:
    """Yield events, and `None` in each silence that lasts."""
    step: asyncio.Future[Event | None] = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({step}, timeout=pause or _BEAT)
            if not done:
                yield None
                continue
            event = step.result()
            if event is None:
                return
            step = asyncio.ensure_future(anext(events, None))
            yield event
    finally:
        step.cancel()
