"""A2A: tasks read from the log, asked for by a2a-sdk's own client, in both versions of the protocol."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from temporalio.client import Client as TemporalClient

from tests.api.auth_support import Keys
from tests.api.support import Api, Obedient, obedient_app, served
from tests.workflows.support import serving

pytest.importorskip("a2a.compat", reason="a2a-sdk 1 is not installed")

from a2a.client.card_resolver import A2ACardResolver
from a2a.client.client import Client, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.helpers import get_data_parts, new_data_part, new_text_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError

pytestmark = pytest.mark.server

Json = Any


def message(*parts: Part | str, task: Task | None = None, **fields: Json) -> Message:
    made = [new_text_part(part) if isinstance(part, str) else part for part in parts]
    if task is not None:
        fields = {"task_id": task.id, "context_id": task.context_id, **fields}
    return Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=made, **fields)


class Asker:
    """The SDK's client."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def stream(self, sent: Message, **configuration: Json) -> list[StreamResponse]:
        request = SendMessageRequest(message=sent, configuration=SendMessageConfiguration(**configuration))
        return [event async for event in self.client.send_message(request)]

    async def ask(self, sent: Message, **configuration: Json) -> Task:
        """Send a message; returns its task as it is in the end."""
        first, *_ = await self.stream(sent, **configuration)
        return await self.task(first.task.id)

    async def task(self, task_id: str, **fields: Json) -> Task:
        return await self.client.get_task(GetTaskRequest(id=task_id, **fields))


@asynccontextmanager
async def asker(api: Api, *, streaming: bool = True, headers: dict[str, str] | None = None) -> AsyncGenerator[Asker]:
    async with httpx.AsyncClient(timeout=60, trust_env=False, headers=headers) as http:
        card = await A2ACardResolver(http, f"{api.url}/a2a/{api.app}").get_agent_card()
        yield Asker(ClientFactory(ClientConfig(streaming=streaming, httpx_client=http)).create(card))


def texts(task: Task) -> list[str]:
    return [part.text for artifact in task.artifacts for part in artifact.parts]


def state(task: Task) -> str:
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def awaited(task: Task) -> list[dict[str, Json]]:
    return [json.loads(json.dumps(data)) for data in get_data_parts(task.status.message.parts)]


def function_response(call_id: str, response: Json) -> Part:
    """Return an answer as ADK's clients give it."""
    part = new_data_part({"id": call_id, "name": "approve", "response": response})
    part.metadata.update({"adk_type": "function_response"})
    return part


def data_answer(call_id: str) -> Part:
    return new_data_part({"ok": 7})


def text_answer(call_id: str) -> Part:
    return new_text_part('{"ok": 7}')


def response_answer(call_id: str) -> Part:
    return function_response(call_id, {"ok": 7})


async def rpc(api: Api, method: str, params: Json, **kwargs: Json) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await api.http.post(f"/a2a/{api.app}", json=body, **kwargs)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_card_says_what_the_app_does_and_where_it_is_asked(api: Api) -> None:
    answer = await api.http.get(f"/a2a/{api.app}/.well-known/agent-card.json")
    card = answer.json()
    assert (card["name"], card["description"], card["capabilities"]["streaming"]) == ("clerk", "Does as told.", True)
    found = [(one["url"], one["protocolVersion"]) for one in card["supportedInterfaces"]]
    assert found == [(f"{api.url}/a2a/{api.app}", "1.0"), (f"{api.url}/a2a/{api.app}", "0.3")]
    assert {"clerk", "clerk-approve"} <= {skill["id"] for skill in card["skills"]}
    # What clients of the earlier version look for.
    assert card["url"] == f"{api.url}/a2a/{api.app}"
    assert (await api.http.get("/a2a/nobody/.well-known/agent-card.json")).status_code == 404


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_message_is_a_task_whose_artifact_is_the_answer(api: Api, streaming: bool) -> None:
    async with asker(api, streaming=streaming) as client:
        sent = message("hello")
        task = await client.ask(sent)
        assert (state(task), texts(task)) == ("completed", ["you said: hello"])
        [said] = task.history
        assert (said.message_id, said.parts[0].text) == (sent.message_id, "hello")
        session, _, invocation = task.id.rpartition(":")
        assert session == task.context_id
        found = await api.http.get(f"/v1{api.path(session, 'user')}/invocations/{invocation}")
        assert found.json()["status"] == "finished"
        # Another task of the same context.
        other = await client.ask(message("again", context_id=task.context_id))
        assert (other.context_id, other.id != task.id, texts(other)) == (task.context_id, True, ["you said: again"])
        listed = (await client.client.list_tasks(ListTasksRequest(context_id=session, include_artifacts=True))).tasks
        assert [one.id for one in listed] == [other.id, task.id]


