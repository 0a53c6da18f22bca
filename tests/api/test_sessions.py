"""The routes of sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from temporalio.client import (
    Client,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
    WorkflowExecutionAsyncIterator,
)

from perdure.agents import App
from perdure.client import Runner
from perdure.messages.keys import SessionKey
from tests.api.support import Api, Obedient, call_of, obedient_app, response_to, said, served, texts
from tests.workflows.support import eventually, serving

pytestmark = pytest.mark.server


async def test_a_session_is_created_shown_and_deleted(api: Api) -> None:
    answer = await api.http.post(api.path(), json={"sessionId": "trip", "state": {"a": None, "user:b": 2, "temp:c": 3}})
    created = answer.json()
    assert answer.status_code == 200
    assert created["lastUpdateTime"] > 1e9
    state = {"a": None, "user:b": 2}
    assert created == {
        "id": "trip",
        "appName": api.app,
        "userId": "ann",
        "state": state,
        "events": [],
        "lastUpdateTime": created["lastUpdateTime"],
    }
    shown = await api.session("trip")
    assert (shown["state"], shown["events"]) == (state, [])
    assert abs(shown["lastUpdateTime"] - created["lastUpdateTime"]) < 30
    answer = await api.http.post(api.path(), json={"session_id": "trip"})
    assert (answer.status_code, answer.json()["detail"]) == (409, "Session already exists: trip")
    for _ in range(2):
        answer = await api.http.delete(api.path("trip"))
        assert (answer.status_code, answer.text) == (200, "null")
    answer = await api.http.get(api.path("trip"))
    assert (answer.status_code, answer.json()["detail"]) == (404, "Session not found")


async def test_a_session_without_a_body_gets_an_id(api: Api) -> None:
    answer = await api.http.post(api.path())
    assert (answer.status_code, answer.json()["state"]) == (200, {})
    assert len(answer.json()["id"]) == 36


async def test_the_old_way_to_create_takes_the_state_as_its_body(api: Api) -> None:
    answer = await api.http.post(api.path("old-way"), json={"a": 1, "sessionId": "state too"})
    assert (answer.json()["id"], answer.json()["state"]) == ("old-way", {"a": 1, "sessionId": "state too"})
    assert (await api.http.post(api.path("old-way"))).status_code == 409
    assert (await api.http.post(api.path("older"))).json()["state"] == {}
    for body in (b"[1]", b'{"a": "\\ud800"}'):
        answer = await api.http.post(api.path("odd"), content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422


class _Asking(Interceptor):
    """Notes what Temporal is asked to list."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        queries = self.queries

        class Noting(OutboundInterceptor):
            def list_workflows(self, input: ListWorkflowsInput) -> WorkflowExecutionAsyncIterator:
                queries.append(input.query or "")
                return super().list_workflows(input)

        return Noting(next)


async def test_of_other_users_nothing_is_listed(api: Api) -> None:
    """Else each listing would page through the sessions of all."""
    for user in ("al", "al_x", "o'al%", "bo"):
        await api.http.post(api.path("s", quote(user, safe="")), json={})
    asking = _Asking()
    runner = Runner(api.app, Client(api.temporal.service_client, interceptors=[asking]))
    for user in ("al", "o'al%"):

        async def listed(user: str = user) -> bool:
            return [session.user_id for session in await runner.list_sessions(user_id=user)] == [user]

        await eventually(listed)
        found = [run.id async for run in api.temporal.list_workflows(asking.queries[-1])]
        assert found == [SessionKey(api.app, user, "s").workflow_id]


async def test_a_users_sessions_are_listed_without_their_events(api: Api) -> None:
    first = await api.http.post(api.path("one", "liz"), json={"a": 1})
    assert first.status_code == 200
    await api.http.post(api.path("two", "liz"), json={})
    await api.http.post("/run", json={**api.body("two", "hello"), "userId": "liz"})
    found: list[dict[str, Any]] = []

    async def listed() -> bool:
        answer = await api.http.get(api.path(user="liz"))
        found[:] = answer.json()
        return {session["id"] for session in found} == {"one", "two"}

    await eventually(listed)
    by_id = {session["id"]: session for session in found}
    assert [session["events"] for session in found] == [[], []]
    assert by_id["one"]["state"] == {"a": 1}
    assert by_id["two"]["lastUpdateTime"] > by_id["one"]["lastUpdateTime"]
    assert (await api.http.get(api.path(user="nobody"))).json() == []
    for key in "ab":
        # Both together are more than one answer of a list holds of each.
        await api.http.patch(api.path("one", "liz"), json={"stateDelta": {key: "x" * 1_200_000}})
    whole = (await api.http.get(api.path("one", "liz"))).json()
    assert {key: len(whole["state"][key]) for key in "ab"} == {"a": 1_200_000, "b": 1_200_000}
    shown = (await api.http.get(api.path(user="liz"))).json()
    assert {session["id"]: bool(session["state"]) for session in shown} == {"one": False, "two": False}


