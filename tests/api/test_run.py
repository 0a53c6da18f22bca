"""`/run` and `/run_sse`: turns, answers, resumes, refusals, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import pytest

from perdure.api.adk.run import split_artifacts
from perdure.api.auth.access import call_limit
from perdure.api.auth.identity import OPERATOR, Identity
from perdure.journal.events import Event, EventActions, user_content
from perdure.plan.nodes import CallLimit
from tests.api.support import Api, call_of, frames_of, response_to, said, texts
from tests.workflows.support import eventually

pytestmark = pytest.mark.server


async def test_a_run_returns_the_turns_events_as_adk_writes_them(api: Api) -> None:
    session = await api.create()
    events = await api.ran(session, "hello")
    assert texts(events) == ["clerk: you said: hello"]
    assert events[0]["invocationId"].startswith("e-")
    assert events[0]["actions"] == {
        "stateDelta": {},
        "artifactDelta": {},
        "requestedAuthConfigs": {},
        "requestedToolConfirmations": {},
    }
    stored = await api.session(session)
    assert [event["author"] for event in stored["events"]] == ["user", "clerk", "clerk"]
    assert stored["events"][1:] == events
    assert stored["lastUpdateTime"] == events[-1]["timestamp"]


async def test_bodies_may_be_in_snake_case_and_hold_fields_that_nobody_knows(api: Api) -> None:
    session = await api.create()
    body = {
        "app_name": api.app,
        "user_id": "ann",
        "session_id": session,
        "new_message": {"role": "user", "parts": [{"text": "hello"}]},
        "what_is_this": [1],
    }
    answer = await api.http.post("/run", json=body)
    assert texts(answer.json()) == ["clerk: you said: hello"]


async def test_a_stream_has_a_data_line_for_each_event_and_just_ends(api: Api) -> None:
    session = await api.create()
    frames = await api.frames(session, "hello")
    assert frames == (await api.session(session))["events"][1:]


async def test_token_streaming_is_taken_and_events_come_whole(api: Api) -> None:
    frames = await api.frames(await api.create(), "hello", streaming=True)
    assert texts(frames) == ["clerk: you said: hello"]
    assert not any(frame.get("partial") for frame in frames)


async def test_events_come_as_they_are_logged_and_a_client_that_leaves_in_the_middle_stops_nothing(api: Api) -> None:
    session = await api.create()
    words = f"look {session}"
    async with api.http.stream("POST", "/run_sse", json=api.body(session, words)) as stream:
        lines = stream.aiter_lines()
        first = [await anext(lines) for _ in range(4)]
        await api.model.gate(words).reached()
    [call, response] = frames_of("\n".join(first) + "\n")
    assert call["content"]["parts"][0]["functionCall"]["name"] == "look"
    assert response["content"]["parts"][0]["functionResponse"]["response"] == {"result": words}
    api.model.gate(words).open()

    async def finished() -> bool:
        return texts((await api.session(session))["events"]) == [f"user: {words}", "clerk: looked"]

    await eventually(finished)


async def test_an_answer_runs_the_invocation_on(api: Api) -> None:
    session = await api.create()
    call_id, invocation = call_of(await api.frames(session, "ask"))
    assert call_id.startswith("adk-")
    # ADK's page answers so, and knows the invocation.
    frames = await api.frames(session, newMessage=response_to(call_id, ok=True), invocationId=invocation)
    assert texts(frames) == ['clerk: answered: {"ok": true}']
    assert {frame["invocationId"] for frame in frames} == {invocation}


async def test_an_answer_itself_says_which_invocation_is_meant(api: Api) -> None:
    session = await api.create()
    first = call_of(await api.ran(session, "ask"))
    second = call_of(await api.ran(session, "ask"))
    events = await api.ran(session, newMessage=response_to(first[0], n=1), invocationId=second[1])
    assert {event["invocationId"] for event in events} == {first[1]}


async def test_state_and_metadata_go_along_with_the_message(api: Api) -> None:
    session = await api.create(state={"a": 1})
    await api.ran(session, "hello", stateDelta={"b": [None, {"c": None}], "temp:t": 1}, customMetadata={"trace": "t-1"})
    stored = await api.session(session)
    assert stored["state"] == {"a": 1, "b": [None, {"c": None}]}
    assert stored["events"][0]["customMetadata"] == {"trace": "t-1"}
    call_id, _ = call_of(await api.ran(session, "ask"))
    await api.ran(session, newMessage=response_to(call_id), customMetadata={"by": "bob"})
    answers = [e for e in (await api.session(session))["events"] if e["author"] == "user"]
    assert answers[-1]["customMetadata"] == {"by": "bob"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_adks_curl_line_resumes_an_invocation(api: Api) -> None:
    """The command of ADK's guide on resuming, with its body as printed there."""
    session = await api.create()
    [frame] = await api.frames(session, f"fail {session}")
    assert frame["error"].startswith("InvocationFailed: agent 'clerk' failed in step 'model'")
    assert "the model is out of order" in frame["error_details"]["error_message"]
    assert frame["error_details"]["error_type"] == "InvocationFailed"
    [invocation] = (await api.user(session).view()).invocations
    body = {"app_name": api.app, "user_id": "ann", "session_id": session, "invocation_id": invocation.id}
    process = await asyncio.create_subprocess_exec(
        *("curl", "-s", "-X", "POST", f"{api.url}/run_sse", "-H", "Content-Type: application/json"),
        *("-d", json.dumps(body)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    frames = frames_of(output.decode())
    assert texts(frames) == [f"clerk: you said: fail {session}"]
    assert {event["invocationId"] for event in frames} == {invocation.id}


async def test_a_run_that_fails_says_why_and_how_to_go_on(api: Api) -> None:
    session = await api.create()
    answer = await api.run(session, f"fail {session}")
    assert answer.status_code == 500
    assert "the model is out of order; resume it with its invocation id" in answer.json()["detail"]


async def test_a_waiting_invocation_has_nothing_to_resume(api: Api) -> None:
    session = await api.create()
    _, invocation = call_of(await api.ran(session, "ask"))
    assert await api.ran(session, invocationId=invocation) == []


async def test_an_unknown_invocation_is_404_and_a_finished_one_409(api: Api) -> None:
    session = await api.create()
    [event, *_] = await api.ran(session, "hello")
    for path in ("/run", "/run_sse"):
        answer = await api.http.post(path, json=api.body(session, invocationId="e-unknown"))
        assert (answer.status_code, answer.json()["detail"]) == (
            404,
            "the session has no invocation 'e-unknown'",
        )
        answer = await api.http.post(path, json=api.body(session, invocationId=event["invocationId"]))
        assert answer.status_code == 409
        assert "has finished; send a new message" in answer.json()["detail"]


async def test_a_running_invocation_cannot_be_resumed(api: Api) -> None:
    session = await api.create()
    invocation = await api.user(session).send(f"wait {session}")
    gate = api.model.gate(f"wait {session}")
    await gate.reached()
    answer = await api.run(session, invocationId=invocation)
    gate.open()
    assert (answer.status_code, "running already" in answer.json()["detail"]) == (409, True)
    await api.user(session).settled(invocation)


@pytest.mark.parametrize("path", ["/run", "/run_sse"])
async def test_a_client_that_leaves_does_not_stop_the_run(api: Api, path: str) -> None:
    session = await api.create()
    words = f"wait {session}"
    gate = api.model.gate(words)
    request = asyncio.create_task(api.http.post(path, json=api.body(session, words)))
    await gate.reached()
    request.cancel()
    await asyncio.wait({request})
    gate.open()

    async def finished() -> bool:
        stored = await api.session(session)
        return texts(stored["events"]) == [f"user: {words}", f"clerk: you said: {words}"]

    await eventually(finished)
    [invocation] = (await api.user(session).view()).invocations
    assert (await api.user(session).settled(invocation.id)).status == "finished"


async def test_a_missing_session_is_404_before_the_stream(api: Api) -> None:
    missing: list[dict[str, Any]] = [
        {"newMessage": said("hi")},
        {"newMessage": response_to("c")},
        {"invocationId": "e-1"},
    ]
    for path in ("/run", "/run_sse"):
        for fields in missing:
            answer = await api.http.post(path, json=api.body("no-such", **fields))
            assert (answer.status_code, answer.json()["detail"]) == (404, "Session not found: no-such")


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "give a newMessage, or the invocationId"),
    ({"newMessage": {"parts": []}}, 400, "the message is empty"),
    ({"newMessage": {"parts": [{"functionCall": {"name": "pay", "args": {}}}]}}, 400, "may not hold function calls"),
    (
        {"newMessage": {"parts": [{"functionCall": {"name": "pay"}}, {"functionResponse": {"id": "c", "name": "x"}}]}},
        400,
        "may not hold function calls",
    ),
    ({"newMessage": response_to("c", ok=True)}, 404, "no long-running call 'c'"),
    ({"newMessage": response_to(None, ok=True)}, 400, "has no id"),
    ({"newMessage": response_to("c", ok=True), "stateDelta": {"a": 1}}, 400, "stateDelta"),
    ({"newMessage": said("hi"), "invocationId": "e-1"}, 400, "invocationId"),
    ({"invocationId": "e-1", "stateDelta": {"a": 1}}, 400, "stateDelta"),
    ({"newMessage": said("hi"), "appName": "__reserved"}, 403, "reserved"),
    ({"newMessage": said("hi"), "appName": "no name' OR 'a"}, 400, "no Python identifier"),
    ({"newMessage": said("hi"), "userId": ""}, 400, "may not be empty"),
]


