"""Who may call the API, how much they may send, and what errors show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure import errors
from perdure.api.app import create_app
from perdure.api.base.config import ApiConfig
from perdure.api.base.statuses import STATUSES, error_frame, status_and_detail
from perdure.errors import InvocationFailed, PerdureError, RequestRefused, SessionStuck
from tests.api.support import Api, Obedient, frames_of, obedient_app, served
from tests.workflows.support import serving

SECRET = "sk-very-secret"

server = pytest.mark.server


def client_of(app: FastAPI, base_url: str = "http://127.0.0.1:8000") -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=base_url)


@pytest.fixture(scope="module")
async def lazy() -> Client:
    """A client that has never connected; these requests end before Temporal is asked."""
    return await Client.connect("127.0.0.1:1", lazy=True)


async def status(app: FastAPI, host: str, origin: str | None = None, method: str = "GET") -> tuple[int, str]:
    headers = {"host": host} | ({"origin": origin} if origin else {})
    async with client_of(app) as http:
        answer = await http.request(method, "/health", headers=headers)
    return answer.status_code, answer.text


OK = '{"status":"ok"}'
BAD_HOST = (403, "Forbidden: host not allowed")
BAD_ORIGIN = (403, "Forbidden: origin not allowed")


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST", "10.0.0.1"])
async def test_this_machine_may_be_named_in_any_way(lazy: Client, host: str) -> None:
    assert await status(create_app(lazy), host) == (200, OK)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "[::1", "0", "10.0.0.1.evil.example"]
)
async def test_a_name_that_was_rebound_to_this_machine_is_refused(lazy: Client, host: str) -> None:
    assert await status(create_app(lazy), host) == BAD_HOST


async def test_a_server_for_others_takes_any_host(lazy: Client) -> None:
    assert await status(create_app(lazy, config=ApiConfig(loopback=False)), "api.example") == (200, OK)


@pytest.mark.parametrize("origin", ["http://localhost:8000", "http://LOCALHOST:8000"])
async def test_a_page_of_the_servers_own_may_call_it(lazy: Client, origin: str) -> None:
    assert await status(create_app(lazy), "localhost:8000", origin.lower()) == (200, OK)
    assert await status(create_app(lazy), "localhost", "http://localhost:80") == (200, OK)


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:8000", "file://", "http://[", "x"],
)
async def test_other_pages_may_not(lazy: Client, origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert await status(create_app(lazy), "localhost:8000", origin, method) == BAD_ORIGIN


async def test_pages_that_were_allowed_may_and_browsers_are_told_so(lazy: Client) -> None:
    app = create_app(lazy, config=ApiConfig(allow_origins=("https://shop.example", r"regex:https://\w+\.test")))
    assert await status(app, "shop.example", "https://shop.example") == (200, OK)
    assert await status(app, "localhost:8000", "https://a.test") == (200, OK)
    assert await status(app, "localhost:8000", "https://a.test.evil.example") == BAD_ORIGIN
    async with client_of(app) as http:
        asked = {"origin": "https://a.test", "access-control-request-method": "POST"}
        answer = await http.options("/run_sse", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://a.test")
    everyone = create_app(lazy, config=ApiConfig(allow_origins=("*",)))
    assert await status(everyone, "localhost:8000", "https://evil.example") == (200, OK)


def test_an_origin_that_is_no_expression_is_explained(lazy: Client) -> None:
    with pytest.raises(ValueError, match="is no regular expression"):
        create_app(lazy, config=ApiConfig(allow_origins=("regex:(",)))


async def test_a_body_that_is_too_large_is_413(lazy: Client) -> None:
    """Whether it says so or comes piece by piece."""
    app = create_app(lazy, config=ApiConfig(max_body_bytes=1000))

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with client_of(app) as http:
        for content in (b"x" * 1001, pieces()):
            answer = await http.post("/run", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 413
            assert answer.json()["type"] == "docs/http.md#errors"
            assert answer.json() == answer.json() | {
                "detail": "the body has more than the 1000 bytes that a request may have"
            }
        answer = await http.post("/run", content=b" " * 990 + b"{}", headers={"content-type": "application/json"})
        assert answer.status_code == 422


async def test_an_internal_error_shows_nothing_and_logs_nothing_of_what_was_sent(
    lazy: Client, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(lazy)

    @app.get("/broken/{what}")
    async def broken(what: str) -> None:
        raise KeyError(what)

    async with client_of(app) as http:
        answer = await http.get(f"/broken/{SECRET}")
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    [record] = [vars(record) for record in caplog.records if record.levelname == "ERROR"]
    assert (record["error"], record["route"], record["method"]) == ("KeyError", "/broken/{what}", "GET")
    assert record["where"].startswith("test_guard.py:")
    assert SECRET not in str(record)


async def test_a_refusal_that_nobody_foresaw_is_an_internal_error(lazy: Client) -> None:
    app = create_app(lazy)

    @app.get("/broken")
    async def broken() -> None:
        raise PerdureError(SECRET)

    async with client_of(app) as http:
        answer = await http.get("/broken")
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")


def test_every_refusal_has_a_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RequestRefused)]
    assert [kind for kind in kinds if not 400 <= STATUSES.get(kind, 0) < 504] == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RPCError("x", RPCStatusCode.UNAVAILABLE, b""), 503),
        (RPCError("x", RPCStatusCode.INVALID_ARGUMENT, b""), 400),
        (RPCError("x", RPCStatusCode.INTERNAL, b""), None),
        (SessionStuck("s", cause=SECRET, nondeterministic=True), 503),
        (TimeoutError(SECRET), 503),
        (ValueError(SECRET), None),
    ],
)
def test_what_is_for_the_operator_is_not_told(error: Exception, status: int | None) -> None:
    known = status_and_detail(error)
    assert (known[0] if known else None) == status
    assert SECRET not in str(known)
    assert SECRET not in str(error_frame(error))


def test_a_stream_that_fails_says_so_in_adks_form() -> None:
    frame = error_frame(InvocationFailed("e-1", agent="a", step="model", cause="it broke", resumable=True))
    text = "agent 'a' failed in step 'model': it broke; resume it with its invocation id 'e-1'"
    assert frame["error"] == f"InvocationFailed: {text}"
    assert frame["error_details"] == {
        "error_type": "InvocationFailed",
        "error_message": text,
        "timestamp": frame["error_details"]["timestamp"],
    }
    assert error_frame(ValueError(SECRET))["error"] == "InternalError: Internal Server Error"


@pytest.fixture
async def ending(client: Client, app_name: str) -> AsyncGenerator[tuple[Api, asyncio.Event]]:
    model = Obedient()
    app = obedient_app(app_name, model)
    stop = asyncio.Event()
    async with serving(client, app), served(client, app, model, stop=stop) as api:
        yield api, stop


@server
async def test_a_server_that_ends_tells_those_who_follow(ending: tuple[Api, asyncio.Event]) -> None:
    api, stop = ending
    session = await api.create()
    words = f"wait {session}"
    streamed = asyncio.create_task(api.http.post("/run_sse", json=api.body(session, words)))
    await api.model.gate(words).reached()
    waited = asyncio.create_task(api.http.post("/run", json=api.body(await api.create(), f"{words} too")))
    await api.model.gate(f"{words} too").reached()
    stop.set()
    [frame] = frames_of((await streamed).text)
    assert frame["error"] == "ServerEnding: the server ends; the run goes on, and its events are in the session"
    answer = await waited
    assert (answer.status_code, "the run goes on" in answer.json()["detail"]) == (503, True)
    api.model.gate(words).open()
    api.model.gate(f"{words} too").open()
    [invocation] = (await api.user(session).view()).invocations
    assert (await api.user(session).settled(invocation.id)).status == "finished"
