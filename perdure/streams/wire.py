"""The protocol between the two: lines of JSON over TCP, each side proving that it knows the key.

The server begins with `{"perdure": 1, "nonce": N}`, the client answers `{"nonce": M, "proof": P}`, the server
`{"proof": Q}`; a proof is an HMAC of both nonces, so the key itself is never sent. From then on the client says
`{"want": SESSION}` and `{"drop": SESSION}`, and the server `{"open": n, "draft": {…}}`, `{"add": n, "pieces": […]}`,
`{"end": n}`, and `{}` in a silence.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from perdure.streams.hub import Piece

VERSION = 1
MAX_LINE = 10_000_000
"""Bytes that a client takes: an answer that is being written may come in one line, a million of bytes as text."""
MAX_REQUEST = 16_384
"""Bytes that a server takes."""
MAX_SESSIONS = 10_000
"""That a client may follow over one connection; a server closes one that wants more."""
BEAT_SECONDS = 5.0
"""Silence after which the server says that it is still there."""
PATIENCE_SECONDS = 20.0
"""Silence after which the client takes the server for gone."""
GREETING_SECONDS = 5.0

_ENCODING = "encoding"
_PLAIN = b"json/plain"


class WireError(Exception):
    """The other side breaks the protocol, or does not know the key."""


class Connection:
    """One side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *frames: dict[str, Any]) -> None:
        """Send frames, and wait until the other side keeps up.

        Raises:
            OSError: The connection is lost.
        """
        self._writer.write(b"".join(json.dumps(frame, separators=(",", ":")).encode() + b"\n" for frame in frames))
        await self._writer.drain()

    async def receive(self) -> dict[str, Any]:
        """Return the next frame.

        Raises:
            OSError: The connection is lost.
            WireError: It is no frame.
        """
        try:
            line = await self._reader.readuntil(b"\n")
            frame: Any = json.loads(line)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the connection was closed") from error
        except (ValueError, RecursionError, asyncio.LimitOverrunError) as error:
            raise WireError("the other side sends what is no frame") from error
        if not isinstance(frame, dict):
            raise WireError("the other side sends what is no frame")
        return frame  # pyright: ignore[reportUnknownVariableType] -- JSON

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


async def greet_client(connection: Connection, key: str) -> None:
    """Open a conversation as its server.

    Raises:
        WireError: The client does not know the key.
    """
    nonce = secrets.token_hex(16)
    await connection.send({"perdure": VERSION, "nonce": nonce})
    answer = await connection.receive()
    theirs = str(answer.get("nonce"))
    if not _proves(answer, _proof(key, "client", nonce, theirs)):
        raise WireError("the client does not know the key")
    await connection.send({"proof": _proof(key, "server", nonce, theirs)})


async def greet_server(connection: Connection, key: str) -> None:
    """Open a conversation as its client.

    Raises:
        WireError: The server speaks otherwise, or does not know the key.
    """
    greeting = await connection.receive()
    if greeting.get("perdure") != VERSION:
        raise WireError(f"the server speaks another version of the protocol than {VERSION}, or another protocol")
    theirs, nonce = str(greeting.get("nonce")), secrets.token_hex(16)
    await connection.send({"nonce": nonce, "proof": _proof(key, "client", theirs, nonce)})
    try:
        answer = await connection.receive()
    except OSError as error:
        raise WireError("the server refuses the key; give both the same PERDURE_STREAM_KEY") from error
    if not _proves(answer, _proof(key, "server", theirs, nonce)):
        raise WireError("the server does not know the key; give both the same PERDURE_STREAM_KEY")


def _proof(key: str, who: str, *nonces: str) -> str:
    return hmac.new(key.encode(), "/".join((who, *nonces)).encode(), hashlib.sha256).hexdigest()


def _proves(frame: dict[str, Any], expected: str) -> bool:
    return hmac.compare_digest(str(frame.get("proof")).encode(errors="replace"), expected.encode())


async def sealed(pieces: Sequence[Piece], codec: PayloadCodec | None) -> dict[str, Any]:
    """Return pieces as a part of a frame, encrypted by the codec that encrypts histories, if there is one."""
    if codec is None:
        return {"pieces": pieces}
    plain = Payload(metadata={_ENCODING: _PLAIN}, data=json.dumps(pieces).encode())
    [payload] = await codec.encode([plain])
    return {"sealed": base64.b64encode(payload.SerializeToString()).decode()}


async def unsealed(frame: dict[str, Any], codec: PayloadCodec | None) -> list[Piece]:
    """Return the pieces in a frame.

    Raises:
        WireError: They are encrypted, and the codec at hand does not open them; or they are malformed.
    """
    pieces: Any = frame.get("pieces")
    try:
        if "sealed" in frame:
            payload = Payload.FromString(base64.b64decode(frame["sealed"]))
            if codec is not None:
                [payload] = await codec.decode([payload])
            if payload.metadata.get(_ENCODING) != _PLAIN:
                raise WireError("tokens are encrypted, and not with the keys at hand")
            pieces = json.loads(payload.data)
        return [_piece(*given) for given in pieces]
    except (ValueError, TypeError) as error:
        raise WireError("the other side sends pieces that are none") from error


def _piece(text: Any, thought: Any, event: Any = None) -> Piece:
    return Piece(str(text), bool(thought), None if event is None else str(event))
