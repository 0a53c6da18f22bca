"""Signing in by a browser, where the server asks for a credential; here one that takes a single key."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx2
import pytest
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.client import Client

from perdure.api.app import create_app
from perdure.api.guard import EncodedPaths
from perdure.api.identity import SCOPE_KEY, Identity
from tests.api.pages.support import SAME_ORIGIN

KEY = "k.ey-1=="
INBOX = "/?app=nothing"

pytestmark = pytest.mark.server


class _Bouncer:
    """Lets in who has the key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get("authorization") != f"Bearer {KEY}":
            await PlainTextResponse("who are you?", 401)(scope, receive, send)
            return
        scope[SCOPE_KEY] = Identity("mia", frozenset({"approver"}))
        await self._app(scope, receive, send)


@pytest.fixture
async def http(client: Client) -> AsyncGenerator[httpx2.AsyncClient]:
    app = create_app(client)
    kinds: list[object] = [one.cls for one in app.user_middleware]
    inner = kinds.index(EncodedPaths)
    app.user_middleware.insert(inner, Middleware(_Bouncer))
    transport = httpx2.ASGITransport(app=app)
    headers = {"accept": "text/html"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
        yield http


async def sign_in(http: httpx2.AsyncClient, credential: str = KEY, **headers: str) -> httpx2.Response:
    return await http.post("/inbox/sign-in", data={"credential": credential}, headers=headers or SAME_ORIGIN)


async def test_who_has_no_credential_is_asked_for_it_and_signs_in_and_out(http: httpx2.AsyncClient) -> None:
    asked = await http.get(INBOX)
    assert asked.status_code == 401
    assert 'action="/inbox/sign-in"' in asked.text
    assert (await http.get("/inbox/static/inbox.css")).status_code == 200
    answer = await sign_in(http)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    page = await http.get(INBOX)
    assert page.status_code == 200
    assert "signed in as <strong>mia</strong>" in page.text
    assert 'action="/inbox/sign-out"' in page.text
    assert (await http.post("/inbox/sign-out", headers=SAME_ORIGIN)).status_code == 303
    assert (await http.get(INBOX)).status_code == 401


async def test_the_cookie_is_for_the_pages_alone(http: httpx2.AsyncClient) -> None:
    await sign_in(http)
    assert (await http.get("/list-apps")).status_code == 401
    assert (await http.get("/v1/apps/a/pending")).status_code == 401
    assert (await http.get("/inbox/../v1/apps/a/pending")).status_code == 401
    # A header counts before the cookie.
    assert (await http.get(INBOX, headers={"authorization": "Bearer other"})).status_code == 401


async def test_a_wrong_credential_is_asked_for_again(http: httpx2.AsyncClient) -> None:
    assert (await sign_in(http, "another")).status_code == 303
    asked = await http.get(INBOX)
    assert asked.status_code == 401
    assert "does not take this credential" in asked.text
    assert (await http.get(INBOX, headers={"accept": "*/*"})).text == "who are you?"


@pytest.mark.parametrize("credential", ["", "a b", "a;b", "a\r\nb", "é", "a" * 5000])
async def test_what_no_credential_can_be_is_refused(http: httpx2.AsyncClient, credential: str) -> None:
    answer = await sign_in(http, credential)
    assert answer.status_code == 422
    assert "set-cookie" not in answer.headers


async def test_nobody_is_signed_in_or_out_from_elsewhere(http: httpx2.AsyncClient) -> None:
    other = {"sec-fetch-site": "cross-site"}
    assert (await sign_in(http, **other)).status_code == 403
    assert (await http.post("/inbox/sign-out", headers=other)).status_code == 403
    assert (await http.put("/inbox/sign-in", headers=SAME_ORIGIN)).status_code == 405
    assert (await sign_in(http, "a" * 30_000)).status_code == 413
    secure = await sign_in(http, origin="https://127.0.0.1", host="127.0.0.1")
    assert "Secure" in secure.headers["set-cookie"]
