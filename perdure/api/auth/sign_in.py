"""Signs in browsers, which send no header of their own: a form takes a key or a token, and gives a cookie for it."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Form, Header, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from perdure.api.auth.authenticator import COOKIE, Refused
from perdure.api.auth.identity import Identity, IdentityOf
from perdure.api.auth.middleware import SIGN_IN, SIGN_OUT
from perdure.api.auth.tokens import KeysUnavailable
from perdure.api.auth.watch import AuthWatch
from perdure.logs import get_logger

_HOME = "/"
_MOST_COOKIE = 4000
"""Bytes; browsers drop what has more."""

_WRONG = "This key or token is not valid here, or has expired."
_LATER = "Tokens cannot be checked now: their issuer does not answer. Try again."
_LONG = "The token names too much to fit into a cookie. Use an API key."

_pages = Environment(loader=PackageLoader("perdure.api"), autoescape=True, undefined=StrictUndefined)
_logger = get_logger("perdure.api")

router = APIRouter(include_in_schema=False)


@router.get(SIGN_IN)
async def show_sign_in(identity: IdentityOf, next_: Annotated[str, Query(alias="next")] = _HOME) -> Response:
    """Show the form, or who is signed in."""
    return _page(200, local_path(next_), identity)


@router.post(SIGN_IN)
async def sign_in(
    request: Request,
    credential: Annotated[str, Form()],
    next_: Annotated[str, Form(alias="next")] = _HOME,
    origin: Annotated[str | None, Header()] = None,
) -> Response:
    """Take a key or a token, and give a cookie for it."""
    watch: AuthWatch = request.app.state.auth_watch
    authenticator = await watch.current()
    wanted = local_path(next_)
    try:
        known = await authenticator.check(credential.strip())
    except Refused as error:
        _logger.info("a sign-in was refused", reason=str(error))
        return _page(401, wanted, wrong=_WRONG)
    except KeysUnavailable:
        return _page(503, wanted, wrong=_LATER)
    value, lasts = authenticator.cookie(known)
    if len(value) > _MOST_COOKIE:
        return _page(400, wanted, wrong=_LONG)
    _logger.info("signed in", user=known.identity.subject, key=known.key_id)
    answer = RedirectResponse(wanted, 303)
    # Where TLS ends before this server, only the browser knows of it, and says so.
    secure = (origin or "").startswith("https://") or request.url.scheme == "https"
    answer.set_cookie(COOKIE, value, max_age=lasts, path="/", secure=secure, httponly=True, samesite="strict")
    return answer


@router.post(SIGN_OUT)
async def sign_out() -> Response:
    """Take the cookie back."""
    answer = RedirectResponse(SIGN_IN, 303)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def local_path(wanted: str) -> str:
    """Return where to go after a sign-in: a path of this server, and nothing that a browser reads as another's."""
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted
    is_local = wanted.startswith("/") and not wanted.startswith("//")
    return wanted if plain and is_local else _HOME


def _page(status: int, wanted: str, identity: Identity | None = None, *, wrong: str | None = None) -> Response:
    nonce = secrets.token_urlsafe(16)
    text = _pages.get_template("sign_in.html").render(
        nonce=nonce,
        next=wanted,
        wrong=wrong,
        subject=identity.subject if identity is not None else None,
        roles=sorted(identity.roles) if identity is not None else [],
    )
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "referrer-policy": "same-origin"}
    return HTMLResponse(text, status, headers)
