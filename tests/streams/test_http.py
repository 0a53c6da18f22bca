"""Tokens over HTTP: `/run_sse` with `streaming`, and `/v1`'s stream with `partial`; one process, and two hubs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from temporalio.client import Client

from perdure.api.app import create_app
from perdure.errors import SessionNotFound
from perdure.serving.http_server import serve
from perdure.serving.sockets import listen, url_of
from perdure.streams.hub import TokenHub
from perdure.streams.partials import ATTEMPT
from perdure.streams.remote import StreamClient
from perdure.streams.server import StreamServer
from tests.streams.support import Typist, streaming
from tests.workflows.support import User, agent, eventually, make_app

pytestmark = pytest.mark.server

Json = dict[str, Any]


@asynccontextmanager
async def served(client: Client, hub: TokenHub) -> AsyncGenerator[httpx2.AsyncClient]:
    """Serve the API, which hears what a hub hears."""
    stop = asyncio.Event()
    listener = listen("127.0.0.1", 0)
    api = create_app(client, streams=hub)
    serving = asyncio.create_task(serve(api, listener, stop, closing=api.state.backend.closing))
    try:
        async with httpx2.AsyncClient(base_url=url_of(listener), timeout=30, trust_env=False) as http:
            yield http
    finally:
        stop.set()
        await serving


def body(user: User, **fields: Any) -> Json:
    who = {"appName": user.app, "userId": "u", "sessionId": "s"}
    return {**who, "newMessage": {"parts": [{"text": "go"}]}, **fields}


async def frames(lines: AsyncIterator[str]) -> AsyncGenerator[tuple[str | None, Json]]:
    """Yield the id and the data of each frame."""
    id: str | None = None
    async for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            id = value
        elif name == "data":
            yield id, json.loads(value)
            id = None


def said(event: Json) -> str:
    text = "".join(part.get("text", "") for part in event.get("content", {}).get("parts", []))
    return f"[{text}]" if event.get("partial") else text


async def test_run_sse_streams_tokens_as_adk_does(client: Client, app_name: str) -> None:
    model, hub = Typist("Oslo is fine"), TokenHub()
    async with streaming(client, make_app(app_name, agent("clerk", model)), hub) as user, served(client, hub) as http:
        await user.create()
        found: list[Json] = []
        async with http.stream("POST", "/run_sse", json=body(user, streaming=True)) as stream:
            incoming = frames(stream.aiter_lines())
            for _ in range(3):
                model.let()
                found.append((await anext(incoming))[1])
            found += [event async for _, event in incoming]
        assert [said(event) for event in found] == ["[Oslo]", "[ is]", "[ fine]", "Oslo is fine", ""]
        assert len({event["id"] for event in found[:4]}) == 1
        assert found[0]["partial"] is True
        assert found[0]["customMetadata"] == {ATTEMPT: 1}
        assert found[0]["author"] == "clerk"
        assert found[0]["invocationId"] == found[3]["invocationId"]
        stored = (await http.get(f"/apps/{app_name}/users/u/sessions/s")).json()["events"]
        assert stored[1:] == found[3:]
        assert "partial" not in stored[1]
        # What nobody asked to be streamed is not.
        model.lines = ("", "again", "and again")
        [whole, _] = (await http.post("/run", json=body(user, streaming=True))).json()
        assert said(whole) == "again"
        text = (await http.post("/run_sse", json=body(user))).text
        assert "partial" not in text
        assert "and again" in text
        assert model.streamed == [True, False, False]


async def test_a_client_that_leaves_stops_nothing_and_can_attach_in_the_middle(client: Client, app_name: str) -> None:
    """Frames of partial events have no id, so one who comes back asks for what the log has and he has not."""
    model, hub = Typist("Oslo is fine"), TokenHub()
    path = f"/v1/apps/{app_name}/users/u/sessions/s/events/stream"
    async with streaming(client, make_app(app_name, agent("clerk", model)), hub) as user, served(client, hub) as http:
        await user.create()
        model.let(2)
        async with http.stream("POST", "/run_sse", json=body(user, streaming=True)) as stream:
            incoming = frames(stream.aiter_lines())
            text = ""
            while text != "Oslo is":
                text += said((await anext(incoming))[1]).strip("[]")
            async with http.stream("GET", path, params={"partial": "true"}) as attached:
                seen = frames(attached.aiter_lines())
                first = [await anext(seen), await anext(seen)]
                assert [(id, said(event)) for id, event in first] == [("1", "go"), (None, "[Oslo is]")]
        async with http.stream("GET", path, headers={"last-event-id": "1"}, params={"partial": "true"}) as attached:
            seen = frames(attached.aiter_lines())
            assert [(id, said(event)) for id, event in [await anext(seen)]] == [(None, "[Oslo is]")]
            model.let()
            rest = [await anext(seen) for _ in range(3)]
        assert [(id, said(event)) for id, event in rest] == [(None, "[ fine]"), ("2", "Oslo is fine"), ("3", "")]
        async with http.stream("GET", path) as attached:
            seen = frames(attached.aiter_lines())
            assert [id for id, _ in [await anext(seen) for _ in range(3)]] == ["1", "2", "3"]
        await eventually(lambda: user.key not in hub.wanted())


async def test_an_api_in_another_process_hears_of_its_workers(client: Client, app_name: str) -> None:
    """Two hubs and a connection, as between processes; the API begins to serve before there is a worker."""
    workers, apis = TokenHub(), TokenHub()
    model = Typist("one two three", held=False)
    key = "a key of some length"
    async with (
        StreamServer(workers, key=key) as server,
        StreamClient(apis, [server.address], key=key) as hearing,
        served(client, apis) as http,
        streaming(client, make_app(app_name, agent("clerk", model)), workers) as user,
    ):
        await user.create()
        assert await hearing.connects(10)
        answer = await http.post("/run_sse", json=body(user, streaming=True))
        found = [event async for _, event in frames(_each(answer.text.splitlines()))]
    partial = [event for event in found if event.get("partial")]
    assert "".join(said(event).strip("[]") for event in partial) == "one two three"
    assert {event["id"] for event in partial} == {found[len(partial)]["id"]}


async def _each(lines: list[str]) -> AsyncGenerator[str]:
    for line in lines:
        yield line


async def test_a_session_that_is_not_there_is_not_wanted_of_workers(client: Client, app_name: str) -> None:
    hub = TokenHub()
    async with (
        streaming(client, make_app(app_name, agent("clerk", Typist())), hub) as user,
        served(client, hub) as http,
    ):
        assert (await http.post("/run_sse", json=body(user, streaming=True))).status_code == 404
        assert hub.wanted() == set()
        with pytest.raises(SessionNotFound):
            await anext(user.runner.run_async(user_id="u", session_id="s", new_message="go", streaming=True))
        assert hub.wanted() == set()


async def test_followers_see_nothing_of_another_users_tokens(client: Client, app_name: str) -> None:
    """Two users of one session id; and whoever asks for a session that he has not gets 404, and no stream."""
    model, hub = Typist("secret words"), TokenHub()
    async with streaming(client, make_app(app_name, agent("clerk", model)), hub) as user, served(client, hub) as http:
        await user.create()
        other = user.other(user_id="eve")
        await other.create()
        path = f"/v1/apps/{app_name}/users/eve/sessions/s/events/stream"
        async with http.stream("GET", path, params={"partial": "true"}) as stream:
            eavesdropping = asyncio.ensure_future(anext(stream.aiter_lines()))
            model.let(2)
            answer = await http.post("/run_sse", json=body(user, streaming=True))
            assert "secret" in answer.text
            assert not eavesdropping.done()
            eavesdropping.cancel()
            await asyncio.wait({eavesdropping})
        missing = f"/v1/apps/{app_name}/users/mallory/sessions/s/events/stream?partial=true"
        assert (await http.get(missing)).status_code == 404
