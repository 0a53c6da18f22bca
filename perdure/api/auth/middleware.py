"""Refuses requests of unknown senders, and gives the others their `Identity`."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.api.auth.authenticator import Known, Refused
from perdure.api.auth.identity import NOBODY, SCOPE_KEY
from perdure.api.auth.standing import STANDING_KEY, CredentialStanding
from perdure.api.auth.tokens import KeysUnavailable
from perdure.api.auth.watch import AuthWatch
from perdure.api.base.refusals import refusal
from perdure.logs import get_logger

__all__ = ["OPEN_PATHS", "SIGN_IN", "SIGN_OUT", "Authentication", "SignedIn"]

SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/version", SIGN_IN, SIGN_OUT})
"""Paths that need no credential. What stands here must show nothing of any session."""

_CHALLENGE = 'Bearer realm="perdure"'
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BROWSER_DOUBT = "a browser's sign-in takes this from pages of its own only: the request has no Origin header"

SIGNED_IN_KEY = "perdure.signed_in"
"""Where in an ASGI scope it stands that a browser has signed in, and so can sign out."""

_AGAIN = '<!doctype html><meta http-equiv="refresh" content="0"><title>Perdure</title>'
"""Asks again, from a page of this server: then a browser sends the strict cookie, too."""

_logger = get_logger("perdure.api")


class Authentication:
    """Answers 401 where nobody is known, else puts the `Identity` into the scope. Stands behind `EncodedPaths`."""

    def __init__(self, app: ASGIApp, *, watch: AuthWatch) -> None:
        self._app = app
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (answer := await self._refusal(scope)) is not None:
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, _unstored(send))

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        is_open = scope["path"] in OPEN_PATHS
        authenticator = await self._watch.current()
        try:
            known = await authenticator.identify(headers)
        except (Refused, KeysUnavailable) as error:
            if is_open:
                scope[SCOPE_KEY] = NOBODY
                return None
            return _unknown(error, scope, headers)
        if not is_open and _may_be_forged(known, scope, headers):
            return refusal(403, _BROWSER_DOUBT)
        scope[SCOPE_KEY] = known.identity
        scope[STANDING_KEY] = CredentialStanding(self._watch, authenticator, headers, known)
        scope[SIGNED_IN_KEY] = known.by_cookie
        return None


def _signed_in(request: Request) -> bool:
    return bool(request.scope.get(SIGNED_IN_KEY))


SignedIn = Annotated[bool, Depends(_signed_in)]
"""Whether a browser has signed in, and so can sign out."""


def _may_be_forged(known: Known, scope: Scope, headers: Headers) -> bool:
    """Return whether another page could have made a browser send this. An `Origin` was checked before."""
    if not known.by_cookie or scope["method"] in _SAFE_METHODS:
        return False
    return "origin" not in headers and headers.get("sec-fetch-site") != "same-origin"


def _unknown(error: Refused | KeysUnavailable, scope: Scope, headers: Headers) -> Response:
    if isinstance(error, KeysUnavailable):
        return refusal(503, "the token cannot be checked now: its issuer's keys cannot be fetched")
    if scope["method"] == "GET" and "authorization" not in headers and "text/html" in headers.get("accept", ""):
        if headers.get("sec-fetch-site") == "cross-site":
            # Whoever follows a link from elsewhere may be signed in all the same.
            return HTMLResponse(_AGAIN, 200, {"cache-control": "no-store"})
        query = scope["query_string"].decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"{SIGN_IN}?next={quote(wanted, safe='')}", 303)
    if error.given:
        _logger.info("a credential was refused", reason=str(error))
    challenge = f'{_CHALLENGE}, error="invalid_token"' if error.given else _CHALLENGE
    return refusal(401, str(error), {"www-authenticate": challenge})


def _unstored(send: Send) -> Send:
    """Say of every answer that nobody may keep it, unless it says something else."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            headers: Any = MutableHeaders(scope=message)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending
