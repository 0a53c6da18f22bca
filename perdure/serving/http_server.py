"""Runs HTTP applications by uvicorn, beside whatever else the process does."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Generator
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from perdure.serving.http_connections import ConnectionLimits, timed_protocol

__all__ = ["Lingering", "serve"]

_GRACE = 5
"""Seconds that requests have to end when the server does."""


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take no signal."""
        yield


@dataclass(frozen=True)
class Lingering:
    """How long a server that takes no more connections lets those that it has go on, streams too."""

    seconds: float
    ends: asyncio.Event
    """Whoever sets it ends it before."""

    async def over(self, running: asyncio.Task[None]) -> None:
        """Wait until it is over, or the server has ended by itself."""
        ends = asyncio.create_task(self.ends.wait())
        await asyncio.wait({running, ends}, timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()


async def serve(
    app: FastAPI,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    closing: asyncio.Event | None = None,
    lingering: Lingering | None = None,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until `stop` is set; then `closing` is set, which ends streams, and other requests get some seconds.

    Args:
        app: What is served.
        listener: Where.
        stop: Ends it.
        closing: Is set then.
        lingering: How long what is under way may go on by itself before. Default: not at all.
        limits: How long clients may take. Default: those of `ConnectionLimits`.
    """
    config = uvicorn.Config(
        app,
        http=timed_protocol(limits or ConnectionLimits()),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE + (math.ceil(lingering.seconds) if lingering is not None else 0),
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        server.should_exit = True
        if lingering is not None:
            await lingering.over(running)
        if closing is not None:
            closing.set()
        await running
