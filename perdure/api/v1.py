"""Perdure's own resources, under `/v1`: invocations, calls that wait, the log by page, and as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from perdure.api.access import answers
from perdure.api.backend import Backend, BackendOf, Segment
from perdure.api.statuses import error_frame
from perdure.api.streams import data_frame, event_frame, until_gone
from perdure.api.v1_schemas import (
    AnswerBody,
    EventPage,
    Invocation,
    InvocationList,
    Pending,
    PendingList,
    StopBody,
    Taken,
)
from perdure.errors import SessionNotFound
from perdure.events import Event
from perdure.messages import InvocationResult

_SESSION = "/apps/{app_name}/users/{user_id}/sessions/{session_id}"
_INVOCATION = _SESSION + "/invocations/{invocation_id}"
_BEAT = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes a quiet stream for a dead one."""

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200)]

router = APIRouter(prefix="/v1", tags=["v1"])


@router.get(_SESSION + "/invocations")
async def list_invocations(
    app_name: Segment, user_id: Segment, session_id: Segment, backend: BackendOf
) -> InvocationList:
    """Return a session's invocations, oldest first; of a long session those finished are left out but the newest."""
    runner = backend.runner(app_name, user_id, session_id)
    async with backend.patience():
        view = await runner.get_session(user_id=user_id, session_id=session_id)
    return InvocationList(
        status=view.status, invocations=[Invocation.of(one) for one in view.invocations], total=view.invocation_count
    )


@router.get(_INVOCATION)
async def get_invocation(
    app_name: Segment, user_id: Segment, session_id: Segment, invocation_id: Segment, backend: BackendOf
) -> Invocation:
    """Return an invocation."""
    runner = backend.runner(app_name, user_id, session_id)
    async with backend.patience():
        view = await runner.invocation(user_id=user_id, session_id=session_id, invocation_id=invocation_id)
    return Invocation.of(view)


@router.post(_INVOCATION + "/resume")
async def resume(
    app_name: Segment, user_id: Segment, session_id: Segment, invocation_id: Segment, backend: BackendOf
) -> Taken:
    """Run a failed or stopped invocation on; returns at once. One that waits or has finished is only reported."""
    runner = backend.runner(app_name, user_id, session_id)
    async with backend.patience():
        return _taken(await runner.resume(user_id=user_id, session_id=session_id, invocation_id=invocation_id))


@router.post(_INVOCATION + "/stop")
async def stop(
    app_name: Segment,
    user_id: Segment,
    session_id: Segment,
    invocation_id: Segment,
    backend: BackendOf,
    body: StopBody | None = None,
) -> Taken:
    """Stop an invocation; returns when what it ran is cancelled."""
    runner = backend.runner(app_name, user_id, session_id)
    reason = body.reason if body else None
    async with backend.patience():
        return _taken(
            await runner.stop(user_id=user_id, session_id=session_id, invocation_id=invocation_id, reason=reason)
        )


@router.get("/apps/{app_name}/pending")
async def list_pending(
    app_name: Segment, backend: BackendOf, user_id: Annotated[str | None, Query(alias="userId", min_length=1)] = None
) -> PendingList:
    """Return the calls that wait for an answer in all of an app's sessions, or in one user's, oldest first."""
    runner = backend.runner(app_name, user_id)
    async with backend.patience():
        found = await runner.pending(user_id=user_id)
    return PendingList(calls=[Pending.of(call, session.user_id, session.id) for session, call in found])


@router.get(_SESSION + "/pending")
async def list_pending_of_session(
    app_name: Segment, user_id: Segment, session_id: Segment, backend: BackendOf
) -> PendingList:
    """Return the calls of a session that wait for an answer, oldest first."""
    runner = backend.runner(app_name, user_id, session_id)
    async with backend.patience():
        found = await runner.pending(user_id=user_id, session_id=session_id)
    return PendingList(calls=[Pending.of(call, user_id, session_id) for _, call in found])


@router.post(_SESSION + "/pending/{call_id}/answer")
@answers
async def answer(
    app_name: Segment,
    user_id: Segment,
    session_id: Segment,
    call_id: Segment,
    backend: BackendOf,
    body: AnswerBody,
    idempotency_key: IdempotencyKey = None,
) -> Taken:
    """Answer a call; returns at once. A repetition with the same key is told the same, and answers nothing again."""
    runner = backend.runner(app_name, user_id, session_id)
    async with backend.patience():
        result = await runner.respond(
            user_id=user_id,
            session_id=session_id,
            responses={call_id: body.response},
            request_id=idempotency_key,
            metadata=body.metadata,
        )
    return _taken(result)


@router.get(_SESSION + "/events", response_model=EventPage)
async def list_events(
    app_name: Segment,
    user_id: Segment,
    session_id: Segment,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return events of the log from an offset on; `next` is the offset behind them."""
    runner = backend.runner(app_name, user_id, session_id)
    found: list[Event] = []
    async with backend.patience():
        total = (await runner.get_session(user_id=user_id, session_id=session_id)).event_count
        async with aclosing(runner.events(user_id=user_id, session_id=session_id, since=since)) as events:
            while len(found) < limit and (event := await anext(events, None)) is not None:
                found.append(event)
    # What came in between counts, too.
    next_ = since + len(found)
    page = EventPage(events=tuple(found), next=next_, total=max(total, next_ if found else 0))
    return Response(page.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")


@router.get(_SESSION + "/events/stream", response_class=StreamingResponse)
async def attach(
    app_name: Segment,
    user_id: Segment,
    session_id: Segment,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    partial: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream a session's events from an offset on, for as long as the client stays.

    A frame's `id` is the offset behind its event, so a client that comes back with `Last-Event-ID` misses none and sees
    none twice. With `partial`, frames without an `id` come in between, if the server hears of any: pieces of what
    a model is writing, under the id of the event that will hold all of it.
    """
    if last_event_id:
        if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
            raise HTTPException(400, f"the Last-Event-ID {last_event_id[:50]!r} is none of this stream: a number")
        since = int(last_event_id)
    runner = backend.runner(app_name, user_id, session_id)
    async with backend.patience():
        total = (await runner.get_session(user_id=user_id, session_id=session_id)).event_count
    if since > total:
        raise HTTPException(400, f"the log has {total} events, so there is no offset {since}")
    events = runner.events(user_id=user_id, session_id=session_id, since=since, follow=True, streaming=partial)
    frames = _frames(events, backend, since)
    return StreamingResponse(frames, media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def _frames(events: AsyncGenerator[Event, None], backend: Backend, since: int) -> AsyncIterator[str]:
    try:
        async with aclosing(until_gone(_with_beats(events), backend.closing)) as beating:
            async for event in beating:
                if event is None:
                    yield ": still here\n\n"
                elif event.partial:
                    yield event_frame(event)
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
        await asyncio.wait({step})
        await events.aclose()


def _taken(result: InvocationResult) -> Taken:
    return Taken(invocation=Invocation.of(result.invocation), offset=result.offset)
