"""A TCP proxy whose connections a test can cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections to a server, until they are dropped."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._cut = False
        self.refused = 0
        """Connections that were refused while the way was cut."""

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._drop()

    def cut(self) -> None:
        """Drop every connection, and every new one."""
        self._cut = True
        self._drop()

    def mend(self) -> None:
        """Let connections through again."""
        self._cut = False

    def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            self.refused += 1
            writer.transport.abort()
            return
        beyond_reader, beyond = await asyncio.open_connection(*self._target)
        self._writers |= {writer, beyond}
        try:
            await asyncio.gather(_pump(reader, beyond), _pump(beyond_reader, writer))
        finally:
            self._writers -= {writer, beyond}
            writer.transport.abort()
            beyond.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
