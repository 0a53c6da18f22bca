"""Watches whether Temporal answers a process that serves; says once that it does not, and once that it does again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from temporalio.client import Client

from perdure.errors import ConnectionFailed
from perdure.logs import get_logger
from perdure.serving.health import Pulse

_EACH = 5.0
_SOON = 1.0
"""Seconds between two looks, while all is well and while it is not."""

PATIENCE = 15.0
"""Seconds that the server may be away before a worker ends: with ten for what runs to end, within half a minute."""

_logger = get_logger("perdure.worker")


@asynccontextmanager
async def server_watched(client: Client, gone: Callable[[], None] | None = None) -> AsyncGenerator[None]:
    """Watch a client's server while the block runs.

    Args:
        client: The client.
        gone: Called once when the server has been away for `PATIENCE` seconds; then the block is to end. Default: the
            process goes on without a server for as long as it takes.

    Raises:
        ConnectionFailed: The block has ended, since the server was away for so long.
    """
    watch = asyncio.create_task(_watch(client, gone))
    try:
        yield
    finally:
        watch.cancel()
        away = watch.result() if watch.done() and not watch.cancelled() else None
    if away is not None:
        raise ConnectionFailed(
            f"Temporal has not answered at {_target(client)} for {away:.0f} s, so this process has ended; sessions go"
            " on when the server is back and a worker serves them again"
        )


async def _watch(client: Client, gone: Callable[[], None] | None) -> float:
    """Return for how long the server has been away, when `gone` has been called."""
    pulse, since = Pulse(client, writes=None), None
    while True:
        await asyncio.sleep(_EACH if since is None else _SOON)
        asked = time.monotonic()
        answers = await pulse.beats()
        if not answers and since is None:
            since = asked
            _logger.error(f"Temporal does not answer at {_target(client)}; asking again")
        elif answers and since is not None:
            since = None
            _logger.warning(f"Temporal answers again at {_target(client)}")
        away = time.monotonic() - since if since is not None else 0.0
        if gone is not None and away >= PATIENCE:
            gone()
            return away


def _target(client: Client) -> str:
    return client.service_client.config.target_host
