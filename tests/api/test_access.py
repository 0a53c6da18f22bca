"""Whose sessions a request may touch: proven for every route that there is, shown in the document or not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.openapi.utils import get_openapi
from temporalio.client import Client

from perdure.api.app import create_app
from perdure.api.auth.access import NOT_FOUND, Access
from perdure.api.auth.api_keys import ApiKey
from perdure.api.auth.config import AuthConfig
from perdure.api.auth.identity import ANYONE, APPROVER, NOBODY, OPERATOR, Identity
from perdure.api.base.config import ApiConfig
from perdure.client import Runner
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.sessions.listing import ListedSession
from perdure.sessions.session import Session
from perdure.sessions.sessions import Door
from tests.api.auth_support import Keys
from tests.api.support import Api, api_and_worker, call_of, obedient_app, response_to, said, served, texts
from tests.api.support import Obedient as Model

Json = Any

USER_NAMES = frozenset({"user_id", "userId", "user"})
"""What a user is called in paths, queries and bodies."""


# Every route, without Temporal: a route that asked it would be answered 503.


def every_route(routes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for route in routes:
        inner = getattr(route, "original_router", None)
        monkeypatch.setattr(inner or route, "include_in_schema", True)
        if inner is not None:
            every_route(inner.routes, monkeypatch)


@pytest.fixture(scope="module")
def keys() -> Keys:
    return Keys()


@pytest.fixture
async def app(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    lazy = await Client.connect("127.0.0.1:1", lazy=True)
    app = create_app(lazy, [obedient_app("shop", Model())], ApiConfig(auth=keys.auth))
    every_route(app.routes, monkeypatch)
    return app


def resolved(schema: Json, document: Json) -> Json:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def sample(schema: Json, document: Json) -> Json:
    """Return a small value that a schema allows; a user in it is Bob."""
    schema = resolved(schema, document)
    for choice in schema.get("anyOf", []) or schema.get("oneOf", []):
        return sample(choice, document)
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        wanted = {*schema.get("required", ()), *(USER_NAMES & properties.keys())}
        return {name: "bob" if name in USER_NAMES else sample(properties[name], document) for name in sorted(wanted)}
    if "enum" in schema:
        return schema["enum"][0]
    plain: dict[str, Json] = {"array": [], "integer": 1, "number": 1, "boolean": False}
    return plain.get(schema.get("type", ""), "x")


def operations(app: FastAPI) -> Iterator[tuple[str, str, Json, Json]]:
    document: Json = get_openapi(title="all", version="1", routes=app.routes)
    for path, by_method in document["paths"].items():
        for method, operation in by_method.items():
            yield method.upper(), path, operation, document


SENT_AS = {"application/json": "json", "application/x-www-form-urlencoded": "data"}


def bodies(operation: Json) -> Iterator[tuple[str, Json]]:
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield media_type, content["schema"]


def named_users(path: str, operation: Json, document: Json) -> set[str]:
    """Return by what names an operation takes a user."""
    names = {parameter["name"] for parameter in operation.get("parameters", [])}
    for _, schema in bodies(operation):
        found = resolved(schema, document)
        for choice in [found, *(resolved(choice, document) for choice in found.get("anyOf", []))]:
            names |= choice.get("properties", {}).keys()
    return {name for name in names if "user" in name.casefold()}


async def test_users_have_the_names_that_are_looked_for(app: FastAPI) -> None:
    """A route that names a user otherwise would pass unseen."""
    found = {
        name for _, path, operation, document in operations(app) for name in named_users(path, operation, document)
    }
    assert {"user_id", "userId"} <= found <= USER_NAMES


async def test_every_route_that_names_a_user_refuses_another(app: FastAPI, keys: Keys) -> None:
    """404, with the same words whether the session exists or not, and before anybody is asked."""
    refused: list[str] = []
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=keys.of("ann")) as http:
        for method, path, operation, document in operations(app):
            if not named_users(path, operation, document):
                continue
            url = path.replace("{app_name}", "shop").replace("{user_id}", "bob").replace("{", "").replace("}", "")
            query = {
                parameter["name"]: "bob"
                for parameter in operation.get("parameters", [])
                if parameter["in"] == "query" and parameter["name"] in USER_NAMES
            }
            content: dict[str, Any] = {}
            for media_type, schema in bodies(operation):
                content = {SENT_AS.get(media_type, "content"): sample(schema, document)}
            async with asyncio.timeout(5):
                answer = await http.request(method, url, params=query, **content)
            assert (answer.status_code, NOT_FOUND in answer.text) == (404, True), (method, path, answer.text)
            refused.append(f"{method} {path}")
    assert len(refused) > 15


async def test_every_route_needs_a_credential_but_those_that_are_open(app: FastAPI) -> None:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as http:
        opened: set[str] = set()
        for method, path, _, _ in operations(app):
            answer = await http.request(method, path.replace("{", "").replace("}", ""), headers={"accept": "*/*"})
            if answer.status_code != 401:
                opened.add(path)
    assert opened <= {"/health", "/livez", "/readyz", "/version", "/sign-in", "/sign-out"}


# Who may do what


def identity(subject: str, *roles: str) -> Identity:
    return Identity(subject, frozenset(roles))


@pytest.mark.parametrize(
    ("who", "own", "other"),
    [
        (identity("ann"), "read answer run", ""),
        (identity("ann", APPROVER), "read answer run", "read answer"),
        (identity("ann", OPERATOR), "read answer run", "read answer run"),
        (identity("ann", "boss"), "read answer run", ""),
        (NOBODY, "", ""),
        (ANYONE, "read answer run", "read answer run"),
    ],
)
def test_who_may_do_what(who: Identity, own: str, other: str) -> None:
    for deed in ("read", "answer", "run"):
        assert who.may(deed, "ann") is (deed in own)
        assert who.may(deed, "bob") is (deed in other)
        assert who.may_for_all(deed) is (deed in other)


class Touched(Exception):
    """Somebody has reached a session."""


class WatchedDoor:
    """A door at which nobody passes unseen."""

    def __init__(self, behind: Door) -> None:
        self.behind = behind

    def whose(self, user_id: str | None) -> str | None:
        return self.behind.whose(user_id)

    def session(self, user_id: str, session_id: str) -> Session:
        raise Touched(user_id)

    async def list(self, user_id: str | None, status: Collection[SessionStatus]) -> list[ListedSession]:
        raise Touched(user_id)

    async def pending(self, user_id: str | None, session_id: str | None) -> list[tuple[ListedSession, PendingCall]]:
        raise Touched(user_id)


SAMPLES: Json = {
    "user_id": "bob",
    "session_id": "s",
    "state_delta": {},
    "invocation_id": "i",
    "message": "hello",
    "responses": {},
    "events": [
        {"author": "user", "invocationId": "i", "id": "e", "content": {"role": "user", "parts": [{"text": "a"}]}}
    ],
    "log": [{"author": "user", "invocationId": "i", "id": "e", "content": {"role": "user", "parts": [{"text": "a"}]}}],
    "length": 1,
}

WHICH = {"user_id", "session_id"}
"""Of these, an import needs none."""

NO_SESSIONS = {"connect", "behind"}
"""Methods of a runner that make one."""


def methods_of(runner: Runner) -> set[str]:
    return {name for name, _ in inspect.getmembers(runner, inspect.ismethod) if not name.startswith("_")} - NO_SESSIONS


async def called(runner: Runner, name: str) -> None:
    """Call a method about a session of Bob's, to the end of what it returns."""
    method = getattr(runner, name)
    wanted = inspect.signature(method).parameters.values()
    given = {one.name: SAMPLES[one.name] for one in wanted if one.default is one.empty or one.name in WHICH}
    found = method(**given)
    if inspect.isasyncgen(found):
        async for _ in found:
            pass
    elif inspect.isawaitable(found):
        await found