def own(session: dict[str, Any]) -> dict[str, Any]:
    """Return the state that is the session's own: Ann's other sessions may have written what she shares."""
    return {key: value for key, value in session["state"].items() if not key.startswith(("user:", "app:"))}


async def test_a_change_of_state_is_an_event_of_the_users(api: Api) -> None:
    session = await api.create(state={"a": 1, "b": 1})
    await api.ran(session, "hello")
    answer = await api.http.patch(api.path(session), json={"stateDelta": {"a": 2, "user:c": 3, "temp:d": 4}})
    assert answer.status_code == 200
    changed = answer.json()
    assert own(changed) == {"a": 2, "b": 1, "temp:d": 4}
    assert changed["state"]["user:c"] == 3
    event = changed["events"][-1]
    assert (event["author"], "content" in event) == ("user", False)
    assert event["invocationId"] == f"p-{event['id']}"
    assert event["actions"]["stateDelta"] == {"a": 2, "user:c": 3}
    assert changed["lastUpdateTime"] == event["timestamp"]
    shown = await api.session(session)
    assert own(shown) == {"a": 2, "b": 1}
    # As ADK, which reads it together with the session: another session of the user's shows it, too.
    assert (await api.session(await api.create()))["state"]["user:c"] == shown["state"]["user:c"] == 3
    assert texts(await api.ran(session, "go on")) == ["clerk: you said: go on"]


async def test_state_is_changed_while_a_call_waits(api: Api) -> None:
    session = await api.create()
    call_id, invocation = call_of(await api.ran(session, "ask"))
    assert (await api.http.patch(api.path(session), json={"state_delta": {"a": 1}})).status_code == 200
    events = await api.ran(session, newMessage=response_to(call_id, ok=True))
    assert {event["invocationId"] for event in events} == {invocation}
    assert own(await api.session(session)) == {"a": 1}


async def test_a_change_of_state_that_is_refused(api: Api) -> None:
    answer = await api.http.patch(api.path("no-such"), json={"stateDelta": {}})
    assert (answer.status_code, answer.json()["detail"]) == (404, "Session not found")
    answer = await api.http.patch(api.path("no-such"), json={})
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", "stateDelta"])


async def test_a_session_may_start_with_a_conversation(api: Api) -> None:
    events = [
        {"author": "user", "content": said("My name is Ann.")},
        {"author": "clerk", "content": {"role": "model", "parts": [{"text": "Hello, Ann."}]}},
    ]
    session = await api.create(state={"a": 1}, events=events)
    stored = await api.session(session)
    assert texts(stored["events"]) == ["user: My name is Ann.", "clerk: Hello, Ann."]
    assert own(stored) == {"a": 1}
    assert all(event["id"] and event["timestamp"] > 1e9 for event in stored["events"])
    assert texts(await api.ran(session, "hi")) == ["clerk: you said: hi"]


def _event(**fields: Any) -> dict[str, Any]:
    return {"author": "clerk", "invocationId": "e-1", **fields}


def _calls(name: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"functionCall": {"id": "c", "name": name, "args": {}}}]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"events": [_event(content=_calls("approve"), longRunningToolIds=["c"])]}, "long-running calls"),
        ({"events": [_event(actions={"stateDelta": {"a": 1}})]}, "actions"),
        ({"events": [_event(content=_calls("adk_request_confirmation"))]}, "reserved name adk_request_confirmation"),
        ({"events": [_event(content=_calls("adk_request_credential"))]}, "reserved name adk_request_credential"),
        ({"events": [_event(content=said("an agent first"))]}, "no message before it has started"),
        ({"options": {"shared": True}}, "options shared are not supported"),
    ],
)
async def test_what_a_new_session_refuses(api: Api, body: dict[str, Any], reason: str) -> None:
    answer = await api.http.post(api.path(), json={"sessionId": "refused", **body})
    assert (answer.status_code, reason in answer.json()["detail"]) == (400, True), answer.text
    assert (await api.http.get(api.path("refused"))).status_code == 404


ODD = ["a/b", "...", "a%2Fb", "ä ?#\n", "sessions/x"]


async def test_ids_with_odd_characters_name_one_session_each(api: Api) -> None:
    """A slash in an id reaches no other session, however often it is encoded."""
    for user in ("u", "u/sessions"):
        for session in ODD:
            made = await api.http.post(api.path(user=_quoted(user)), json={"sessionId": session, "state": {"of": user}})
            assert (made.status_code, made.json()["id"]) == (200, session), made.text
    for user in ("u", "u/sessions"):
        for session in ODD:
            shown = (await api.http.get(api.path(_quoted(session), _quoted(user)))).json()
            assert (shown["userId"], shown["id"], shown["state"]) == (user, session, {"of": user})


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


