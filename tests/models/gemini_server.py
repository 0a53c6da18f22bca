"""A local server that speaks Gemini's `generateContent` and `streamGenerateContent` over real HTTP/1.1.

https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: Json

    @property
    def streams(self) -> bool:
        """Whether the client asked for server-sent events."""
        return ":streamGenerateContent" in self.path


@dataclass(frozen=True)
class Reply:
    """What the server answers."""

    body: Any = None
    """JSON, or bytes that are sent as they are; for a stream the list of its chunks."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: Literal["never", "before", "within"] = "never"
    """Where the connection is dropped: before any answer, or within it."""
    delay: float = 0.0
    """Seconds before the answer."""


def answer(*parts: Json, finish_reason: str | None = "STOP", **fields: Any) -> Json:
    """Return a response body with one candidate."""
    candidate: Json = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish_reason is not None:
        candidate["finishReason"] = finish_reason
    return {"candidates": [candidate], "modelVersion": "gemini-test-001", **fields}


def error(status: int, code: str, message: str, *details: Json, **headers: str) -> Reply:
    """Return an error as Google's APIs write it."""
    body: Json = {"error": {"code": status, "message": message, "status": code}}
    if details:
        body["error"]["details"] = list(details)
    return Reply(body, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def retry_info(delay: str) -> Json:
    """Return the error detail with which Google's APIs ask a client to wait."""
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


class GeminiServer:
    """Answers requests with the replies it was given, one after the other; the last one again and again.

    Attributes:
        requests: What it was asked, oldest first.
    """

    def __init__(self, *replies: Reply | Json) -> None:
        self.requests: list[Request] = []
        self._replies = [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    @property
    def url(self) -> str:
        """The server's address, to be used as a base URL."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> GeminiServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        serving = list(self._connections.values())
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                request = await _read(reader)
                reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
                self.requests.append(request)
                await asyncio.sleep(reply.delay)
                await _write(writer, request, reply)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client has gone.
        finally:
            del self._connections[writer]
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    path = head[0].split(" ")[1]
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(path, headers, json.loads(body or b"{}"))


async def _write(writer: asyncio.StreamWriter, request: Request, reply: Reply) -> None:
    if reply.cut != "before":
        streams = request.streams and reply.status == 200 and isinstance(reply.body, list)
        pieces = _stream(reply) if streams else _whole(reply)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    if reply.cut != "never":
        writer.close()


def _head(reply: Reply, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Status"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in {**headers, **reply.headers}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _whole(reply: Reply) -> Iterable[bytes]:
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    yield _head(reply, content_type="application/json; charset=UTF-8", content_length=str(len(body)))
    yield body[: len(body) // 2] if reply.cut == "within" else body


def _stream(reply: Reply) -> Iterable[bytes]:
    yield _head(reply, content_type="text/event-stream", transfer_encoding="chunked")
    for chunk in reply.body:
        line = b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n"
        yield f"{len(line):x}\r\n".encode() + line + b"\r\n"
    if reply.cut != "within":
        yield b"0\r\n\r\n"