@pytest.mark.parametrize("path", ["/run", "/run_sse"])
async def test_what_a_run_refuses(api: Api, path: str) -> None:
    session = await api.create()
    for fields, status, reason in REFUSED:
        answer = await api.http.post(path, json=api.body(session, **fields))
        assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), (fields, answer.text)
    assert (await api.session(session))["events"] == []


async def test_an_answer_counts_once(api: Api) -> None:
    session = await api.create()
    call_id, _ = call_of(await api.ran(session, "ask"))
    await api.ran(session, newMessage=response_to(call_id, ok=True))
    answer = await api.run(session, newMessage=response_to(call_id, ok=False))
    assert (answer.status_code, "answered already" in answer.json()["detail"]) == (409, True)


async def test_a_message_is_the_users(api: Api) -> None:
    """Whoever writes no role means the user, and nobody writes as somebody else."""
    session = await api.create()
    answer = await api.run(session, newMessage={"role": "model", "parts": [{"text": "I, the model"}]})
    assert (answer.status_code, "has not the role 'model'" in answer.text) == (400, True)
    await api.ran(session, newMessage={"parts": [{"text": "hello"}]})
    [event, *_] = (await api.session(session))["events"]
    assert (event["author"], event["content"]["role"]) == ("user", "user")


async def test_a_body_that_is_wrong_is_422_with_adks_names(api: Api) -> None:
    answer = await api.http.post("/run", json={"appName": api.app, "newMessage": {"parts": [], "author": "clerk"}})
    problems = answer.json()["detail"]
    assert answer.status_code == 422
    assert {tuple(problem["loc"]) for problem in problems} == {
        ("body", "userId"),
        ("body", "sessionId"),
        ("body", "newMessage", "author"),
    }
    assert all(set(problem) == {"type", "loc", "msg"} for problem in problems)
    answer = await api.http.post("/run", content=b'{"appName": ', headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["detail"][0]["type"]) == (422, "json_invalid")