async def test_an_encoded_slash_is_no_way_into_anothers_session(api: Api) -> None:
    await api.http.post(api.path("secret", "bob"), json={})
    for path in (
        f"/apps/{api.app}/users/ann%2F..%2Fbob/sessions/secret",
        f"/apps/{api.app}/users/ann/sessions/..%2F..%2Fbob%2Fsessions%2Fsecret",
        f"/apps/{api.app}%2Fbob/users/ann/sessions/secret",
    ):
        assert (await api.http.get(path)).status_code in (400, 404), path
    # Not an id, but a path: it must not be taken apart anew.
    answer = await api.http.get(f"/apps/{api.app}/users/bob%2Fsessions%2Fsecret")
    assert (answer.status_code, answer.json()["detail"]) == (404, "Not Found")


@pytest.mark.parametrize("app", ["no app", "a'b", "perdure:state", "1"])
async def test_what_cannot_be_an_app_is_400(api: Api, app: str) -> None:
    answers = [
        await api.http.get(api.path(app=_quoted(app))),
        await api.http.post(api.path(app=_quoted(app)), json={}),
        await api.http.delete(api.path("s", app=_quoted(app))),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 400]


async def test_ids_that_temporal_could_not_take_are_400(api: Api) -> None:
    assert (await api.http.post(api.path(), json={"sessionId": "s" * 290})).status_code == 200
    assert (await api.http.post(api.path(), json={"sessionId": "s" * 301})).status_code == 400
    assert (await api.http.get(api.path(_quoted("漢" * 99)))).status_code == 404
    assert (await api.http.get(api.path(_quoted("\x00" * 299), "u" * 200))).status_code == 400
    # The workflow of a session's claims has a longer id than the session's own.
    for length, status in ((80, 404), (97, 400)):
        path = f"/apps/{'a' * length}/users/u/sessions/{_quoted(chr(0) * 298)}"
        assert (await api.http.get(path)).status_code == status
    answer = await api.http.get(f"/apps/{api.app}/users/%FF/sessions")
    assert (answer.status_code, answer.json()["detail"]) == (400, "the path is no UTF-8")


async def test_a_server_that_was_given_apps_begins_nothing_in_others(api: Api, client: Client, app_name: str) -> None:
    other: App = obedient_app(app_name, Obedient())
    async with serving(client, other):
        run = {**api.body("s", "hello"), "appName": app_name}
        start = {"message": "hello"}
        for path, body in (
            (api.path(app=app_name), {"sessionId": "s"}),
            (api.path("s", app=app_name), {}),
            ("/run", run),
            ("/run_sse", run),
            (f"/v1{api.path('s', app=app_name)}/invocations", start),
        ):
            answer = await api.http.post(path, json=body)
            assert (answer.status_code, answer.json()["detail"]) == (
                404,
                f"there is no app {app_name!r}; served are: {api.app!r}",
            ), path
        assert app_name not in (await api.http.get("/list-apps")).json()


async def test_a_server_that_was_given_none_takes_all_that_are_there(client: Client, app_name: str) -> None:
    """A worker that serves the app counts, and a session that waits for one."""
    model = Obedient()
    app = obedient_app(app_name, model)
    async with served(client, app, model, apps=()) as api:
        refused = await api.http.post(api.path(), json={})
        assert (refused.status_code, f"there is no app {app_name!r}" in refused.text) == (404, True)

        async def is_there() -> bool:
            return (await api.http.post(api.path(), json={})).status_code == 200

        async with serving(client, app):
            # Once the worker has asked for work.
            await eventually(is_there)
            session = await api.create()
            assert texts(await api.ran(session, "hello")) == ["clerk: you said: hello"]


async def test_without_a_worker_a_request_is_answered_after_a_while(client: Client, app_name: str) -> None:
    model = Obedient()
    async with served(client, obedient_app(app_name, model), model, patience=timedelta(seconds=2)) as api:
        session = await api.create()
        # To read needs none.
        assert (await api.http.get(api.path(session))).status_code == 200
        answer = await api.run(session, "hi")
        assert (answer.status_code, "no worker" in answer.json()["detail"]) == (503, True)


async def test_a_run_creates_its_session_where_that_is_asked_for(client: Client, app_name: str) -> None:
    model = Obedient()
    app = obedient_app(app_name, model)
    async with serving(client, app), served(client, app, model, auto_create_session=True) as api:
        assert texts(await api.ran("made-by-run", "hello")) == ["clerk: you said: hello"]
