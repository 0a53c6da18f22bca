"""What the tests of the HTTP API share: an app that does what it is told, served over a real socket."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from google.genai import types
from temporalio.client import Client

from perdure.agents import App, FunctionTool, LlmAgent, ParallelAgent, SequentialAgent
from perdure.api.app import create_app
from perdure.api.base.config import ApiConfig
from perdure.errors import ModelError
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.serving.http_connections import ConnectionLimits
from perdure.serving.http_server import serve
from perdure.serving.sockets import listen, url_of
from tests.workflows.support import Gate, User, long_running, make_app, serving

Json = Any


class Obedient(BaseLlm):
    """Does what the last message says.

    `ask` calls a long-running tool, `pay` one that a person must approve, `wait` waits at a gate, `look` calls a tool
    and then waits, `fail` fails once.
    """

    def __init__(self) -> None:
        super().__init__("obedient")
        self.gates: dict[str, Gate] = {}
        self.failed: set[str] = set()

    def gate(self, message: str) -> Gate:
        return self.gates.setdefault(message, Gate())

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = (llm_request.contents[-1].parts or [])[-1]
        words = last.text or ""
        part = types.Part(text=f"you said: {words}")
        if last.function_response is not None and last.function_response.name == "look":
            await self.gate(str((last.function_response.response or {})["result"])).pass_through("looked")
            part = types.Part(text="looked")
        elif last.function_response is not None:
            part = types.Part(text=f"answered: {json.dumps(last.function_response.response)}")
        elif words == "ask":
            part = types.Part(function_call=types.FunctionCall(name="approve", args={"sum": 12}))
        elif words == "pay":
            part = types.Part(function_call=types.FunctionCall(name="pay", args={"amount": 5}))
        elif words.startswith("look"):
            part = types.Part(function_call=types.FunctionCall(name="look", args={"at": words}))
        elif words.startswith("wait"):
            await self.gate(words).pass_through(words)
        elif words.startswith("fail") and words not in self.failed:
            self.failed.add(words)
            raise ModelError("the model is out of order", retryable=False)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Api:
    """The API of one app, and a client of it."""

    def __init__(self, client: Client, app: App, model: Obedient, url: str, http: httpx2.AsyncClient) -> None:
        self.temporal = client
        self.app = app.name
        self.definition = app
        self.model = model
        self.url = url
        self.http = http

    def path(self, session: str | None = None, user: str = "ann", app: str | None = None) -> str:
        base = f"/apps/{app or self.app}/users/{user}/sessions"
        return base if session is None else f"{base}/{session}"

    async def create(self, **body: Any) -> str:
        """Create a session of Ann's; returns its id."""
        answer = await self.http.post(self.path(), json=body)
        assert answer.status_code == 200, answer.text
        session_id: str = answer.json()["id"]
        return session_id

    def body(self, session: str, message: str | None = None, **fields: Any) -> dict[str, Any]:
        body = {"appName": self.app, "userId": "ann", "sessionId": session, **fields}
        return body if message is None else {**body, "newMessage": said(message)}

    async def run(self, session: str, message: str | None = None, **fields: Any) -> httpx2.Response:
        return await self.http.post("/run", json=self.body(session, message, **fields))

    async def ran(self, session: str, message: str | None = None, **fields: Any) -> list[dict[str, Json]]:
        answer = await self.run(session, message, **fields)
        assert answer.status_code == 200, answer.text
        events: list[dict[str, Json]] = answer.json()
        return events

    async def frames(self, session: str, message: str | None = None, **fields: Any) -> list[dict[str, Json]]:
        answer = await self.http.post("/run_sse", json=self.body(session, message, **fields))
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        return frames_of(answer.text)

    async def session(self, session: str) -> dict[str, Json]:
        answer = await self.http.get(self.path(session))
        assert answer.status_code == 200, answer.text
        found: dict[str, Json] = answer.json()
        return found

    def user(self, session: str) -> User:
        return User(self.temporal, self.app, "ann", session)


def said(text: str) -> dict[str, Json]:
    return {"role": "user", "parts": [{"text": text}]}


def response_to(call_id: str | None, **response: Any) -> dict[str, Json]:
    """Return a message that answers a call."""
    answer = {"id": call_id, "name": "approve", "response": response}
    return {"role": "user", "parts": [{"functionResponse": answer}]}


def frames_of(text: str) -> list[dict[str, Json]]:
    """Return the values of a stream, after a check of its framing: one `data:` line and an empty one for each."""
    if not text:
        return []
    assert text.endswith("\n\n")
    frames = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames), text
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def call_of(events: list[dict[str, Json]]) -> tuple[str, str]:
    """Return the id of the long-running call in a turn, and its invocation's."""
    event = next(event for event in events if event.get("longRunningToolIds"))
    return event["longRunningToolIds"][0], event["invocationId"]


def texts(events: list[dict[str, Json]]) -> list[str]:
    return [
        f"{event['author']}: {part['text']}"
        for event in events
        for part in event.get("content", {}).get("parts", [])
        if "text" in part
    ]


def look(at: str) -> str:
    """Look at something."""
    return at


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


def obedient_app(name: str, model: Obedient) -> App:
    helper = LlmAgent(name="helper", model=model, description="Helps.", instruction="Help.")
    both = ParallelAgent(name="both", sub_agents=[LlmAgent(name="left", model=model)])
    root = LlmAgent(
        name="clerk",
        model=model,
        description="Does as told.",
        instruction="Do as you are told.",
        tools=[long_running("approve"), look, FunctionTool(pay, require_confirmation=True)],
        sub_agents=[helper, SequentialAgent(name="steps", sub_agents=[both])],
    )
    return make_app(name, root)


@asynccontextmanager
async def served(
    client: Client,
    app: App,
    model: Obedient,
    *,
    apps: Sequence[App] | None = None,
    limits: ConnectionLimits | None = None,
    stop: asyncio.Event | None = None,
    **config: Any,
) -> AsyncGenerator[Api]:
    """Serve the API of an app on a free port of this machine, without a worker, until the block or `stop` ends it.

    Args:
        client: A client of the Temporal server.
        app: The app that the tests are about.
        model: Its model.
        apps: What the API is given. Default: the app.
        limits: How long clients may take.
        stop: Ends it.
        config: The API's settings.
    """
    stop = stop or asyncio.Event()
    listener = listen("127.0.0.1", 0)
    url = url_of(listener)
    api = create_app(client, [app] if apps is None else apps, ApiConfig(**config))
    serving_api = asyncio.create_task(serve(api, listener, stop, closing=api.state.backend.closing, limits=limits))
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            yield Api(client, app, model, url, http)
    finally:
        stop.set()
        await serving_api


@asynccontextmanager
async def api_and_worker(client: Client, **config: Any) -> AsyncGenerator[Api]:
    model = Obedient()
    app = obedient_app(f"app_{uuid.uuid4().hex[:12]}", model)
    async with serving(client, app), served(client, app, model, **config) as api:
        yield api