async def test_a_limited_runner_knows_one_user_whatever_it_is_asked() -> None:
    """Of another user's sessions, nobody gets as far as the door behind, by any method that there is or will be."""
    lazy = await Client.connect("127.0.0.1:1", lazy=True)
    access = Access(identity("ann"), "read")
    whole = Runner("shop", lazy).behind(WatchedDoor)
    runner = access.runner(whole, None)
    methods = methods_of(runner)
    assert {"respond", "pending", "list_sessions", "events", "import_session", "delete_session"} <= methods
    for name in methods:
        with pytest.raises(HTTPException) as caught:
            await called(runner, name)
        assert (caught.value.status_code, caught.value.detail) == (404, NOT_FOUND), name
    with pytest.raises(Touched, match="ann"):
        await runner.list_sessions()
    with pytest.raises(Touched, match="ann"):
        await runner.pending()
    for who in (NOBODY, identity("bob")):
        with pytest.raises(HTTPException):
            Access(who, "read").runner(whole, "ann")
        with pytest.raises(HTTPException):
            Access(who, "read").whose("ann")
    with pytest.raises(HTTPException):
        Access(NOBODY, "read").runner(whole, None)
    with pytest.raises(HTTPException):
        Access(NOBODY, "read").whose(None)
    assert (access.whose(None), access.whose("ann")) == ("ann", "ann")
    assert Access(identity("eve", APPROVER), "read").whose(None) is None
    assert Access(identity("eve", APPROVER), "run").whose(None) == "eve"
    assert Access(identity("eve", APPROVER), "answer").runner(whole, None) is whole
    with pytest.raises(HTTPException):
        await called(Access(identity("eve", APPROVER), "run").runner(whole, None), "get_session")


