"""Bodies that are cheap to send and dear to check: each is answered by little, soon, while others are served."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send
from temporalio.client import Client

from perdure.api.adk.schemas import MAX_FIRST_EVENTS
from perdure.api.app import create_app
from perdure.api.base.bodies import MAX_PLACES, count_values
from perdure.api.base.config import ApiConfig
from perdure.api.base.enums import MAX_PARTS
from perdure.api.base.guard import BodyLimit
from tests.api.auth_support import Keys

MOST_ANSWERED = 20_000
"""Bytes of an answer that says what is wrong."""

MOST_HELD = 3.0
"""Seconds for which the loop may be held, as an order of magnitude: such bodies held it for 12 to 105 s."""

JSON = {"content-type": "application/json"}
SESSIONS = "/apps/travel/users/ann/sessions"


def run_of(parts: bytes) -> bytes:
    return b'{"appName":"travel","userId":"ann","sessionId":"s","newMessage":{"parts":[' + parts + b"]}}"


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a million events that are none": (SESSIONS, lambda: b'{"events":[' + b"0," * 999_999 + b"0]}"),
    "as many as are looked at": (SESSIONS, lambda: b'{"events":[' + b"0," * (MAX_FIRST_EVENTS - 1) + b"0]}"),
    "one event more": (SESSIONS, lambda: b'{"events":[' + b"0," * MAX_FIRST_EVENTS + b"0]}"),
    "three million lists": (SESSIONS, lambda: b"[" + b"[]," * 3_000_000 + b"[]]"),
    "three million objects": (SESSIONS, lambda: b'{"state":{"a":[' + b"{}," * 3_000_000 + b"{}]}}"),
    "800,000 keys": (
        SESSIONS,
        lambda: b'{"state":{' + b",".join(b'"%d":0' % number for number in range(800_000)) + b"}}",
    ),
    "a million texts": (SESSIONS, lambda: b'{"state":{"a":[' + b'"",' * 1_000_000 + b'""]}}'),
    "texts without an end": (SESSIONS, lambda: b'{"state":' + b'"' * 9_000_000),
    "lists in what is no text": (SESSIONS, lambda: b'"\\"' + b"[]," * 2_000_000 + b'"'),
    "40,000 parts": ("/run", lambda: run_of(b"{}," * 40_000 + b"{}")),
    "parts that are none": ("/run", lambda: run_of(b"0," * (MAX_PARTS - 1) + b"0")),
    "UTF-16, in which others look for quotes": (
        SESSIONS,
        lambda: ('{"state":{"a":[' + '"∀",' * 400_000 + "0]}}").encode("utf-16"),
    ),
    "a long name": ("/run", lambda: b'{"newMessage":{"' + b"x" * 1_000_000 + b'":1}}'),
    "long names in a content": ("/run", lambda: run_of(b'{"' + b"y" * 500_000 + b'":1}')),
}


@pytest.fixture(scope="module")
async def app() -> FastAPI:
    """An API whose Temporal was never there: these requests end before it is asked."""
    return create_app(await Client.connect("127.0.0.1:1", lazy=True))


@pytest.fixture
async def http(app: FastAPI) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1", timeout=60
    ) as client:
        yield client


async def longest_hold(stop: asyncio.Event) -> float:
    """Return the longest time for which nobody else had a turn."""
    worst, before = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.01)
        worst, before = max(worst, time.monotonic() - before), time.monotonic()
    return worst


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_dear_to_check_is_refused_by_little_and_holds_nobody_up(
    name: str, http: httpx2.AsyncClient
) -> None:
    path, make = HOSTILE[name]
    body = make()
    done = asyncio.Event()
    holding = asyncio.create_task(longest_hold(done))
    answer = await http.post(path, content=body, headers=JSON)
    done.set()
    assert (answer.status_code, len(answer.content) < MOST_ANSWERED) == (422, True), answer.text[:500]
    assert len(answer.json()["detail"]) <= MAX_PLACES
    assert all(problem.keys() == {"type", "loc", "msg"} for problem in answer.json()["detail"])
    assert await holding < MOST_HELD


async def test_the_first_places_are_named_and_the_others_are_counted(http: httpx2.AsyncClient) -> None:
    body = b'{"events":[' + b"0," * 99 + b"0]}"
    told = (await http.post(SESSIONS, content=body, headers=JSON)).json()
    assert [problem["loc"] for problem in told["detail"]] == [["body", "events", number] for number in range(20)]
    assert told["more"] == 80


@pytest.mark.parametrize("secret", ["the-launch-code", "x" * 50_000])
async def test_what_was_sent_is_not_said_again(http: httpx2.AsyncClient, secret: str) -> None:
    for path, body in (
        ("/run", {"userId": {"a": secret}, "sessionId": [secret], "newMessage": {"parts": [{"text": {"a": secret}}]}}),
        (SESSIONS, {"state": secret}),
        (f"/v1{SESSIONS}/s/pending/c/answer", {"approve": secret, "response": 1}),
        (f"/v1{SESSIONS}/s/invocations", {"message": [secret]}),
    ):
        answer = await http.post(path, json=body)
        assert (answer.status_code, secret[:12] in answer.text) == (422, False), answer.text[:300]
    answer = await http.get(f"/v1{SESSIONS}/s/events", params={"since": secret})
    assert (answer.status_code, secret[:12] in answer.text) == (422, False)


async def test_a_long_text_is_no_attack(http: httpx2.AsyncClient) -> None:
    """Commas and brackets in a text are text: a table of figures in a message counts as one value."""
    text = "1,2,[3],{4}\n" * 100_000
    answer = await http.post(SESSIONS, json={"state": {"table": text}, "options": {"a": 1}})
    assert (answer.status_code, answer.json()["detail"]) == (400, "the options a are not supported")


JsonValue = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[{,é∀'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('k"\\,['), inner, max_size=4),
    max_leaves=30,
)


def values_in(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(values_in, value.values()))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] -- JSON
    if isinstance(value, list):
        return 1 + sum(map(values_in, value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] -- JSON
    return 1


@given(JsonValue, st.booleans())
def test_values_are_never_counted_too_low(value: object, ascii: bool) -> None:
    """Else a body could hold more than it may."""
    body = json.dumps(value, ensure_ascii=ascii).encode()
    true = values_in(value)
    assert (
        true <= count_values(body, true + 1000) or body.count(b",") + body.count(b"[") + body.count(b"{") < true + 1000
    )
    for most in (true - 1, true // 2):
        if most > 0:
            assert count_values(body, most) > most


async def test_bodies_that_do_not_fit_into_memory_together_are_put_off() -> None:
    """A thousand senders of 10 MB each would have 10 GB; there is room for twenty bodies of the largest size."""
    reading, go_on = 0, asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal reading
        await receive()
        reading += 1
        await go_on.wait()

    limit = BodyLimit(app, max_bytes=1000)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 1000, "more_body": False}

    async def send(message: Message) -> None:
        pass

    async def one() -> int:
        try:
            await limit({"type": "http", "path": "/run", "headers": []}, receive, send)
        except HTTPException as error:
            return error.status_code if error.headers == {"retry-after": "1"} else 0
        return 200

    requests = [asyncio.create_task(one()) for _ in range(100)]
    await asyncio.sleep(0.05)
    assert reading == 20
    go_on.set()
    assert sorted(await asyncio.gather(*requests)) == [200] * 20 + [503] * 80
    assert await one() == 200


async def test_whoever_is_not_known_yet_sends_little() -> None:
    """What is open to everybody takes a form, if anything."""
    client = await Client.connect("127.0.0.1:1", lazy=True)
    app = create_app(client, config=ApiConfig(auth=Keys().auth))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for path, status in (("/sign-in", 413), ("/sign%2Din", 413), (SESSIONS, 401)):
            answer = await http.post(path, data={"credential": "x" * 100_000}, headers={"origin": "http://127.0.0.1"})
            assert answer.status_code == status, path
