"""Perdure's own resources under `/v1`."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from perdure.api.v1 import events as v1_events
from perdure.journal.events import Event
from perdure.sessions.follower import Follower as LogFollower
from tests.api.support import Api, Obedient, call_of, obedient_app, served, texts
from tests.workflows.support import serving

pytestmark = pytest.mark.server

Json = Any


def base(api: Api, session: str, user: str = "ann") -> str:
    return f"/v1{api.path(session, user)}"


async def get(api: Api, path: str, **query: Any) -> Json:
    answer = await api.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


class Follower:
    """A client of a stream; it knows how far it came."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last_id = ""

    async def next(self) -> dict[str, Json]:
        """Return the next event's JSON, after a check of the frame."""
        frame: list[str] = []
        async with asyncio.timeout(20):
            while line := await anext(self._lines):
                frame.append(line)
        assert [line.partition(": ")[0] for line in frame] == ["id", "data"]
        self.last_id = frame[0].removeprefix("id: ")
        return json.loads(frame[1].removeprefix("data: "))

    async def comment(self) -> str:
        async with asyncio.timeout(20):
            while not (line := await anext(self._lines)).startswith(":"):
                pass
        return line


@asynccontextmanager
async def attached(api: Api, session: str, *, last_id: str = "", **query: Any) -> AsyncGenerator[Follower]:
    headers = {"last-event-id": last_id} if last_id else {}
    path = f"{base(api, session)}/events/stream"
    async with api.http.stream("GET", path, params=query, headers=headers) as stream:
        assert (stream.status_code, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        yield Follower(stream.aiter_lines())


async def test_invocations_are_listed_with_what_they_wait_for(api: Api) -> None:
    session = await api.create()
    await api.ran(session, "hello")
    call_id, invocation = call_of(await api.ran(session, "ask"))
    found = await get(api, f"{base(api, session)}/invocations")
    assert (found["status"], found["total"]) == ("waiting", 2)
    assert [one["status"] for one in found["invocations"]] == ["finished", "waiting"]
    one = await get(api, f"{base(api, session)}/invocations/{invocation}")
    assert one == found["invocations"][1]
    [call] = one["pending"]
    assert (call["id"], call["name"], call["args"], call["agent"]) == (call_id, "approve", {"sum": 12}, "clerk")
    assert (call["invocationId"], call["since"] > 1e9) == (invocation, True)


async def test_an_invocation_is_stopped_and_resumed(api: Api) -> None:
    session = await api.create()
    _, invocation = call_of(await api.ran(session, "ask"))
    one = f"{base(api, session)}/invocations/{invocation}"
    stopped = await api.http.post(f"{one}/stop", json={"reason": "lunch"})
    assert stopped.status_code == 200, stopped.text
    told = stopped.json()["invocation"]
    assert (told["status"], told["reason"], told["resumable"]) == ("stopped", "lunch", True)
    resumed = await api.http.post(f"{one}/resume")
    assert (resumed.status_code, resumed.json()["offset"]) == (200, 3)
    assert (await api.user(session).settled(invocation)).status == "waiting"
    assert (await api.http.post(f"{one}/stop")).status_code == 200


async def test_a_failure_is_told(api: Api) -> None:
    session = await api.create()
    await api.run(session, f"fail {session}")
    [one] = (await get(api, f"{base(api, session)}/invocations"))["invocations"]
    assert one["failures"] == [{"agent": "clerk", "step": "model", "cause": "the model is out of order"}]
    assert (one["status"], one["resumable"]) == ("failed", True)


async def test_what_waits_is_listed_over_all_sessions_and_answered_once(api: Api) -> None:
    """An answer that is repeated with its key is told the same; another key's is refused."""
    session = await api.create()
    call_id, invocation = call_of(await api.ran(session, "ask"))
    [call] = (await get(api, f"{base(api, session)}/pending"))["calls"]
    assert (call["id"], call["userId"], call["sessionId"]) == (call_id, "ann", session)
    assert call in (await get(api, f"/v1/apps/{api.app}/pending", userId="ann"))["calls"]
    assert (await get(api, f"/v1/apps/{api.app}/pending", userId="nobody"))["calls"] == []
    path = f"{base(api, session)}/pending/{call_id}/answer"
    body = {"response": {"ok": True}, "metadata": {"by": "bob"}}
    for _ in range(2):
        answer = await api.http.post(path, json=body, headers={"Idempotency-Key": "k-1"})
        assert (answer.status_code, answer.json()["invocation"]["id"]) == (200, invocation), answer.text
    answer = await api.http.post(path, json=body, headers={"Idempotency-Key": "k-2"})
    assert (answer.status_code, "answered already" in answer.json()["detail"]) == (409, True)
    assert (await api.user(session).settled(invocation)).status == "finished"
    events = (await api.session(session))["events"]
    [asked, told] = [event.get("customMetadata") for event in events if event["author"] == "user"]
    assert (asked, told["by"], told["perdure:answer"]["who"]) == (None, "bob", None)
    assert (await get(api, f"{base(api, session)}/pending"))["calls"] == []


@pytest.mark.parametrize("value", [True, None, [1], "yes", 0])
async def test_any_value_is_an_answer(api: Api, value: Any) -> None:
    session = await api.create()
    call_id, invocation = call_of(await api.ran(session, "ask"))
    answer = await api.http.post(f"{base(api, session)}/pending/{call_id}/answer", json={"response": value})
    assert answer.status_code == 200
    await api.user(session).settled(invocation)
    assert texts((await api.session(session))["events"])[-1] == f"clerk: answered: {json.dumps({'result': value})}"


async def test_the_log_is_read_by_page(api: Api) -> None:
    session = await api.create()
    await api.ran(session, "hello")
    events = (await api.session(session))["events"]
    path = f"{base(api, session)}/events"
    assert await get(api, path) == {"events": events, "next": 3, "total": 3, "kept": []}
    assert await get(api, path, since=1, limit=1) == {"events": events[1:2], "next": 2, "total": 3, "kept": []}
    assert await get(api, path, since=3) == {"events": [], "next": 3, "total": 3, "kept": []}
    assert await get(api, path, since=9) == {"events": [], "next": 9, "total": 3, "kept": []}
    for query in ({"since": -1}, {"limit": 0}, {"limit": 1001}, {"since": "x"}):
        assert (await api.http.get(path, params=query)).status_code == 422


async def test_a_client_that_lost_its_connection_misses_nothing_and_sees_nothing_twice(api: Api) -> None:
    session = await api.create()
    words = f"look {session}"
    async with attached(api, session) as follower:
        invocation = await api.user(session).send(words)
        seen = [await follower.next() for _ in range(3)]
        await api.model.gate(words).reached()
    assert follower.last_id == "3"
    api.model.gate(words).open()
    await api.user(session).settled(invocation)
    async with attached(api, session, last_id=follower.last_id, since=0) as again:
        seen += [await again.next() for _ in range(2)]
        # It stays for what comes next.
        await api.user(session).run("hello")
        seen += [await again.next() for _ in range(3)]
    assert seen == (await api.session(session))["events"]
    async with attached(api, session, since=7) as last:
        assert await last.next() == seen[7]


async def test_a_stream_in_which_nothing_happens_stays_alive(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1_events, "_BEAT", 0.1)
    session = await api.create()
    async with attached(api, session) as follower:
        assert await follower.comment() == ": still here"
        await api.user(session).run("hello")


async def test_who_follows_elsewhere_and_lags_behind_makes_no_offset_a_bad_one(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()

    async def never(self: LogFollower, **about: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    session = await api.create()
    monkeypatch.setattr(LogFollower, "news", never)
    async with attached(api, session):
        async with asyncio.timeout(20):
            await waiting.wait()
        monkeypatch.undo()
        await api.user(session).run("hello")
        total = (await get(api, f"{base(api, session)}/events"))["total"]
        assert total > 1
        async with attached(api, session, since=total):
            pass
        beyond = await api.http.get(f"{base(api, session)}/events/stream", params={"since": total + 1})
        assert beyond.status_code == 400


async def test_frames_are_kept_for_many_only_and_only_small_ones(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: OrderedDict[int, tuple[Event, str]] = OrderedDict()
    monkeypatch.setattr(v1_events._FRAMES, "_frames", kept)  # pyright: ignore[reportPrivateUsage] -- memory is not seen from outside
    session = await api.create()
    await api.ran(session, "x" * 30_000)
    await api.ran(session, "hello")
    async with attached(api, session, partial="true") as follower:
        whole = [await follower.next() for _ in range(6)]
    assert not kept
    async with attached(api, session) as follower:
        assert [await follower.next() for _ in range(6)] == whole
    sizes = [len(frame) for _, frame in kept.values()]
    assert sizes
    assert max(sizes) < 20_001 < len(json.dumps(whole[0]))


REFUSED: list[tuple[str, str, Any, int]] = [
    ("GET", "/invocations/e-unknown", None, 404),
    ("POST", "/invocations/e-unknown/resume", None, 404),
    ("POST", "/invocations/e-unknown/stop", None, 404),
    ("POST", "/pending/c/answer", {"response": 1}, 404),
    ("POST", "/pending/c/answer", {}, 422),
    ("GET", "/events/stream?since=1", None, 400),
]


async def test_what_is_not_there_is_404(api: Api) -> None:
    session = await api.create()
    for method, path, body, status in REFUSED:
        answer = await api.http.request(method, base(api, session) + path, json=body)
        assert answer.status_code == status, (path, answer.text)
        missing = await api.http.request(method, base(api, "no-such") + path, json=body)
        assert missing.status_code == (422 if status == 422 else 404), (path, missing.text)
    for path in ("/invocations", "/pending", "/events"):
        assert (await api.http.get(base(api, "no-such") + path)).status_code == 404, path
    headers = {"last-event-id": "e-1"}
    answer = await api.http.get(base(api, session) + "/events/stream", headers=headers)
    assert (answer.status_code, "none of this stream" in answer.json()["detail"]) == (400, True)


async def test_what_has_finished_cannot_be_stopped(api: Api) -> None:
    session = await api.create()
    [event, *_] = await api.ran(session, "hello")
    path = f"{base(api, session)}/invocations/{event['invocationId']}"
    assert (await api.http.post(f"{path}/stop")).status_code == 409
    assert (await api.http.post(f"{path}/resume")).json()["invocation"]["status"] == "finished"


async def test_calls_are_answered_in_the_session_that_made_them(api: Api) -> None:
    session = await api.create()
    call_id, _ = call_of(await api.ran(session, "ask"))
    other = await api.create()
    answer = await api.http.post(f"{base(api, other)}/pending/{call_id}/answer", json={"response": 1})
    assert answer.status_code == 404


async def test_a_stream_ends_with_its_server(client: Client, app_name: str) -> None:
    model, stop = Obedient(), asyncio.Event()
    app = obedient_app(app_name, model)
    async with (
        serving(client, app),
        served(client, app, model, stop=stop, patience=timedelta(seconds=20)) as api,
    ):
        session = await api.create()
        path = f"{base(api, session)}/events/stream"
        async with api.http.stream("GET", path) as stream:
            stop.set()
            assert (await stream.aread()).startswith(b'event: error\ndata: {"error": "ServerEnding: ')