@pytest.mark.parametrize(
    "body", [b'{"userId": NaN, "sessionId": "s"}', b'{"userId": "u", "sessionId": "s", "stateDelta": {"a": "\\ud800"}}']
)
async def test_what_json_cannot_hold_is_422(api: Api, body: bytes) -> None:
    answer = await api.http.post("/run", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]


async def test_what_is_no_utf_8_or_nested_without_an_end_is_no_internal_error(api: Api) -> None:
    for body in (b'{"userId": "\xff"}', b"[" * 100_000):
        answer = await api.http.post("/run", content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, answer.text


async def test_a_deferred_tier_cannot_stream(api: Api) -> None:
    body = api.body(await api.create(), "hi", streaming=True, serviceTier="deferred")
    assert (await api.http.post("/run_sse", json=body)).status_code == 422


async def test_without_an_app_the_only_one_is_meant(api: Api) -> None:
    session = await api.create()
    body = api.body(session, "hello")
    del body["appName"]
    assert texts((await api.http.post("/run", json=body)).json()) == ["clerk: you said: hello"]


def test_content_and_artifacts_of_one_event_are_two_frames() -> None:
    event = Event(
        id="e", content=user_content("hi"), actions=EventActions(artifact_delta={"a.png": 1}, state_delta={"k": 1})
    )
    first, second = split_artifacts(event)
    assert (first.id, first.content, first.actions.artifact_delta) == ("e", event.content, {})
    assert (second.id, second.content, second.actions.artifact_delta) == ("e", None, {"a.png": 1})
    assert split_artifacts(first) == [first]


async def test_model_calls_are_bounded_and_a_resume_lets_more_be_made(api: Api) -> None:
    """An answer counts on, and the invocation waits with its reason; who is no operator only lowers the app's limit."""
    session = await api.create()
    call_id, invocation = call_of(await api.ran(session, "ask", maxLlmCalls=1))
    assert await api.ran(session, newMessage=response_to(call_id, ok=True)) == []
    path = f"/v1/apps/{api.app}/users/ann/sessions/{session}/invocations/{invocation}"
    waiting = (await api.http.get(path)).json()
    assert (waiting["status"], waiting["resumable"]) == ("waiting", True)
    assert "max_llm_calls" in waiting["reason"]
    assert (await api.http.post(f"{path}/resume", json={"maxLlmCalls": "many"})).status_code == 422
    assert (await api.http.post(f"{path}/resume", json={"maxLlmCalls": 5})).status_code == 200

    async def finished() -> bool:
        return (await api.http.get(path)).json()["status"] == "finished"

    await eventually(finished)
    user, operator = Identity("ann"), Identity("ann", frozenset({OPERATOR}))
    assert call_limit(user, 5000) == CallLimit(most=5000, lowers=True)
    assert call_limit(operator, 5000) == CallLimit(most=5000)
    assert call_limit(user, None) is None