async def test_a_runner_has_one_door() -> None:
    """Whatever it does with a session goes through that, so whoever stands before it has forgotten nothing."""
    runner = Runner("shop", await Client.connect("127.0.0.1:1", lazy=True)).behind(WatchedDoor)
    assert vars(runner).keys() == {"app_name", "_door"}
    for name in methods_of(runner):
        with pytest.raises(Touched):
            await called(runner, name)


async def test_a_backend_that_does_not_know_who_asks_gives_nothing_out(app: FastAPI) -> None:
    with pytest.raises(RuntimeError, match="BackendOf"):
        app.state.backend.runner("shop", "ann")


# With sessions


class People:
    """An API with sessions of Ann and Bob."""

    def __init__(self, api: Api, keys: Keys) -> None:
        self.api = api
        self.keys = keys

    async def ask(self, name: str, method: str, path: str, **given: Any) -> httpx2.Response:
        headers = {**given.pop("headers", {}), **self.keys.of(name)}
        return await self.api.http.request(method, path, headers=headers, **given)

    async def waiting(self, user: str) -> tuple[str, str, str]:
        """Return a session of a user's, its waiting call, and the invocation."""
        created = await self.ask(user, "POST", self.api.path(user=user))
        session = created.json()["id"]
        body = {**self.api.body(session, "ask"), "userId": user}
        answer = await self.ask(user, "POST", "/run", json=body)
        assert answer.status_code == 200, answer.text
        return session, *call_of(answer.json())


@pytest.fixture(scope="module")
async def people(client: Client, keys: Keys) -> AsyncGenerator[People]:
    async with api_and_worker(client, auth=keys.auth) as api:
        yield People(api, keys)


server = pytest.mark.server


@server
async def test_another_users_session_is_not_there(people: People) -> None:
    session, call, invocation = await people.waiting("bob")
    path = people.api.path(session, user="bob")
    tries: list[tuple[str, str, Json]] = [
        ("GET", path, None),
        ("PATCH", path, {"stateDelta": {"a": 1}}),
        ("DELETE", path, None),
        ("POST", f"{path}x", {}),
        ("GET", people.api.path(user="bob"), None),
        ("POST", people.api.path(user="bob"), {}),
        ("GET", f"/v1{path}/invocations", None),
        ("GET", f"/v1{path}/events", None),
        ("GET", f"/v1{path}/events/stream", None),
        ("GET", f"/v1{path}/pending", None),
        ("POST", f"/v1{path}/invocations/{invocation}/stop", None),
        ("POST", f"/v1{path}/invocations/{invocation}/resume", None),
        ("POST", f"/v1{path}/pending/{call}/answer", {"response": True}),
        ("POST", f"/v1{path}/pending/{call}/answer", {}),
        ("POST", "/run", {**people.api.body(session, "hello"), "userId": "bob"}),
        ("POST", "/run_sse", {**people.api.body(session), "userId": "bob", "newMessage": response_to(call, ok=1)}),
        ("POST", "/run", {**people.api.body(session), "userId": "bob", "invocationId": invocation}),
        ("GET", f"/v1/apps/{people.api.app}/pending?userId=bob", None),
        ("GET", f"/v1/apps/{people.api.app}/pending?userId=ann&userId=bob", None),
        ("GET", path.replace("bob", "b%6Fb"), None),
    ]
    for method, url, body in tries:
        answer = await people.ask("ann", method, url, json=body)
        assert (answer.status_code, answer.json()) == (
            404,
            {"type": "docs/errors.md#sessionnotfound", "detail": NOT_FOUND},
        ), (method, url)
    there = (await people.ask("bob", "GET", path)).json()
    assert (len(there["events"]), there["state"]) == (3, {})


