"""Bounds how long a page waits for a session: a person waits for the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from perdure.api.base.backend import Backend
from perdure.sessions.pollers import is_served

_LOOK_SECONDS = 15.0
"""How long a page waits for a session at the most."""

_ASK_FOR_WORKERS_AFTER = 2.0
"""Seconds without an answer after which a page asks whether there are workers."""


@asynccontextmanager
async def patience_of_page(backend: Backend, app: str) -> AsyncGenerator[None]:
    """Return a block that gives up with `TimeoutError`: soon where no worker of the app has asked for work of late."""
    async with asyncio.timeout(min(backend.config.patience.total_seconds(), _LOOK_SECONDS)) as waiting:
        watching = asyncio.create_task(_give_up_unserved(backend, waiting, app))
        try:
            yield
        finally:
            watching.cancel()


async def _give_up_unserved(backend: Backend, waiting: asyncio.Timeout, app: str) -> None:
    await asyncio.sleep(_ASK_FOR_WORKERS_AFTER)
    if not await is_served(backend.client, app):
        waiting.reschedule(asyncio.get_running_loop().time())
