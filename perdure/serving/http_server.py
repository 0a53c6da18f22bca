"""Runs HTTP applications by uvicorn, beside whatever else the process does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

from perdure.serving.http_connections import ConnectionLimits, timed_protocol

_GRACE = 5
"""Seconds that requests have to end when the server does."""


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take no signal."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        OSError: The address cannot be had.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = socket.create_server((str(address[0]), port), family=family)
    # Its connections inherit it. Else the second half of a small response waits some 40 ms for the client's word.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening address, for a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is that of this machine alone."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def serve(
    app: FastAPI,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    closing: asyncio.Event | None = None,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until `stop` is set; then `closing` is set, which ends streams, and other requests get some seconds.

    Args:
        app: What is served.
        listener: Where.
        stop: Ends it.
        closing: Is set then.
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
        timeout_graceful_shutdown=_GRACE,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if closing is not None:
            closing.set()
        server.should_exit = True
        await running
