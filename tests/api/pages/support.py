"""What the tests of the pages share: an app that asks for all kinds of answers, and people whom a header names."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from html import unescape
from typing import Any, Literal
from urllib.parse import urlencode

import httpx2
from google.genai import types
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.client import Client

from perdure.agents import App, LlmAgent, LongRunningFunctionTool, SequentialAgent
from perdure.agents.adk_app import AnyApp
from perdure.agents.tools import FunctionTool, ToolContext
from perdure.api.app import create_app
from perdure.api.auth.identity import SCOPE_KEY, Identity
from perdure.api.auth.middleware import SIGNED_IN_KEY
from perdure.api.base.config import ApiConfig
from perdure.artifacts.service import ArtifactService
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.serving.http_server import serve
from perdure.serving.sockets import listen, url_of
from perdure.streams.hub import TokenHub
from tests.workflows.support import ONCE, Gate, User, make_app, serving

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"&\u202eevil"
_TEMPORAL_UI = "http://localhost:8233/"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)
"""A picture of one pixel."""
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


class Approval(BaseModel):
    approved: bool = Field(description="Whether the trip may be booked.")
    limit: int | None = Field(None, ge=0)
    seat: Literal["window", "aisle"] = "aisle"


def ask_manager(trip: str) -> dict[str, str]:
    """Ask the manager."""
    return {"status": "pending"}


def ask_office(question: str) -> None:
    """Ask the office."""


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def send_once(to: str) -> str:
    """Send something."""
    raise RuntimeError(f"the line to {to} was cut")


class Clerk(BaseLlm):
    """Calls the tool that the message names, and tells what came back.

    `trip KEY` asks the manager and then works until the gate KEY opens. `write KEY` is answered piece by piece, the
    second when the gate KEY opens.
    """

    def __init__(self) -> None:
        super().__init__("clerk")
        self.gates: dict[str, Gate] = {}

    def gate(self, key: str) -> Gate:
        return self.gates.setdefault(key, Gate())

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        parts = contents[-1].parts or []
        last, said = parts[-1], " ".join(part.text for part in parts if part.text)
        trips = [word for part in (contents[0].parts or []) for word in (part.text or "").split()[1:]]
        response = last.function_response
        if response is not None and response.name == "ask_manager":
            part = _call("book", trip=trips[0])
        elif response is not None:
            part = types.Part(text=f"It came to {json.dumps(response.response)}.")
        elif said.startswith("write "):
            if stream:
                yield LlmResponse(content=types.ModelContent("The **first** half, "), partial=True)
            await self.gate(said[6:]).pass_through("write")
            if stream:
                yield LlmResponse(content=types.ModelContent("and the second."), partial=True)
            part = types.Part(text="The **first** half, and the second.")
        else:
            word, _, rest = said.partition(" ")
            sent = [f" {part.inline_data.display_name}." for part in parts if part.inline_data]
            part = {
                "trip": _call("ask_manager", trip=rest),
                "pay": _call("pay", amount=12),
                "ask": _call("ask_office", question=rest),
                "send": _call("send_once", to="Oslo"),
            }.get(word, types.Part(text=f"You said: {said}{''.join(sent)}"))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def _call(name: str, **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


def clerk_app(name: str, model: Clerk) -> App:
    async def book(trip: str, tool_context: ToolContext) -> str:
        """Book."""
        await model.gate(trip).pass_through(tool_context.idempotency_key)
        return "booked"

    tools: list[FunctionTool | Callable[..., Any]] = [
        LongRunningFunctionTool(ask_manager, response=Approval),
        LongRunningFunctionTool(ask_office),
        FunctionTool(pay, require_confirmation=True),
        FunctionTool(send_once, at_most_once=True),
        FunctionTool(book, retry=ONCE),
    ]
    desk = LlmAgent(name="clerk", model=model, description="Asks and books.", instruction="Work.", tools=tools)
    return make_app(name, SequentialAgent(name="office", sub_agents=[desk]))


class _As:
    """Takes a request for one of whom the header `x-as` names, `SUBJECT ROLE…`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        subject, *roles = Headers(scope=scope).get("x-as", "").split() or [""]
        if subject:
            scope[SCOPE_KEY] = Identity(subject, frozenset(roles))
            scope[SIGNED_IN_KEY] = True
        await self._app(scope, receive, send)


