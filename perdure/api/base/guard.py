"""Middleware before the routes: hosts and origins, sizes of bodies, encoded paths, headers, the last resort."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.api.base.refusals import refusal
from perdure.api.base.statuses import INTERNAL, log_internal
from perdure.serving.sockets import is_loopback

_DEFAULT_PORTS = {"http": 80, "https": 443}
_REGEX = "regex:"

_SMALL = 64_000
"""Bytes of a small body."""

_BODIES = 20
"""Bodies of the largest size that there is room for at once."""


def split_origins(origins: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the origins that are meant literally, and one pattern of those that start with `regex:`.

    Raises:
        ValueError: One is no regular expression.
    """
    patterns = [origin.removeprefix(_REGEX) for origin in origins if origin.startswith(_REGEX)]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    literal = [origin.rstrip("/") for origin in origins if not origin.startswith(_REGEX)]
    return literal, "|".join(f"(?:{pattern})" for pattern in patterns) or None


class LastResort:
    """Answers an unforeseen error with a bare 500, and logs it without what it was about."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            # A server's own handler would log the error with its text, and with it what users sent.
            route = getattr(scope.get("route"), "path", "?")
            log_internal(error, method=scope.get("method"), route=route)
            if not started:
                await PlainTextResponse(INTERNAL, 500)(scope, receive, send)


class SafeHeaders:
    """Adds headers to every answer: browsers may not guess its type, nor show it in another page's frame."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("x-content-type-options", "nosniff")
                headers.setdefault("x-frame-options", "DENY")
            await send(message)

        await self._app(scope, receive, sending)


class Guard:
    """Refuses hosts and origins that are not allowed, as ADK does: 403, in plain text."""

    def __init__(self, app: ASGIApp, *, loopback: bool, allow_origins: Sequence[str]) -> None:
        """Allow the server's own origin, and these.

        Args:
            app: What is guarded.
            loopback: The host must be this machine, an IP address, or that of an allowed origin.
            allow_origins: As in `ApiConfig`.
        """
        self._app = app
        self._loopback = loopback
        self._origins, pattern = split_origins(allow_origins)
        self._pattern = re.compile(pattern) if pattern else None
        self._hosts = {urlsplit(origin).hostname for origin in self._origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            reason = self._refusal(headers.get("host", ""), headers.getlist("origin"))
            if reason is not None:
                await PlainTextResponse(f"Forbidden: {reason} not allowed", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, host: str, origins: list[str]) -> str | None:
        if self._loopback and not self._is_known(host):
            return "host"
        return None if all(self._is_allowed(origin, host) for origin in origins) else "origin"

    def _is_known(self, host: str) -> bool:
        name = _split(f"//{host}")[0]
        return name is not None and (is_loopback(name) or name in self._hosts or _is_address(name))

    def _is_allowed(self, origin: str, host: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        if self._pattern is not None and self._pattern.fullmatch(origin):
            return True
        return is_own(origin, host)


def is_own(origin: str, host: str) -> bool:
    """Return whether a page's origin is that of the server which it addressed by this `Host`."""
    scheme, _, _ = origin.partition("://")
    name, port = _split(origin)
    own_name, own_port = _split(f"//{host}")
    default = _DEFAULT_PORTS.get(scheme)
    return default is not None and name is not None and (name, port or default) == (own_name, own_port or default)


def _is_address(name: str) -> bool:
    """Return whether a host is an IP address, which no page can rebind; probes name a server so."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _split(url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port
    except ValueError:
        return None, None


class BodyLimit:
    """Refuses a body that is too large with 413, without reading it to its end; and more of them than fit into memory.

    Whoever is not known yet needs no large one: the paths that are open to everybody take a form, if anything.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, small: Collection[str] = ()) -> None:
        """Limit bodies.

        Args:
            app: What is guarded.
            max_bytes: What a body may have.
            small: Paths whose bodies are small.
        """
        self._app = app
        self._max = max_bytes
        self._small = small
        self._held = 0
        """Bytes of all the bodies of requests that are at work."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what comes in."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = min(self._max, _SMALL) if scope["path"] in self._small else self._max
        too_large = f"the body has more than the {most} bytes that a request may have"
        said = Headers(scope=scope).get("content-length", "")
        if said.isdigit() and int(said[:20]) > most:
            await refusal(413, too_large)(scope, receive, send)
            return
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            size = len(message.get("body", b""))
            read += size
            self._held += size
            if read > most:
                raise HTTPException(413, too_large)
            if self._held > _BODIES * self._max:
                raise HTTPException(503, "the server has no room for more bodies now; try again", {"retry-after": "1"})
            return message

        try:
            await self._app(scope, counting, send)
        finally:
            self._held -= read


class EncodedPaths:
    """Gives each part of a path percent-encoded to the routes, so that a slash in an id stays in it.

    Servers decode paths before they are routed: `users/a%2Fsessions%2Fb` would be user `a`, session `b`.
    """

    def __init__(self, app: ASGIApp, *, default_app: str | None) -> None:
        self._app = app
        self._default = default_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its encoded path."""
        if scope["type"] == "http":
            try:
                # In place, so that whoever stands outside sees the route that was found.
                scope["path"] = self._path(scope)
            except UnicodeError:
                await refusal(400, "the path is no UTF-8")(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _path(self, scope: Scope) -> str:
        raw: Any = scope.get("raw_path")
        encoded = raw.decode("ascii") if raw else quote(scope["path"])
        path = "/".join(quote(unquote(part, errors="strict"), safe="") for part in encoded.split("/"))
        if self._default is not None and (path == "/app-info" or path.startswith("/users/")):
            return f"/apps/{self._default}{path}"
        return path
