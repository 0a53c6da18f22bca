"""Streams of events that end with the client, or with the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from perdure.api.auth.standing import Standing
from perdure.api.base.statuses import ServerEnding
from perdure.journal.events import Event

_T = TypeVar("_T")

_AHEAD = 100
"""Events that are read before the client has taken those that came first."""

ENDING = "the server ends; the run goes on, and its events are in the session"


class _End:
    """A mark behind the last event."""


async def until_gone(
    events: AsyncGenerator[_T, None],
    closing: asyncio.Event,
    gone: asyncio.Future[None] | None = None,
    *,
    standing: Standing | None = None,
) -> AsyncGenerator[_T, None]:
    """Yield events until they end, or the client has gone.

    Args:
        events: The events.
        closing: Set when the server ends.
        gone: Done when the client has gone, where the response itself does not tell.
        standing: For how long the client is let in. Default: for ever.

    Raises:
        CredentialExpired: The client has to show another one.
        ServerEnding: The server ends.
    """
    queue: asyncio.Queue[_T | Exception | _End] = asyncio.Queue(_AHEAD)
    # A task of its own unwinds the generator when it is cancelled, which a response that is cut off has no time for.
    pump = asyncio.create_task(_pump(events, queue))
    ending = asyncio.create_task(closing.wait())
    watched = () if gone is None else (gone,)
    taken = asyncio.create_task(queue.get())
    try:
        while True:
            left = standing.patience if standing is not None else None
            await asyncio.wait({taken, ending, *watched}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if standing is not None:
                await standing.check()
            if taken.done():
                event = taken.result()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, _End):
                    return
                taken = asyncio.create_task(queue.get())
                yield event
            elif gone is not None and gone.done():
                return
            elif ending.done():
                raise ServerEnding(ENDING)
    finally:
        for task in (pump, ending, taken):
            task.cancel()


async def _pump(events: AsyncGenerator[_T, None], queue: asyncio.Queue[_T | Exception | _End]) -> None:
    try:
        async for event in events:
            await queue.put(event)
    except Exception as error:
        # Whoever reads the queue raises it.
        await queue.put(error)
    else:
        await queue.put(_End())


def event_frame(event: Event) -> str:
    """Return an event's frame."""
    return f"data: {event.to_json()}\n\n"


def data_frame(value: dict[str, Any]) -> str:
    """Return a frame of a stream."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
