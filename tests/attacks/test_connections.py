"""Connections on which a client owes something for ever: a head, a body, the reading of an answer."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import httpx2
import pytest
from fastapi import FastAPI
from starlette.responses import Response, StreamingResponse
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import PayloadCodec

from perdure.api.app import create_app
from perdure.api.base.config import ApiConfig
from perdure.encryption.codec_server import CodecServerConfig, create_codec_app
from perdure.serving.health import HealthServer
from perdure.serving.http_connections import ConnectionLimits
from perdure.serving.http_server import serve
from perdure.serving.sockets import listen
from tests.api.auth_support import Keys

SOON = timedelta(seconds=0.5)
LIMITS = ConnectionLimits(
    head=SOON, body=SOON, rate=100_000, reading=SOON, lingering=SOON, every=timedelta(seconds=0.05)
)
WITHIN = 10.0
"""Seconds within which what takes half of one has surely ended."""

HOST = b"host: localhost\r\n"
POST = b"POST /run HTTP/1.1\r\ncontent-type: application/json\r\n" + HOST
LARGE = 30_000_000


@dataclass
class Place:
    """A server with short limits."""

    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, first: bytes, more: bytes = b"", pause: float = 0.1) -> tuple[bytes, int, float]:
        """Send, and go on sending; returns what came back, the bytes that were sent, and the seconds until the end."""
        reader, writer = await self.connect()
        began, sent = time.monotonic(), len(first)
        writer.write(first)

        async def go_on() -> None:
            nonlocal sent
            with suppress(OSError):
                while more:
                    writer.write(more)
                    await writer.drain()
                    sent += len(more)
                    await asyncio.sleep(pause)

        sending = asyncio.create_task(go_on())
        got = b""
        try:
            async with asyncio.timeout(WITHIN):
                with suppress(OSError):
                    while data := await reader.read(65536):
                        got += data
        finally:
            sending.cancel()
            writer.transport.abort()
        return got, sent, time.monotonic() - began

    async def health(self) -> int:
        async with httpx2.AsyncClient(trust_env=False) as http:
            return (await http.get(f"http://127.0.0.1:{self.port}/health")).status_code


@asynccontextmanager
async def serving(app: FastAPI, limits: ConnectionLimits = LIMITS) -> AsyncGenerator[Place]:
    listener, stop = listen("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(serve(app, listener, stop, limits=limits))
    try:
        yield Place(listener.getsockname()[1])
    finally:
        stop.set()
        await task


@pytest.fixture(scope="module")
async def api() -> AsyncGenerator[Place]:
    app = create_app(await Client.connect("127.0.0.1:1", lazy=True), config=ApiConfig(auth=Keys().auth))

    async with serving(app) as place:
        yield place


SLOW: dict[str, tuple[bytes, bytes, bytes]] = {
    "nothing": (b"", b"", b"408"),
    "half a head": (b"POST /run HTTP/1.1\r\nhost: lo", b"", b"408"),
    "a head, line by line": (b"GET /health HTTP/1.1\r\n", b"a: b\r\n", b"408"),
    "a head, byte by byte": (b"GET /health HTTP/1.1\r\na: ", b"b", b"408"),
    "half of a second head": (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\nGET /he", b"a", b"200"),
    "a second head, byte by byte": (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n", b"G", b"200"),
}


@pytest.mark.parametrize("name", SLOW)
async def test_heads_that_do_not_come_are_waited_for_no_longer(api: Place, name: str) -> None:
    first, more, status = SLOW[name]
    got, _, _ = await api.send(first, more)
    assert got.startswith(b"HTTP/1.1 " + status), got[:200]


@pytest.fixture
async def open_api() -> AsyncGenerator[Place]:
    """One that asks for no credential, so that it reads bodies."""
    async with serving(create_app(await Client.connect("127.0.0.1:1", lazy=True))) as place:
        yield place


@pytest.mark.parametrize(
    ("head", "more", "pause"),
    [
        (b"content-length: 1000\r\n\r\n", b"", 0.1),
        (b"content-length: 1000\r\n\r\n{", b"", 0.1),
        (b"content-length: 1000\r\n\r\n", b" ", 0.1),
        (b"content-length: 9000000\r\n\r\n", b" " * 1000, 0.1),
        (b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.1),
        (b"expect: 100-continue\r\ncontent-length: 1000\r\n\r\n", b"", 0.1),
    ],
    ids=["none", "a byte", "byte by byte", "below the rate", "chunk by chunk", "announced"],
)
async def test_bodies_that_do_not_come_are_waited_for_no_longer(
    open_api: Place, head: bytes, more: bytes, pause: float
) -> None:
    got, sent, _ = await open_api.send(POST + head, more, pause)
    assert b"HTTP/1.1 408 Request Timeout" in got, got[:200]
    assert sent < 100_000


async def test_a_body_that_comes_at_a_bearable_rate_is_read() -> None:
    """Also if all of it takes longer than a body without any progress may."""
    body = b'{"state": ' + b" " * 299_989 + b"}"
    limits = replace(LIMITS, body=timedelta(seconds=2.5), rate=50_000)
    async with serving(create_app(await Client.connect("127.0.0.1:1", lazy=True)), limits) as place:
        reader, writer = await place.connect()
        writer.write(POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 50_000):
            writer.write(body[start : start + 50_000])
            await asyncio.sleep(0.6)
        assert (await reader.read()).startswith(b"HTTP/1.1 422")
        writer.close()


@pytest.mark.parametrize("length", [b"content-length: 900000000000", b"transfer-encoding: chunked"])
async def test_a_body_that_goes_on_behind_its_answer_is_cut_off(api: Place, length: bytes) -> None:
    """Without a credential 9 GB were read in 8 s; now there is an answer, and a little grace for it to arrive."""
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    for path in (b"/run", b"/health", b"/no-such"):
        head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + length + b"\r\n\r\n"
        _, sent, took = await api.send(head, chunk, 0)
        # Beside the megabyte that is read, the kernel's buffers take some.
        assert (sent < 30_000_000, took < WITHIN) == (True, True), path
    slow, _, _ = await api.send(b"POST /run HTTP/1.1\r\n" + HOST + length + b"\r\n\r\n", b"1\r\n \r\n")
    assert slow.startswith(b"HTTP/1.1 4")


async def test_a_body_that_was_on_its_way_lets_its_answer_arrive_and_the_connection_live(api: Place) -> None:
    reader, writer = await api.connect()
    head = b"POST /run HTTP/1.1\r\n" + HOST + b"content-length: 200000\r\n\r\n"
    for _ in range(2):
        writer.write(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
        writer.write(b" " * 200_000)
        await reader.readuntil(b"}")
    writer.close()


@pytest.mark.parametrize("path", [b"/large", b"/endless"])
async def test_an_answer_that_nobody_reads_is_given_up(path: bytes) -> None:
    app = create_app(await Client.connect("127.0.0.1:1", lazy=True))
    made = 0

    @app.get("/large")
    async def large() -> Response:
        return Response(b"x" * LARGE)

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes]:
            nonlocal made
            while True:
                made += 10_000
                yield b"x" * 10_000
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    async with serving(app) as place:
        reader, writer = await place.connect()
        writer.write(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        await reader.readexactly(1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(2)
        kept = made
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        read = 0
        with suppress(OSError):
            async with asyncio.timeout(WITHIN):
                while data := await reader.read(65536):
                    read += len(data)
        writer.transport.abort()
        assert read < LARGE
        assert made == kept


async def test_who_reads_slowly_and_reads_gets_all() -> None:
    app = create_app(await Client.connect("127.0.0.1:1", lazy=True))

    @app.get("/large")
    async def large() -> Response:
        return Response(b"x" * LARGE)

    async with serving(app) as place:
        reader, writer = await place.connect()
        writer.write(b"GET /large HTTP/1.1\r\nconnection: close\r\n" + HOST + b"\r\n")
        read = 0
        while data := await reader.read(1_000_000):
            read += len(data)
            await asyncio.sleep(0.01)
        writer.close()
    assert read > LARGE


async def test_garbage_behind_an_answer_ends_the_connection_and_nothing_else(
    api: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (b"/no-such", b"/health", b"/run"):
        head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
        await api.send(head, b"zz\r\n", 0.05)
    assert await api.health() == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_thousands_of_half_requests_are_gone_soon_and_others_are_served_meanwhile(api: Place) -> None:
    """Three thousand stayed for 95 s. As many as this process may open are tried."""
    number = min(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - 100)
    writers = [(await api.connect()) for _ in range(number)]
    for _, writer in writers:
        writer.write(b"POST /run HTTP/1.1\r\nhost: ")
    assert await api.health() == 200
    async with asyncio.timeout(60):
        ends = await asyncio.gather(*(reader.read() for reader, _ in writers), return_exceptions=True)
    assert len(ends) == number
    for _, writer in writers:
        writer.transport.abort()
    assert await api.health() == 200


class Plain(PayloadCodec):
    """Changes nothing."""

    async def encode(self, payloads: list[Payload]) -> list[Payload]:  # type: ignore[override]
        return list(payloads)

    async def decode(self, payloads: list[Payload]) -> list[Payload]:  # type: ignore[override]
        return list(payloads)


async def test_the_codec_endpoint_has_the_same_limits() -> None:
    config = CodecServerConfig(tokens=("a-token-that-is-long-enough",), host="0.0.0.0")
    async with serving(create_codec_app(Plain(), config)) as place:
        assert (await place.send(b"POST /decode HT"))[0].startswith(b"HTTP/1.1 408")
        head = b"POST /decode HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
        got, sent, _ = await place.send(head, b"8000\r\n" + b" " * 0x8000 + b"\r\n", 0)
        assert sent < 30_000_000
        known = b"authorization: Bearer a-token-that-is-long-enough\r\n"
        got, _, _ = await place.send(b"POST /decode HTTP/1.1\r\n" + HOST + known + b"content-length: 9\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 408")


async def test_the_health_endpoint_of_workers_waits_for_no_head_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.serving.health._READ_SECONDS", 0.3)

    async def ready() -> None:
        return None

    async with HealthServer("127.0.0.1", 0, ready) as server:
        got, sent, took = await Place(server.port).send(b"GET /livez", b"x")
    assert (got, sent < 1000, took < WITHIN) == (b"", True, True)
