"""Parts (`partial`) of what custom agents' code and graphs' nodes say are shown as google.adk shows them."""

# google.adk 2 calls its composite agents deprecated; and its Event takes more than its fields.
# pyright: reportDeprecated=false, reportCallIssue=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.adk.loading import as_adk_app
from tests.adk.support import Script, agent, say
from tests.adk.test_custom_agents import Coded, coded
from tests.streams.support import streaming, written

pytestmark = pytest.mark.server


class Writer(Script):
    """Says its words one by one, if it is asked to."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        async for whole in super().generate_content_async(llm_request, stream):
            assert whole.content is not None
            assert whole.content.parts is not None
            words = (whole.content.parts[0].text or "").split(" ") if stream else []
            for number, word in enumerate(words):
                yield LlmResponse(content=content(f" {word}" if number else word), partial=True)
            yield whole


class Louder(BasePlugin):
    """Changes what everybody says."""

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
        if event.content is None or not event.content.parts:
            return None
        louder = event.model_copy(deep=True)
        assert louder.content is not None
        assert louder.content.parts is not None
        louder.content.parts[0].text = (louder.content.parts[0].text or "").upper()
        return louder


def content(words: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=words)])


def part(of: BaseAgent, ctx: InvocationContext, words: str) -> Event:
    return Event(author=of.name, invocation_id=ctx.invocation_id, partial=True, content=content(words))


def newsroom() -> BaseAgent:
    """Return an agent that says parts before, between and behind what its sub-agent says."""

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield part(self, ctx, "Good ")
        yield part(self, ctx, "day.")
        yield self.says(ctx, "Good day.", greeted=True)
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
        for number in (1, 2):
            yield part(self, ctx, f"News {number}")
            yield self.says(ctx, f"News {number}.")

    writer = agent("writer")
    writer.model = Writer(say("It is fine"))
    return coded("newsroom", code, writer)


def builder() -> BaseAgent:
    """Return an agent whose code runs an agent that nobody knew before: it streams within the code's step."""

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        made = agent("made", instruction="Speak.")
        made.model = Writer(say("I was made"))
        async for event in made.run_async(ctx):
            yield event
        yield self.says(ctx, "Made.")

    return coded("builder", code)


def reporting() -> Any:
    """Return a graph whose nodes say parts, one behind an event of its own; an agent among them streams."""
    from google.adk import Event as GraphEvent
    from google.adk import Workflow

    async def report(node_input: str) -> AsyncGenerator[Any]:
        yield GraphEvent(content=content("Looking "), partial=True)
        yield GraphEvent(content=content("around."), partial=True)
        yield GraphEvent(message="Looking around.")
        yield GraphEvent(content=content("Found "), partial=True)
        yield GraphEvent(message="Found it.")
        yield GraphEvent(output=node_input)

    writer = agent("writer")
    writer.model = Writer(say("It is fine"))
    return Workflow(name="reporting", edges=[("START", report, writer)])


ROOTS: dict[str, Callable[[], Any]] = {"newsroom": newsroom, "builder": builder}
if MAJOR >= 2:
    ROOTS["reporting"] = reporting


async def by_adk(app: App) -> list[str]:
    runner = InMemoryRunner(app=app)
    await runner.session_service.create_session(app_name=app.name, user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    seen: list[str] = []
    async for event in runner.run_async(
        user_id="u", session_id="s", new_message=message, run_config=RunConfig.model_validate({"streaming_mode": "sse"})
    ):
        text = "".join(one.text or "" for one in (event.content.parts if event.content else None) or [])
        seen.append(f"{event.author}: [{text}]" if event.partial else f"{event.author}: {text or '-'}")
    return seen


@pytest.mark.usefixtures("suspended")
@pytest.mark.parametrize("name", list(ROOTS))
@pytest.mark.parametrize("plugins", [False, True], ids=["plain", "plugin"])
async def test_parts_come_as_in_google_adk(client: Client, app_name: str, name: str, plugins: bool) -> None:
    def app() -> App:
        return App(name=app_name, root_agent=ROOTS[name](), plugins=[Louder("louder")] if plugins else [])

    truth = await by_adk(app())
    assert sum("[" in line for line in truth) > 2
    served = as_adk_app(app(), app_name)
    assert served is not None
    async with streaming(client, cast(Any, served)) as user:
        await user.create()
        seen = [e async for e in user.runner.run_async(**user.who, new_message="go", streaming=True)]
        stored = await user.events()
    told = [f"{event.author}: {text}" for event, text in zip(seen, written(seen), strict=True)]
    assert [line for event, line in zip(seen, told, strict=True) if not event.actions.end_of_agent] == truth
    assert [event.id for event in stored if event.author != "user"] == [e.id for e in seen if not e.partial]
    # What they are parts of has their id.
    for event, text in zip(seen, written(seen), strict=True):
        if event.partial:
            assert any(one.id == event.id and text[1:-1] in (one.text or "") for one in stored), text


async def test_parts_behind_an_event_do_not_wait_for_the_end_of_the_code(client: Client, app_name: str) -> None:
    """An event is logged by a step that returns; the code goes on."""
    go_on = threading.Event()

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says(ctx, "Begun.")
        yield part(self, ctx, "still ")
        await asyncio.to_thread(go_on.wait, 20)
        yield self.says(ctx, "still here")

    app = as_adk_app(App(name=app_name, root_agent=coded("slow", code)), app_name)
    async with streaming(client, cast(Any, app)) as user:
        await user.create()
        seen: list[str] = []
        async for event in user.runner.run_async(**user.who, new_message="go", streaming=True):
            seen += written([event])
            if event.partial:
                go_on.set()
    assert seen[:3] == ["Begun.", "[still ]", "still here"]
