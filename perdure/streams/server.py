"""`StreamServer`: sends what the models of a worker write to other processes."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Any

from temporalio.converter import PayloadCodec

from perdure.logs import get_logger
from perdure.streams import wire
from perdure.streams.hub import News, Subscription, TokenHub

_log = get_logger("perdure.streams")

_Numbers = dict[str, dict[tuple[str, int], int]]
"""By session and draft, the number under which a client hears of it."""

_MAX_CONNECTIONS = 200


class StreamServer:
    """Listens for clients that follow sessions, as a block: `async with StreamServer(hub, "0.0.0.0", 7400): …`.

    Whoever knows the key may follow every session, so it is for servers, not for users. A client that does not keep up
    gets more in one piece later; it holds up no model.
    """

    def __init__(
        self,
        hub: TokenHub,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        listener: socket.socket | None = None,
        key: str = "",
        codec: PayloadCodec | None = None,
    ) -> None:
        """Prepare to listen.

        Args:
            hub: What the workers of this process were given.
            host: Address to listen on.
            port: Its port; 0 is a free one.
            listener: A socket that listens already, in place of an address. It is closed with the block.
            key: What clients must know. Default: nothing, which is for this machine only.
            codec: Encrypts what is sent; the one that encrypts histories. Default: none.
        """
        self._hub = hub
        self._host = host
        self._port = port
        self._listener = listener
        self._key = key
        self._codec = codec
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """`HOST:PORT` of what listens."""
        assert self._server is not None, "it listens inside of its block only"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def __aenter__(self) -> StreamServer:
        """Listen.

        Raises:
            OSError: The address cannot be had.
        """
        limit = wire.MAX_REQUEST
        self._server = (
            await asyncio.start_server(self._accept, self._host, self._port, limit=limit)
            if self._listener is None
            else await asyncio.start_server(self._accept, sock=self._listener, limit=limit)
        )
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every connection."""
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(wire.Connection(reader, writer)))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: wire.Connection) -> None:
        subscription = self._hub.subscribe()
        numbers: _Numbers = {}
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(wire.GREETING_SECONDS):
                await wire.greet_client(connection, self._key)
            tasks = [
                asyncio.create_task(_read_wants(connection, subscription, numbers)),
                asyncio.create_task(self._tell(connection, subscription, numbers)),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except wire.WireError as error:
            _log.warning("client of token streams refused", reason=str(error))
        except (OSError, TimeoutError):
            # It has gone, and may come again.
            pass
        finally:
            for task in tasks:
                task.cancel()
            subscription.close()
            connection.close()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, connection: wire.Connection, subscription: Subscription, numbers: _Numbers) -> None:
        count = 0
        while True:
            try:
                async with asyncio.timeout(wire.BEAT_SECONDS):
                    await subscription.changed()
            except TimeoutError:
                await connection.send({})
                continue
            numbered: list[tuple[News, int, bool]] = []
            # All at once: a session that is dropped while this is sent, and wanted again, begins afresh.
            for news in subscription.take():
                known = numbers.setdefault(news.draft.session, {})
                key = (news.draft.id, news.draft.attempt)
                opens = key not in known
                if opens:
                    count += 1
                    known[key] = count
                numbered.append((news, known[key], opens))
                if news.ended:
                    del known[key]
                if not known:
                    del numbers[news.draft.session]
            for news, number, opens in numbered:
                await connection.send(*await self._frames(news, number, opens=opens))

    async def _frames(self, news: News, number: int, *, opens: bool) -> list[dict[str, Any]]:
        frames: list[dict[str, Any]] = [{"open": number, "draft": news.draft.model_dump()}] if opens else []
        if news.pieces:
            frames.append({"add": number, **await wire.sealed(news.pieces, self._codec)})
        if news.ended:
            frames.append({"end": number})
        return frames


async def _read_wants(connection: wire.Connection, subscription: Subscription, numbers: _Numbers) -> None:
    while True:
        frame = await connection.receive()
        match frame:
            case {"want": str(session)}:
                subscription.add(session)
                if len(subscription.cursors) > wire.MAX_SESSIONS:
                    raise wire.WireError(f"it wants more than {wire.MAX_SESSIONS} sessions over one connection")
            case {"drop": str(session)}:
                subscription.drop(session)
                numbers.pop(session, None)
            case _:
                # A later version may say more.
                pass