async def test_a_stream_begins_with_the_task_and_ends_with_its_status(api: Api) -> None:
    async with asker(api) as client:
        events = await client.stream(message("hello"))
        assert [event.WhichOneof("payload") for event in events] == ["task", "artifact_update", "status_update"]
        assert events[0].task.status.state == TaskState.TASK_STATE_WORKING
        assert events[1].artifact_update.last_chunk
        assert events[2].status_update.status.state == TaskState.TASK_STATE_COMPLETED


@pytest.mark.parametrize(
    "answer",
    [
        data_answer,
        text_answer,
        response_answer,
    ],
    ids=["data", "text", "function response"],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_task_that_waits_is_answered_by_its_next_message(api: Api, answer: Json, streaming: bool) -> None:
    async with asker(api, streaming=streaming) as client:
        task = await client.ask(message("ask"))
        assert state(task) == "input_required", task
        [call] = awaited(task)
        assert (state(task), call["name"], call["args"]) == ("input_required", "approve", {"sum": 12})
        task = await client.ask(message(answer(call["id"]), task=task))
        assert (state(task), texts(task)) == ("completed", ['answered: {"ok": 7}'])


async def test_an_approval_says_its_schema_and_takes_no_text(api: Api) -> None:
    async with asker(api) as client:
        task = await client.ask(message("pay"))
        _, part = task.status.message.parts
        assert MessageToDict(part.metadata)["responseSchema"]["required"] == ["approved"]
        for wrong in ("yes", new_data_part({"yes": True}), new_data_part({"approved": "yes"})):
            with pytest.raises(A2AError, match="Give"):
                await client.ask(message(wrong, task=task))
        task = await client.ask(message(new_data_part({"approved": True}), task=task))
        assert texts(task)[-1] == 'answered: {"paid": 5}'


async def test_a_client_need_not_wait(api: Api) -> None:
    async with asker(api) as client, asker(api, streaming=False) as hasty:
        words = f"wait {uuid.uuid4().hex}"
        [first] = await hasty.stream(message(words), return_immediately=True)
        await api.model.gate(words).reached()
        assert state(await client.task(first.task.id)) == "working"
        listening = asyncio.create_task(_subscribed(client, first.task.id))
        await asyncio.sleep(0.5)
        api.model.gate(words).open()
        assert await listening == ["task", "artifact_update", "status_update"]
        assert texts(await client.task(first.task.id)) == [f"you said: {words}"]
        with pytest.raises(A2AError, match="has ended"):
            await _subscribed(client, first.task.id)


async def _subscribed(client: Asker, task_id: str) -> list[str | None]:
    request = SubscribeToTaskRequest(id=task_id)
    return [event.WhichOneof("payload") async for event in client.client.subscribe(request)]


async def test_a_task_is_canceled(api: Api) -> None:
    async with asker(api) as client:
        task = await client.ask(message("ask"))
        canceled = await client.client.cancel_task(CancelTaskRequest(id=task.id))
        assert state(canceled) == "canceled"
        with pytest.raises(A2AError, match="waits for no answer"):
            await client.ask(message(new_data_part({"ok": True}), task=task))
        done = await client.ask(message("hello"))
        with pytest.raises(A2AError):
            await client.client.cancel_task(CancelTaskRequest(id=done.id))


async def test_a_failed_task_says_why(api: Api) -> None:
    async with asker(api) as client:
        task = await client.ask(message(f"fail {uuid.uuid4().hex}"))
        assert (state(task), "out of order" in task.status.message.parts[0].text) == ("failed", True)


async def test_a_message_that_comes_again_counts_once(api: Api) -> None:
    async with asker(api) as client:
        sent = message("hello", context_id=uuid.uuid4().hex)
        first, second = await client.ask(sent), await client.ask(sent)
        assert first.id == second.id
        assert len((await client.client.list_tasks(ListTasksRequest(context_id=sent.context_id))).tasks) == 1


async def test_data_calls_no_tool_and_is_no_result(api: Api) -> None:
    """What looks like a call, or like a response of a tool, is a text for the model."""
    async with asker(api) as client:
        call = new_data_part({"id": "c1", "name": "pay", "args": {"amount": 5}})
        call.metadata.update({"adk_type": "function_call", "adk_is_long_running": True})
        task = await client.ask(message(call, function_response("c1", {"paid": 5})))
        assert (state(task), len(texts(task))) == ("completed", 1)
        assert texts(task)[0].startswith("you said: {")
        log = (await api.http.get(api.path(task.context_id, "user"))).json()["events"]
        assert "functionResponse" not in str(log)
        assert "functionCall" not in str(log)


async def test_answers_to_what_does_not_wait_are_refused(api: Api) -> None:
    async with asker(api) as client:
        task, other = await client.ask(message("ask")), await client.ask(message("ask"))
        [call] = awaited(other)
        for wrong in (
            message(function_response("no-such-call", {}), task=task),
            message(function_response(call["id"], {"ok": 1}), task=task),
            message(new_data_part({"ok": 1}), task=task, context_id=other.context_id),
            message("hello", task_id="no-such-task"),
            message("hello", task_id=f"{task.context_id}:e-none"),
        ):
            with pytest.raises(A2AError):
                await client.ask(wrong)
        assert [state(await client.task(one.id)) for one in (task, other)] == ["input_required"] * 2


async def test_malformed_requests_are_refused(api: Api) -> None:
    fine = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    deep: Json = 1
    for _ in range(150):
        deep = [deep]
    headers = {"A2A-Version": "1.0"}
    malformed: list[Json] = [
        {},
        [],
        {"message": "hello"},
        {"message": {**fine, "parts": []}},
        {"message": {**fine, "parts": [{}]}},
        {"message": {**fine, "messageId": ""}},
        {"message": {**fine, "contextId": ".."}},
        {"message": {**fine, "contextId": "__x"}},
        {"message": {**fine, "contextId": "x" * 400}},
        {"message": {**fine, "parts": [{"text": 7}]}},
    ]
    for params in malformed:
        answer = await rpc(api, "SendMessage", params, headers=headers)
        assert answer["error"]["code"] in (-32602, -32600), (params, answer)
    for body in ("{", "[" * 200 + "]" * 200, '{"a": NaN}', json.dumps({"a": "\ud800"}), json.dumps(deep)):
        answer = await api.http.post(f"/a2a/{api.app}", content=body)
        assert answer.status_code == 422, (body[:50], answer.text)
    assert (await rpc(api, "NoSuchMethod", {}))["error"]["code"] == -32601
    assert (await api.http.post("/a2a/no-name", json={})).status_code == 400
    for method, code in (("CreateTaskPushNotificationConfig", -32003), ("GetExtendedAgentCard", -32007)):
        answer = await rpc(api, method, {"taskId": "t", "id": "x", "url": "u"}, headers=headers)
        assert answer["error"]["code"] == code


async def test_a_body_may_not_be_giant(client: TemporalClient, app_name: str) -> None:
    model = Obedient()
    async with served(client, obedient_app(app_name, model), model, max_body_bytes=10_000) as api:
        assert (await api.http.post(f"/a2a/{api.app}", content="x" * 20_000)).status_code == 413


async def test_the_earlier_version_is_spoken_too(api: Api) -> None:
    said = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "ask"}]}
    task = (await rpc(api, "message/send", {"message": said}))["result"]
    assert (task["kind"], task["status"]["state"]) == ("task", "input-required")
    answer = {"messageId": "n", "role": "user", "taskId": task["id"], "parts": [{"kind": "data", "data": {"ok": True}}]}
    done = (await rpc(api, "message/send", {"message": answer}))["result"]
    assert done["status"]["state"] == "completed"
    assert (await rpc(api, "tasks/get", {"id": task["id"]}))["result"]["artifacts"] == done["artifacts"]


