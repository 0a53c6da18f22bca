"""Keeps what an activity has done so far in its heartbeats, so that the next attempt goes on behind that.

By the client, with the activity's own token, and awaited: through the SDK a heartbeat may be held back, and come late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client

from perdure.activities.heartbeats import beat_seconds
from perdure.logs import get_logger

_log = get_logger("perdure.worker")

__all__ = ["Checkpoints", "checkpointing"]


class Checkpoints:
    """The heartbeats of one activity, each with all that is to be kept."""

    def __init__(self, client: Client, *kept: Any) -> None:
        """Begin with what an earlier attempt has kept."""
        self._activity = client.get_async_activity_handle(task_token=activity.info().task_token)
        self._kept = kept
        self._sending = asyncio.Lock()
        self.ends = asyncio.Event()
        """The activity is to hand over what it has: it is to stop, or nothing more can be kept."""

    async def keep(self, *kept: Any) -> None:
        """Return when this is kept, or the activity is to end."""
        self._kept = kept
        await self.beat()

    async def beat(self) -> None:
        """Heartbeat once."""
        # One after the other: what is sent first must not come last.
        async with self._sending:
            try:
                await self._activity.heartbeat(*self._kept)
            except AsyncActivityCancelledError:
                self.ends.set()
                # The SDK is to know it, too: it cancels what the activity is at.
                activity.heartbeat(*self._kept)
            except Exception as error:
                # The server may be away for long, or the activity not be this worker's any more.
                _log.warning("a heartbeat was not taken", error=type(error).__name__, why=str(error)[:300])
                self.ends.set()


@asynccontextmanager
async def checkpointing(client: Client, *kept: Any) -> AsyncGenerator[Checkpoints]:
    """Heartbeat inside of the block, with what is kept.

    Args:
        client: A client of the server.
        kept: What an earlier attempt has kept.
    """
    checkpoints, timeout = Checkpoints(client, *kept), activity.info().heartbeat_timeout

    async def beat() -> None:
        while timeout is not None and not checkpoints.ends.is_set():
            await asyncio.sleep(beat_seconds(timeout.total_seconds()))
            await checkpoints.beat()

    beats = asyncio.create_task(beat())
    try:
        yield checkpoints
    finally:
        beats.cancel()
        with suppress(asyncio.CancelledError):
            await beats
