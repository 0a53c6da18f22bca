"""`StreamClient`: receives what the models of other processes write, for an API or any client that follows."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from pydantic import ValidationError
from temporalio.converter import PayloadCodec

from perdure.logs import get_logger
from perdure.streams import wire
from perdure.streams.hub import Draft, TokenHub, Writer

_log = get_logger("perdure.streams")

_RESOLVE_SECONDS = 5.0
"""Between two looks at what a host's name stands for: workers come and go."""
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0
"""Seconds before the next attempt to connect."""

_Address = tuple[str, int]


def split_address(address: str) -> _Address:
    """Return host and port of `HOST:PORT`.

    Raises:
        ValueError: It is no such address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{address!r} is no address; write HOST:PORT, or [HOST]:PORT for IPv6")
    return host.removeprefix("[").removesuffix("]"), int(port)


class StreamClient:
    """Fills a hub with what workers write, as a block: `async with StreamClient(hub, ["worker:7400"]): …`.

    A name may stand for many workers: each of its addresses is connected to, and it is looked up again all the time, as
    of a headless service in Kubernetes. Workers that cannot be reached are tried again; whoever follows meanwhile gets
    events whole.
    """

    def __init__(
        self, hub: TokenHub, addresses: Sequence[str], *, key: str = "", codec: PayloadCodec | None = None
    ) -> None:
        """Prepare to connect.

        Args:
            hub: What the `Runner` of this process is given.
            addresses: `HOST:PORT` of the workers' `StreamServer`.
            key: What the workers ask for.
            codec: Decrypts what they send; the one that decrypts histories.

        Raises:
            ValueError: An address is malformed.
        """
        self._hub = hub
        self._addresses = [split_address(address) for address in addresses]
        self._key = key
        self._codec = codec
        self._feeds: dict[_Address, tuple[_Feed, asyncio.Task[None]]] = {}
        self._finding: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached = asyncio.Event()

    @property
    def connected(self) -> int:
        """How many workers there is a connection to."""
        return sum(feed.connected for feed, _ in self._feeds.values())

    async def connects(self, patience: float) -> bool:
        """Return whether a connection to a worker was made, within some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._reached.wait()
        return self._reached.is_set()

    async def __aenter__(self) -> StreamClient:
        """Begin to connect; returns at once."""
        self._loop = asyncio.get_running_loop()
        self._finding = asyncio.create_task(self._find())
        self._hub.on_want.append(self._wanted)
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every connection."""
        self._hub.on_want.remove(self._wanted)
        assert self._finding is not None
        tasks = [self._finding]
        self._finding.cancel()
        await asyncio.wait(tasks)
        tasks += [task for _, task in self._feeds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wanted(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        for feed, _ in self._feeds.values():
            feed.changed.set()

    async def _find(self) -> None:
        """Keep a connection to each address that the names stand for."""
        while True:
            found = [await _resolve(*address) for address in self._addresses]
            # A name that is not known for the moment says nothing about those who were found under it before.
            known = None not in found
            addresses = {address for some in found for address in some or ()}
            for address in addresses - self._feeds.keys():
                feed = _Feed(self._hub, address, self._key, self._codec, self._reached)
                self._feeds[address] = feed, asyncio.create_task(feed.run())
            for address in self._feeds.keys() - addresses if known else ():
                self._feeds.pop(address)[1].cancel()
            await asyncio.sleep(_RESOLVE_SECONDS)


async def _resolve(host: str, port: int) -> set[_Address] | None:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _log.debug("name of workers not found", host=host, reason=str(error))
        return None
    return {(str(address[0]), int(address[1])) for *_, address in found}


class _Feed:
    """The connection to one worker."""

    def __init__(
        self, hub: TokenHub, address: _Address, key: str, codec: PayloadCodec | None, reached: asyncio.Event
    ) -> None:
        self._hub = hub
        self._address = address
        self._key = key
        self._codec = codec
        self._reached = reached
        self.changed = asyncio.Event()
        """Sessions began, or ceased, to be followed."""
        self.connected = False
        self._warned = ""

    async def run(self) -> None:
        """Connect, and connect again, until it is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._converse()
            except (OSError, TimeoutError):
                pause = _FIRST_PAUSE if self.connected else min(pause * 2, _LAST_PAUSE)
            except wire.WireError as error:
                self._warn(error)
                pause = _LAST_PAUSE
            self.connected = False
            await asyncio.sleep(pause)

    def _warn(self, error: wire.WireError) -> None:
        """Say why nothing is streamed, once."""
        if self._warned != str(error):
            self._warned = str(error)
            worker = f"{self._address[0]}:{self._address[1]}"
            _log.warning("no tokens are streamed from a worker", worker=worker, reason=self._warned)

    async def _converse(self) -> None:
        async with asyncio.timeout(wire.GREETING_SECONDS):
            connection = wire.Connection(*await asyncio.open_connection(*self._address, limit=wire.MAX_LINE))
        telling: asyncio.Task[None] | None = None
        writers: dict[int, Writer] = {}
        try:
            async with asyncio.timeout(wire.GREETING_SECONDS):
                await wire.greet_server(connection, self._key)
            self.connected = True
            self._reached.set()
            telling = asyncio.create_task(self._tell(connection, writers))
            while True:
                async with asyncio.timeout(wire.PATIENCE_SECONDS):
                    frame = await connection.receive()
                await self._take(frame, writers)
        finally:
            connection.close()
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            for writer in writers.values():
                writer.end()

    async def _tell(self, connection: wire.Connection, writers: dict[int, Writer]) -> None:
        """Tell which sessions are followed, now and as that changes."""
        told = set[str]()
        while True:
            self.changed.clear()
            # Of what is dropped the worker says no more, not even that it ends; who wants it again gets it afresh.
            wanted = self._hub.wanted(forgetting=writers.values())
            for number in [number for number, writer in writers.items() if writer.draft.session not in wanted]:
                del writers[number]
            # First what makes room; what finds none is wanted as soon as there is some.
            frames = [{"drop": session} for session in sorted(told - wanted)]
            told &= wanted
            new = sorted(wanted - told)
            room = wire.MAX_SESSIONS - len(told)
            if len(new) > room:
                self._warn(
                    wire.WireError(f"more than {wire.MAX_SESSIONS} sessions are followed; the others get no tokens")
                )
            frames += [{"want": session} for session in new[:room]]
            told.update(new[:room])
            if frames:
                await connection.send(*frames)
            await self.changed.wait()

    async def _take(self, frame: dict[str, Any], writers: dict[int, Writer]) -> None:
        match frame:
            case {"open": int(number), "draft": draft}:
                try:
                    self._open(number, Draft.model_validate(draft), writers)
                except ValidationError as error:
                    raise wire.WireError("the worker tells of a draft that is none") from error
            case {"add": int(number)}:
                writer = writers.get(number)
                if writer is not None:
                    await self._add(writer, frame)
            case {"end": int(number)}:
                writer = writers.pop(number, None)
                if writer is not None:
                    writer.end()
            case _:
                # A later version may say more.
                pass

    def _open(self, number: int, draft: Draft, writers: dict[int, Writer]) -> None:
        # Known by another number, if the worker had not read the drop yet when it opened it.
        earlier = next((one for one, writer in writers.items() if writer.draft == draft), None)
        if earlier is not None:
            writers[number] = writers.pop(earlier)
            writers[number].restart()
        elif (writer := self._hub.begin(draft)) is not None:
            writers[number] = writer

    async def _add(self, writer: Writer, frame: dict[str, Any]) -> None:
        try:
            writer.add(*await wire.unsealed(frame, self._codec))
        except wire.WireError as error:
            self._warn(error)
            writer.end()
