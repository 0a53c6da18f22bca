"""Lets people sign in where the server asks for credentials: a browser's page cannot send a header, but a cookie.

The cookie holds the credential itself, and becomes the header that programs send, for the pages alone: the API takes no
cookies, so no other site's page can use it there.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.api.pages.rendering import error_page, page, static_file
from perdure.api.pages.safety import check_same_origin, read_form

_COOKIE = "perdure_credential"
_SIGN_IN, _SIGN_OUT = "/inbox/sign-in", "/inbox/sign-out"
_STATIC = "/inbox/static/"
_SIGNED_IN = "perdure.signed_in"
_MAX_BODY = 20_000

_CREDENTIAL = re.compile(r"[A-Za-z0-9._~+/-]{1,3800}=*")
"""What a bearer token is made of (RFC 6750), as long as a cookie may be."""


class BrowserSignIn:
    """Turns the cookie into the header on its way to the pages, and a refusal into a form to sign in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http" or not _is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path in (_SIGN_IN, _SIGN_OUT) or path.startswith(_STATIC):
            # Whoever is to sign in has no credential yet.
            await (await _own(Request(scope, receive)))(scope, receive, send)
            return
        cookie = _credential(Request(scope))
        if cookie is not None and "authorization" not in Headers(scope=scope):
            scope[_SIGNED_IN] = True
            MutableHeaders(scope=scope)["authorization"] = f"Bearer {cookie}"
        await self._app(scope, receive, _asking(scope, receive, send, refused=cookie is not None))


def _asking(scope: Scope, receive: Receive, send: Send, *, refused: bool) -> Send:
    """Return what sends an answer on, but for a refusal to a person sends the form."""
    wants_page = "text/html" in Headers(scope=scope).get("accept", "")
    asked = False

    async def sending(message: Message) -> None:
        nonlocal asked
        if message["type"] == "http.response.start" and message["status"] == 401 and wants_page:
            asked = True
            problem = "The server does not take this credential any more, or never did." if refused else None
            await _form(problem, 401)(scope, receive, send)
        elif not asked:
            await send(message)

    return sending


async def _own(request: Request) -> Response:
    """Answer what this middleware answers by itself."""
    path = request.url.path
    try:
        if path.startswith(_STATIC) and request.method == "GET":
            return static_file(path.removeprefix(_STATIC))
        if request.method == "GET":
            return _form(None)
        if request.method != "POST":
            return error_page(405, "send the form")
        check_same_origin(request)
        return _signed_out() if path == _SIGN_OUT else await _signed_in(request)
    except HTTPException as error:
        return error_page(error.status_code, str(error.detail))


async def _signed_in(request: Request) -> Response:
    size = request.headers.get("content-length", "")
    if not size.isdigit() or int(size) > _MAX_BODY:
        raise HTTPException(413, "that is no credential: it is too long")
    credential = (await read_form(request)).get("credential", "").strip()
    if not _CREDENTIAL.fullmatch(credential):
        return _form("A credential has letters, digits and a few signs, such as . - and _, and no spaces.", 422)
    answer = RedirectResponse("/", 303)
    # Lax, so that links from elsewhere find people signed in; forms from elsewhere are refused anyway.
    secure = request.headers.get("origin", "").startswith("https://")
    answer.set_cookie(_COOKIE, credential, httponly=True, samesite="lax", secure=secure)
    return answer


def _signed_out() -> Response:
    answer = RedirectResponse(_SIGN_IN, 303)
    answer.delete_cookie(_COOKIE, httponly=True, samesite="lax")
    return answer


def _form(problem: str | None, status: int = 200) -> Response:
    return page("sign_in.html", status, problem=problem)


def _is_page(path: str) -> bool:
    return path == "/" or path.startswith("/inbox/")


def _credential(request: Request) -> str | None:
    found = request.cookies.get(_COOKIE, "")
    return found if _CREDENTIAL.fullmatch(found) else None


def _by_cookie(request: Request) -> bool:
    return bool(request.scope.get(_SIGNED_IN))


SignedIn = Annotated[bool, Depends(_by_cookie)]
"""Whether somebody has signed in by the form, and so can sign out."""