@server
async def test_a_listing_over_all_users_shows_what_one_may_see(people: People) -> None:
    hers, *_ = await people.waiting("ann")
    his, *_ = await people.waiting("bob")
    path = f"/v1/apps/{people.api.app}/pending"
    for name, sees in {"ann": {"ann"}, "bob": {"bob"}, "eve": {"ann", "bob"}, "root": {"ann", "bob"}}.items():
        async with asyncio.timeout(20):
            while True:
                calls = (await people.ask(name, "GET", path)).json()["calls"]
                # A listing over all users may be a moment behind.
                shown = {call["userId"] for call in calls if call["sessionId"] in (hers, his)}
                if shown >= sees:
                    break
                await asyncio.sleep(0.1)
        assert {call["userId"] for call in calls} == sees
    mine = (await people.ask("ann", "GET", path, params={"userId": "ann"})).json()["calls"]
    assert {call["userId"] for call in mine} == {"ann"}


@server
async def test_an_approver_reads_and_answers_and_does_no_more(people: People) -> None:
    session, call, invocation = await people.waiting("bob")
    path = people.api.path(session, user="bob")
    assert (await people.ask("eve", "GET", path)).status_code == 200
    body = {**people.api.body(session), "userId": "bob"}
    text = {"text": "and buy a yacht"}
    answering: Json = response_to(call, ok=True)
    mixed = {**answering, "parts": [*answering["parts"], text]}
    for method, url, sent in [
        ("DELETE", path, None),
        ("PATCH", path, {"stateDelta": {"a": 1}}),
        ("POST", people.api.path(user="bob"), {}),
        ("POST", "/run", {**body, "newMessage": said("hello")}),
        ("POST", "/run", {**body, "newMessage": mixed}),
        ("POST", "/run", {**body, "invocationId": invocation}),
        ("POST", f"/v1{path}/invocations/{invocation}/stop", None),
        ("POST", f"/v1{path}/invocations/{invocation}/resume", None),
    ]:
        answer = await people.ask("eve", method, url, json=sent)
        assert (answer.status_code, "and no more" in answer.json()["detail"]) == (403, True), (method, url)
    answered = await people.ask("eve", "POST", "/run", json={**body, "newMessage": answering})
    assert (answered.status_code, texts(answered.json())) == (200, ['clerk: answered: {"ok": true}'])
    session, call, _ = await people.waiting("bob")
    url = f"/v1{people.api.path(session, user='bob')}/pending/{call}/answer"
    assert (await people.ask("eve", "POST", url, json={"response": True})).status_code == 200


@server
async def test_an_operator_does_everything_for_everybody(people: People) -> None:
    session, _, invocation = await people.waiting("bob")
    path = people.api.path(session, user="bob")
    assert (await people.ask("root", "POST", f"/v1{path}/invocations/{invocation}/stop")).status_code == 200
    assert (await people.ask("root", "PATCH", path, json={"stateDelta": {"a": 1}})).status_code == 200
    assert (await people.ask("root", "DELETE", path)).status_code == 200


@server
async def test_a_stream_ends_with_its_credential(client: Client, keys: Keys) -> None:
    """Whoever follows has to ask again, and is asked again who it is; a key without an end ends no stream."""
    async with api_and_worker(client, auth=keys.auth) as lasting:
        session = (await lasting.http.post(lasting.path(user="ann"), json={}, headers=keys.of("ann"))).json()["id"]
        key, text = ApiKey.new("ann", now=datetime.now(UTC), lasts=timedelta(seconds=4))
        header = {"authorization": f"Bearer {text}"}
        auth = AuthConfig(keys=(*keys.known, key))
        async with served(client, lasting.definition, lasting.model, auth=auth) as api:
            path = f"/v1{api.path(session, user='ann')}/events/stream"
            async with api.http.stream("GET", path, headers=keys.of("ann")) as other:
                attached, run = await asyncio.gather(
                    api.http.get(path, headers=header),
                    api.http.post("/run_sse", json=api.body(session, "wait"), headers=header),
                )
                lines = other.aiter_lines()
                lasting.model.gate("wait").open()
                while "you said: wait" not in await anext(lines):
                    pass
            for answer in (attached, run):
                assert answer.status_code == 200, answer.text
                assert 'data: {"error": "CredentialExpired: ' in answer.text.strip().splitlines()[-1]
            assert (await api.http.get(path, headers=header)).status_code == 401
