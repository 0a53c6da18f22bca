"""Starting and repeating: `Idempotency-Key` on every request that starts or answers something."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.support import Api, call_of, frames_of, response_to, said, texts

pytestmark = pytest.mark.server


def base(api: Api, session: str) -> str:
    return f"/v1{api.path(session)}"


async def started(api: Api, session: str, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return await api.http.post(f"{base(api, session)}/invocations", json=body, headers=headers)


async def test_a_message_starts_an_invocation_that_has_a_place_of_its_own(api: Api) -> None:
    session = await api.create()
    answer = await started(api, session, message="hello", stateDelta={"city": "Oslo"}, metadata={"by": "page"})
    assert answer.status_code == 201, answer.text
    taken = answer.json()
    assert (taken["invocation"]["status"] in ("queued", "running"), taken["offset"]) == (True, 0)
    await api.user(session).settled(taken["invocation"]["id"])
    found = await api.http.get(answer.headers["location"])
    assert (found.status_code, found.json()["status"]) == (200, "finished")
    now = await api.session(session)
    assert (now["state"], texts(now["events"])) == ({"city": "Oslo"}, ["user: hello", "clerk: you said: hello"])
    assert now["events"][0]["customMetadata"] == {"by": "page"}


async def test_a_content_is_the_users(api: Api) -> None:
    session = await api.create()
    other = await started(api, session, message={"role": "model", "parts": [{"text": "hello"}]})
    assert other.status_code == 400
    answer = await started(api, session, message={"parts": [{"text": "hello"}]})
    await api.user(session).settled(answer.json()["invocation"]["id"])
    [event, *_] = (await api.session(session))["events"]
    assert (event["author"], event["content"]["role"]) == ("user", "user")


async def test_a_start_is_repeated_by_its_key_and_by_the_same_words_only(api: Api) -> None:
    session = await api.create()
    first = (await started(api, session, "k", message="hello")).json()
    await api.user(session).settled(first["invocation"]["id"])
    again = await started(api, session, "k", message="hello")
    assert (again.status_code, again.json()["offset"]) == (201, 0)
    assert again.json()["invocation"]["id"] == first["invocation"]["id"]
    for body in ({"message": "ho"}, {"message": "hello", "stateDelta": {"a": 1}}):
        other = await started(api, session, "k", **body)
        assert (other.status_code, "request id 'k'" in other.json()["detail"]) == (409, True)
    assert len((await api.session(session))["events"]) == 3


async def test_what_cannot_start_is_refused(api: Api) -> None:
    session = await api.create()
    call: Any = {"parts": [{"functionCall": {"name": "approve", "args": {"sum": 1}}}]}
    empty: Any = {"parts": []}
    for message in ("", empty, call, response_to("c", ok=True)):
        assert (await started(api, session, message=message)).status_code == 400, message
    assert (await started(api, session)).status_code == 422
    assert (await started(api, "no-such", message="hello")).status_code == 404
    forged = await started(api, session, message="hello", metadata={"perdure:answer": {"who": "boss"}})
    assert (forged.status_code, "server's own" in forged.json()["detail"]) == (400, True)
    assert (await api.session(session))["events"] == []


async def test_a_run_is_repeated_by_its_key_and_tells_its_events_again(api: Api) -> None:
    """As an array, and as a stream: whoever lost the answer gets the same one."""
    session = await api.create()
    headers = {"Idempotency-Key": "r"}
    first = await api.http.post("/run", json=api.body(session, "hello"), headers=headers)
    await api.ran(session, "later")
    again = await api.http.post("/run", json=api.body(session, "hello"), headers=headers)
    assert (again.status_code, again.json()) == (200, first.json())
    stream = await api.http.post("/run_sse", json=api.body(session, "hello"), headers=headers)
    assert frames_of(stream.text) == first.json()
    other = await api.http.post("/run", json=api.body(session, "ho"), headers=headers)
    assert other.status_code == 409


async def test_an_answer_by_a_run_is_repeated_too(api: Api) -> None:
    session = await api.create()
    call_id, _ = call_of(await api.ran(session, "ask"))
    body = {**api.body(session), "newMessage": response_to(call_id, ok=True)}
    answers = [await api.http.post("/run", json=body, headers={"Idempotency-Key": "a"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json() != []
    other = {**body, "newMessage": response_to(call_id, ok=False)}
    assert (await api.http.post("/run", json=other, headers={"Idempotency-Key": "a"})).status_code == 409
    forged = api.body(session, customMetadata={"perdure:answer": {"who": "boss"}}, newMessage=said("hello"))
    assert (await api.http.post("/run", json=forged)).status_code == 400


async def test_a_resume_is_repeated_by_its_key(api: Api) -> None:
    """A late repetition does not run on what was stopped again meanwhile; without a key it would."""
    session = await api.create()
    _, invocation = call_of(await api.ran(session, "ask"))
    one = f"{base(api, session)}/invocations/{invocation}"
    resumed: list[Any] = []
    for _ in range(2):
        stopped = await api.http.post(f"{one}/stop")
        assert stopped.status_code == 200
        resumed.append(await api.http.post(f"{one}/resume", headers={"Idempotency-Key": "go"}))
        await api.user(session).settled(invocation)
    assert [answer.json()["offset"] for answer in resumed] == [3, 3]
    assert (await api.http.get(one)).json()["status"] == "stopped"
    assert (await api.http.post(f"{one}/resume", json={"fresh": False})).status_code == 200
    assert (await api.user(session).settled(invocation)).status == "waiting"
