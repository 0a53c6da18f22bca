"""An endpoint that decrypts payloads for Temporal's UI and command line, for people who may see them.

It speaks Temporal's remote codec protocol: POST `/encode` and `/decode`, a JSON object of `payloads` in and out.
Temporal: https://docs.temporal.io/codec-server
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from perdure.errors import DefinitionError
from perdure.serving.sockets import is_loopback

__all__ = ["CodecServerConfig", "create_codec_app", "read_tokens"]

MAX_BODY_BYTES = 32_000_000
"""What one request may have; the UI asks for a page of history events at a time."""

_LEAST_TOKEN = 16
_HEADERS = ("authorization", "content-type", "x-namespace")
"""What Temporal's UI sends."""


@dataclass(frozen=True, kw_only=True)
class CodecServerConfig:
    """Settings of the endpoint: who may ask it."""

    tokens: tuple[str, ...] = field(default=(), repr=False)
    """Bearer tokens, each of which opens it. Without any, everybody may ask who reaches it: only for loopback."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may ask, such as `http://localhost:8233`. Default: none."""
    host: str = "127.0.0.1"
    """Where it listens. Default: this machine only."""

    def __post_init__(self) -> None:
        """Check that nobody from outside is let in without a token.

        Raises:
            DefinitionError: There is no token, and it listens for other machines; or an origin is none.
        """
        if not self.tokens and not is_loopback(self.host):
            raise DefinitionError(
                f"a codec endpoint at {self.host!r} would decrypt for everybody who reaches it; give tokens, or let it"
                " listen on 127.0.0.1"
            )
        for origin in self.origins:
            scheme, found, rest = origin.partition("://")
            if scheme not in ("http", "https") or not found or not rest or "/" in rest or "*" in rest:
                raise DefinitionError(f"{origin!r} is no origin; write it as in http://localhost:8233, without a path")


def read_tokens(path: Path) -> tuple[str, ...]:
    """Return the tokens in a file, one a line; what follows a `#` at the start of a line is a comment.

    Raises:
        DefinitionError: It cannot be read, holds none, or one that is too short. No message quotes a token.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise DefinitionError(f"the tokens cannot be read from {str(path)!r}: {reason}") from None
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise DefinitionError(
            f"file {str(path)!r} holds no token; write one into it, such as `openssl rand -hex 32` makes"
        )
    for number, token in enumerate(tokens, 1):
        if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise DefinitionError(
                f"token {number} in file {str(path)!r} is too short to be secret, or has characters that a header"
                f" cannot carry; take {_LEAST_TOKEN} or more, such as `openssl rand -hex 32` makes"
            )
    return tokens


def create_codec_app(codec: PayloadCodec, config: CodecServerConfig) -> FastAPI:
    """Return the endpoint as an ASGI application.

    Args:
        codec: What encrypts and decrypts. A payload that it cannot open comes back as it is.
        config: Who may ask.
    """
    app = FastAPI(title="Perdure codec", docs_url=None, redoc_url=None, openapi_url=None)
    endpoint = _Endpoint(codec, config)
    app.add_api_route("/encode", endpoint.encode, methods=["POST"])
    app.add_api_route("/decode", endpoint.decode, methods=["POST"])
    # The last one added is asked first: a page may read why it was refused.
    app.middleware("http")(endpoint.guard)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=config.origins,
        allow_methods=["POST"],
        allow_headers=_HEADERS,
        allow_credentials=bool(config.origins),
    )
    return app


class _Endpoint:
    def __init__(self, codec: PayloadCodec, config: CodecServerConfig) -> None:
        self._codec = codec
        self._config = config

    async def guard(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse whoever may not ask."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._config.origins:
            return _refusal(403, f"the origin {origin!r} may not ask; --allow-origin lets it")
        if not self._config.tokens:
            # Else a page could name this machine by a name of its own (DNS rebinding).
            if not is_loopback(request.url.hostname or ""):
                return _refusal(403, "ask it by the name localhost or 127.0.0.1")
        elif not self._is_known(request.headers.get("authorization", "")):
            response = _refusal(401, "send a token: Authorization: Bearer TOKEN")
            response.headers["www-authenticate"] = "Bearer"
            return response
        return await call_next(request)

    def _is_known(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        # Every token is compared, in the same time whether it fits or not.
        found = [hmac.compare_digest(token.strip().encode(), known.encode()) for known in self._config.tokens]
        return scheme.lower() == "bearer" and any(found)

    async def encode(self, request: Request) -> Response:
        """Encrypt payloads."""
        return await self._answer(request, self._codec.encode)

    async def decode(self, request: Request) -> Response:
        """Decrypt payloads."""
        return await self._answer(request, self._codec.decode)

    async def _answer(
        self, request: Request, turn: Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
    ) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return _refusal(413, f"a request may have {MAX_BODY_BYTES} bytes")
        try:
            value: Any = json.loads(body)
            if not isinstance(value, dict):
                raise ValueError("no object")
            given = ParseDict(cast("dict[str, Any]", value), Payloads(), ignore_unknown_fields=True)
        except (ValueError, TypeError, AttributeError, ParseError, RecursionError):
            # Without the error's text, which may quote the body.
            return _refusal(400, 'send a JSON object of the form {"payloads": [{"metadata": {…}, "data": "…"}]}')
        answer = Payloads(payloads=await turn(list(given.payloads)))
        return _json(200, {"payloads": [], **MessageToDict(answer)})


def _refusal(status: int, message: str) -> Response:
    return _json(status, {"message": message})


def _json(status: int, value: dict[str, Any]) -> Response:
    return Response(
        json.dumps(value), status_code=status, media_type="application/json", headers={"cache-control": "no-store"}
    )