class Server:
    """The API of some apps, at an address that it keeps when it is started again."""

    def __init__(
        self, client: Client, apps: Sequence[AnyApp], streams: TokenHub, artifacts: ArtifactService | None = None
    ) -> None:
        self._client, self._apps, self.streams = client, apps, streams
        self._config = ApiConfig(temporal_ui=_TEMPORAL_UI, artifacts=artifacts)
        self._port = 0
        self.url = ""

    async def start(self) -> None:
        listener = listen("127.0.0.1", self._port)
        self._port, self.url = listener.getsockname()[1], url_of(listener)
        api = create_app(self._client, self._apps, self._config, streams=self.streams)
        api.add_middleware(_As)
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(serve(api, listener, self._stop, closing=api.state.backend.closing))

    async def stop(self) -> None:
        self._stop.set()
        await self._running


class Pages:
    """The pages of one app, and a client of them."""

    def __init__(self, client: Client, app: str, model: Clerk, server: Server, http: httpx2.AsyncClient) -> None:
        self.temporal, self.app, self.model, self.server, self.http = client, app, model, server, http
        self.url = server.url

    async def start(self, message: str, session: str, user: str = "ann", *, settle: bool = True) -> User:
        """Make a session and send its message; return it when the invocation waits or has ended."""
        person = User(self.temporal, self.app, user, session)
        await person.create()
        invocation_id = await person.send(message)
        if settle:
            await person.settled(invocation_id)
        return person

    def path(self, session: str, user: str = "ann") -> str:
        return f"/inbox/apps/{self.app}/users/{user}/sessions/{session}"

    def chat(self, session: str, user: str = "ann") -> str:
        return f"/chat/apps/{self.app}/users/{user}/sessions/{session}"

    async def get(self, path: str, who: str = "", status: int = 200) -> str:
        answer = await self.http.get(path, headers={"x-as": who})
        assert answer.status_code == status, answer.text
        return answer.text

    async def form(self, session: str, user: str = "ann", what: str = "answer", who: str = "") -> Sent:
        """Return the form on a session's page that answers, stops or resumes."""
        page = await self.get(self.path(session, user), who)
        return Sent.found(page, what)

    async def send(
        self, form: Sent, who: str = "", headers: dict[str, str] | None = None, **fields: str
    ) -> httpx2.Response:
        sent = SAME_ORIGIN if headers is None else headers
        sent = {**sent, "x-as": who, "content-type": "application/x-www-form-urlencoded"}
        return await self.http.post(form.action, content=urlencode(form.hidden | fields), headers=sent)


class Sent:
    """A form as it stands on a page."""

    def __init__(self, action: str, hidden: dict[str, str]) -> None:
        self.action, self.hidden = action, hidden

    @classmethod
    def found(cls, page: str, what: str) -> Sent:
        match = re.search(rf'<form method="post" action="([^"]+/{what})".*?</form>', page, re.DOTALL)
        assert match is not None, f"the page has no form to {what}"
        hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', match[0])
        return cls(unescape(match[1]), {unescape(name): unescape(value) for name, value in hidden})


@asynccontextmanager
async def pages_and_worker(client: Client, name: str) -> AsyncGenerator[Pages]:
    """Serve the pages of an app that asks for all kinds of answers."""
    model = Clerk()
    async with served_pages(client, clerk_app(name, model), model) as pages:
        yield pages


@asynccontextmanager
async def served_pages(
    client: Client, app: AnyApp, model: Clerk | None = None, *, artifacts: ArtifactService | None = None
) -> AsyncGenerator[Pages]:
    """Serve the pages of an app."""
    streams = TokenHub()
    server = Server(client, [app], streams, artifacts)
    await server.start()
    try:
        async with (
            serving(client, app, streams=streams),
            httpx2.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http,
        ):
            yield Pages(client, app.name, model or Clerk(), server, http)
    finally:
        await server.stop()