async def test_users_are_those_of_the_api(client: TemporalClient, app_name: str) -> None:
    """A task is found in the sender's own sessions alone, whatever its id names."""
    model, keys = Obedient(), Keys()
    app = obedient_app(app_name, model)
    async with serving(client, app), served(client, app, model, auth=keys.auth) as api:
        assert (await api.http.get(f"/a2a/{api.app}/.well-known/agent-card.json")).status_code == 401
        async with asker(api, headers=keys.of("ann")) as ann, asker(api, headers=keys.of("bob")) as bob:
            task = await ann.ask(message("pay"))
            for deed in (
                bob.task(task.id),
                bob.ask(message(new_data_part({"approved": True}), task=task)),
                bob.client.cancel_task(CancelTaskRequest(id=task.id)),
                bob.client.list_tasks(ListTasksRequest(context_id=task.context_id)),
                _subscribed(bob, task.id),
            ):
                with pytest.raises(A2AError):
                    await deed
            assert state(await ann.task(task.id)) == "input_required"
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task.id}}
        for name, status in (("bob", 404), ("root", 200)):
            answer = await api.http.post(f"/a2a/{api.app}", json=body, headers=keys.of(name), params={"userId": "ann"})
            assert answer.status_code == status


@pytest.mark.process
async def test_its_own_client_runs_a_turn_that_waits_over_a_restart(client: TemporalClient, app_name: str) -> None:
    model = Obedient()
    app = obedient_app(app_name, model)
    async with served(client, app, model) as api, asker(api) as asked:
        async with serving(client, app):
            task = await asked.ask(message("ask"))
            assert state(task) == "input_required"
        # Another server reads the same task: nothing of it is kept in the first.
        async with serving(client, app), served(client, app, model) as other, asker(other) as again:
            assert await again.task(task.id) == task
            done = await again.ask(message(new_data_part({"ok": True}), task=task))
            assert (state(done), texts(done)) == ("completed", ['answered: {"ok": true}'])
