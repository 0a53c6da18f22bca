"""Whether a process is alive and ready: a check of Temporal, and an HTTP endpoint that needs no web framework."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from types import TracebackType
from typing import Self

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

__all__ = ["HealthServer", "Pulse"]

_TIMEOUT = timedelta(seconds=3)
_KEPT_SECONDS = 1.0
_READ_SECONDS = 5
_MAX_HEAD = 16_000


class Pulse:
    """Whether Temporal answers; asked once a second at most, however often somebody wants to know."""

    def __init__(self, client: Client) -> None:
        """Feel the pulse of the server that a client is connected to."""
        self._client = client
        self._lock = asyncio.Lock()
        self._felt = -_KEPT_SECONDS
        self._beats = False

    async def beats(self) -> bool:
        """Return whether Temporal answers, within 3 s."""
        async with self._lock:
            if time.monotonic() - self._felt >= _KEPT_SECONDS:
                try:
                    await self._client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=_TIMEOUT)
                    self._beats = True
                except RPCError:
                    self._beats = False
                self._felt = time.monotonic()
            return self._beats


class HealthServer:
    """Serves `/livez` (200 for as long as the process answers) and `/readyz` (200, or 503 with a reason)."""

    def __init__(self, host: str, port: int, why_not: Callable[[], Awaitable[str | None]]) -> None:
        """Serve at an address.

        Args:
            host: Name or address to listen on.
            port: Port; 0 is any free one.
            why_not: Returns why the process is not ready; `None` if it is.
        """
        self._host, self._port = host, port
        self._why_not = why_not
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: The address cannot be had.
        """
        self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=_MAX_HEAD)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = head.decode("latin-1").partition(" ")
            status, said = await self._found(method, rest.partition(" ")[0].partition("?")[0])
            body = json.dumps(said).encode()
            writer.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                + (b"" if method == "HEAD" else body)
            )
            await writer.drain()
        writer.close()

    async def _found(self, method: str, path: str) -> tuple[HTTPStatus, dict[str, str]]:
        if path not in ("/livez", "/readyz"):
            return HTTPStatus.NOT_FOUND, {"detail": "there are /livez and /readyz"}
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, {"detail": "ask by GET"}
        if path == "/livez":
            return HTTPStatus.OK, {"status": "ok"}
        reason = await self._why_not()
        if reason is not None:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"detail": reason}
        return HTTPStatus.OK, {"status": "ready"}
