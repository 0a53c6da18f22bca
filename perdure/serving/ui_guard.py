"""A proxy before the UI of a development server, which lets through only requests that name this machine.

The UI asks nobody who they are. A web page of somebody else's could have the name of its own host resolved to this
machine, and then read and change every session as if it came from there (DNS rebinding); what it cannot change is the
`Host` that a browser names.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from asyncio import StreamReader, StreamWriter
from ipaddress import ip_address

__all__ = ["UiGuard", "hidden_address", "names_this_machine"]

_HEAD_BYTES = 64_000
_HEAD_SECONDS = 10.0
_CHUNK = 64_000


def hidden_address() -> str:
    """Return a loopback address that nobody guesses, for what stands behind a guard; where there is but one, that."""
    if sys.platform != "linux":
        return "127.0.0.1"
    draw = random.SystemRandom()
    return f"127.{draw.randint(1, 254)}.{draw.randint(0, 255)}.{draw.randint(1, 254)}"


def names_this_machine(host: str) -> bool:
    """Return whether a `Host` header names this machine alone, with or without a port."""
    name, _, port = host.strip().rpartition(":") if host.count(":") == 1 or "]:" in host else (host.strip(), "", "")
    if port and not port.isdigit():
        return False
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


class UiGuard:
    """Listens at one address and passes requests on to another, one for each connection."""

    def __init__(self, listen: tuple[str, int], behind: tuple[str, int]) -> None:
        """Make it; `start` lets it listen.

        Args:
            listen: Host and port where browsers come. A host that is not this machine's own may be named by them, too.
            behind: Host and port of the UI.
        """
        self._listen = listen
        self._behind = behind
        self._server: asyncio.Server | None = None
        self._at_work: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address cannot be had.
        """
        self._server = await asyncio.start_server(self._accept, *self._listen, limit=_HEAD_BYTES)

    async def stop(self) -> None:
        """Listen no more, and end what is at work."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._at_work):
            task.cancel()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._at_work.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, asyncio.CancelledError):
            # The browser has gone, or the server ends.
            pass
        finally:
            self._at_work.discard(task)
            writer.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        lines = head[:-4].split(b"\r\n")
        if not self._is_let_in(lines):
            text = b"Temporal's UI answers requests to localhost only\n"
            length = str(len(text)).encode()
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: ")
            writer.write(length + b"\r\n\r\n" + text)
            await writer.drain()
            return
        behind, ahead = await asyncio.open_connection(*self._behind)
        try:
            # One request for each connection: none comes behind another's check.
            kept = [line for line in lines if _name(line) not in (b"connection", b"keep-alive")]
            ahead.write(b"\r\n".join([*kept, b"Connection: close", b"", b""]))
            body = asyncio.create_task(_pipe(reader, ahead))
            try:
                await _pipe(behind, writer)
            finally:
                body.cancel()
        finally:
            ahead.close()

    def _is_let_in(self, lines: list[bytes]) -> bool:
        hosts = [line.partition(b":")[2].decode("latin-1").strip() for line in lines[1:] if _name(line) == b"host"]
        if len(hosts) != 1 or any(line[:1] in (b" ", b"\t") for line in lines):
            return False
        host, port = self._listen
        own = {host.lower(), f"{host.lower()}:{port}"} if not names_this_machine(host) else set[str]()
        return names_this_machine(hosts[0]) or hosts[0].lower() in own


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].strip().lower()


async def _pipe(reader: StreamReader, writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
