"""AG-UI and A2A with google.adk's agents: a task's talk, a graph's question, a credential; and pieces of a text."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.api.app import create_app
from perdure.api.base.config import ApiConfig
from perdure.credentials import FileCredentialStore
from perdure.streams.hub import TokenHub
from tests.adk.support import agent, call, letters, make_app, say
from tests.adk.test_credentials import KEY, read_mail
from tests.workflows.support import serving

pytest.importorskip("ag_ui.core", reason="ag-ui-protocol is not installed")
pytest.importorskip("a2a.compat", reason="a2a-sdk 1 is not installed")
pytest.importorskip("httpx2", reason="the environment of google.adk 1 has no client for the API")

import httpx2

from tests.api.support import frames_of

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]

Json = Any


class Caller:
    """A client of both protocols, in one thread and context of each."""

    def __init__(self, http: Any, app: str) -> None:
        self._http = http
        self._app = app
        self.id = uuid.uuid4().hex

    async def run(self, words: str | None = None, **fields: Json) -> list[Json]:
        """Run by AG-UI; returns the events."""
        said = [{"id": uuid.uuid4().hex, "role": "user", "content": words}] if words is not None else []
        body = {"threadId": self.id, "runId": uuid.uuid4().hex, "messages": said, **fields}
        events = frames_of((await self._http.post(f"/ag-ui/{self._app}", json=body)).text)
        assert events[-1]["type"] == "RUN_FINISHED", events[-1]
        return events

    async def ask(self, part: Json, task: str = "") -> Json:
        """Send a message by A2A; returns the task."""
        said = {"messageId": uuid.uuid4().hex, "taskId": task, "role": "ROLE_USER", "parts": [part]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
        answer = await self._http.post(f"/a2a/{self._app}", json=body, headers={"A2A-Version": "1.0"})
        return answer.json()["result"]["task"]


@asynccontextmanager
async def calling(client: Client, name: str, root: BaseAgent, secrets: Path | None = None) -> AsyncGenerator[Caller]:
    app, streams = make_app(name, root, resumable=True), TokenHub()
    store = FileCredentialStore(str(secrets)) if secrets is not None else None
    transport = httpx2.ASGITransport(create_app(client, [app], ApiConfig(credentials=store), streams=streams))
    async with (
        serving(client, app, streams=streams, credentials=store),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http,
    ):
        yield Caller(http, name)


def interrupt_of(events: list[Json]) -> Json:
    [interrupt] = events[-1]["outcome"]["interrupts"]
    return interrupt


def told(events: list[Json]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def texts(task: Json) -> list[str]:
    return [part["text"] for artifact in task["artifacts"] for part in artifact["parts"]]


def desk() -> BaseAgent:
    talk = [say("How many?"), call("finish_task", result="ok")] * 3
    booker = agent("booker", *talk, mode="task")
    return agent("desk", *[call("booker", request="a table"), say("Booked.")] * 3, sub_agents=[booker])


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no tasks")
async def test_a_task_waits_for_the_next_message(client: Client, app_name: str) -> None:
    async with calling(client, app_name, desk()) as caller:
        first = await caller.run("table")
        interrupt = interrupt_of(first)
        assert (interrupt["reason"], interrupt["responseSchema"]["type"]) == ("input_required", "string")
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": "two"}
        done = await caller.run(resume=[entry])
        assert (done[-1]["outcome"]["type"], told(done)) == ("success", "Booked.")
        task = await caller.ask({"text": "table"})
        assert (task["status"]["state"], texts(task)) == ("TASK_STATE_INPUT_REQUIRED", ["How many?"])
        assert task["status"]["message"]["parts"][0]["text"]
        done = await caller.ask({"text": "two"}, task["id"])
        assert (done["status"]["state"], texts(done)[-1], done["id"]) == (
            "TASK_STATE_COMPLETED",
            "Booked.",
            task["id"],
        )


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no tasks")
async def test_a_plain_message_goes_on_with_a_task_and_a_cancelled_one_is_stopped(
    client: Client, app_name: str
) -> None:
    async with calling(client, app_name, desk()) as caller:
        await caller.run("table")
        assert told(await caller.run("two")) == "Booked."
        interrupt = interrupt_of(await caller.run("table"))
        stopped = await caller.run(resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
        assert stopped[-1]["outcome"] == {"type": "cancelled"}


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")
async def test_a_graph_asks(client: Client, app_name: str) -> None:
    graph = letters()
    async with calling(client, app_name, graph) as caller:
        interrupt = interrupt_of(await caller.run("cats"))
        assert (interrupt["reason"], interrupt["message"]) == ("input_required", "Send a letter about cats?")
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": "yes"}
        assert (await caller.run(resume=[entry]))[-1]["outcome"]["type"] == "success"
        task = await caller.ask({"text": "dogs"})
        assert task["status"]["message"]["parts"][0]["text"] == "Send a letter about dogs?"
        done = await caller.ask({"data": "yes"}, task["id"])
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_credential_is_asked_for_and_shown_to_nobody(client: Client, app_name: str, tmp_path: Path) -> None:
    answers = [call("read_mail", folder="in"), say("Read.")] * 2
    credential = {"exchangedAuthCredential": {"authType": "apiKey", "apiKey": KEY}}
    async with calling(client, app_name, agent("desk", *answers, tools=[read_mail]), tmp_path) as caller:
        interrupt = interrupt_of(await caller.run("mail"))
        assert (interrupt["reason"], "exchangedAuthCredential" in interrupt["responseSchema"]["required"]) == (
            "perdure:credential",
            True,
        )
        done = await caller.run(resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": credential}])
        again = await caller.run()
        assert (told(done), KEY in str(done), KEY in str(again)) == ("Read.", False, False)
        task = await caller.ask({"text": "mail"})
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        done = await caller.ask({"data": credential}, task["id"])
        assert (texts(done)[-1], KEY in str(done)) == ("Read.", False)
