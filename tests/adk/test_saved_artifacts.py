"""What code saves that may run from its top again has the versions that it has with google.adk: no more, no less."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false, reportCallIssue=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.agents.base_agent import BaseAgentState
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.runners import InMemoryRunner
from google.genai import types
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.adk.loading import as_adk_app
from perdure.artifacts import FileArtifactService
from tests.adk.support import agent, call, say
from tests.workflows.support import serving

pytestmark = pytest.mark.server

APP = "archive"
_QUESTION = "adk_request_input"


def text(words: str) -> types.Part:
    return types.Part(text=words)


class Keeper(BaseAgent):
    """Keeps files itself, before, between and behind its agents."""

    async def keep(self, ctx: InvocationContext, name: str, words: str) -> Event:
        assert ctx.artifact_service is not None
        version = await ctx.artifact_service.save_artifact(
            app_name=ctx.app_name,
            user_id=ctx.user_id,
            session_id=ctx.session.id,
            filename=name,
            artifact=text(words),
        )
        return Event(author=self.name, invocation_id=ctx.invocation_id, content=types.ModelContent(f"{name} {version}"))

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield await self.keep(ctx, "log", "begun")
        for number, each in enumerate(self.sub_agents):
            async for event in each.run_async(ctx):
                yield event
            yield await self.keep(ctx, "log", "goes on")
            yield await self.keep(ctx, f"part {number}", "goes on")


class Step(BaseAgentState):
    done: int = 0


class Checkpoints(Keeper):
    """Goes on behind its last checkpoint, where it runs again."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        known = self._load_agent_state(ctx, Step)
        for number in range(known.done if known is not None else 0, len(self.sub_agents)):
            yield await self.keep(ctx, "log", "begins")
            yield await self.keep(ctx, f"part {number}", "begins")
            async for event in self.sub_agents[number].run_async(ctx):
                yield event
            yield await self.keep(ctx, "log", "begins")
            ctx.set_agent_state(self.name, agent_state=Step(done=number + 1))
            yield self._create_agent_state_event(ctx)
        yield await self.keep(ctx, "log", "begins")


def custom() -> Any:
    return Keeper(name="root", sub_agents=[agent("one", say("1")), agent("two", say("2"))])


def checkpoints() -> Any:
    return Checkpoints(name="root", sub_agents=[agent(f"a{number}", say("said")) for number in range(3)])


def nodes() -> Any:
    """Return a graph whose nodes keep files of one name, of names of their own, and twice at once."""
    from google.adk import Context, Workflow

    async def plan(ctx: Context, node_input: str) -> str:
        return f"plan {await ctx.save_artifact('plan', text('roof'))}"

    async def left(ctx: Context, node_input: str) -> str:
        await asyncio.gather(ctx.save_artifact("left", text("same")), ctx.save_artifact("left", text("same")))
        return "left"

    async def letter(ctx: Context, node_input: str) -> str:
        await ctx.save_artifact("plan", text("roof"))
        return f"letter {await ctx.save_artifact('letter', text('left'))}"

    async def end(ctx: Context, node_input: str) -> str:
        return f"end {await ctx.save_artifact('letter', text('left'))}"

    return Workflow(name="root", edges=[("START", plan, left, letter, agent("reader", say("read")), end)])


def rounds() -> Any:
    """Return a graph that goes round: each round keeps the same again, and asks a person, who says it is enough."""
    from google.adk import Context, Event, Workflow
    from google.adk.events.request_input import RequestInput
    from google.adk.workflow import node

    async def draft(ctx: Context) -> str:
        return f"draft {await ctx.save_artifact('draft', text('a draft'))}"

    @node(rerun_on_resume=True)
    async def ask(ctx: Context, node_input: str) -> AsyncGenerator[Any]:
        await ctx.save_artifact("asked", text("the same"))
        if not (given := ctx.resume_inputs):
            yield RequestInput(message=f"Is it good? {node_input}")
            return
        yield Event(output="said", route=next(iter(given.values())))

    async def send(ctx: Context) -> str:
        return f"sent {await ctx.save_artifact('letter', text('a letter'))}"

    return Workflow(name="root", edges=[("START", draft, ask), (ask, {"again": draft, "good": send})])


def tried_again() -> Any:
    """Return a graph with a node that fails twice."""
    from google.adk import Context, Workflow
    from google.adk.workflow import RetryConfig, node

    @node(retry_config=RetryConfig(max_attempts=3, initial_delay=0.01, jitter=0.0))
    async def fetch(ctx: Context, node_input: str) -> str:
        await ctx.save_artifact("page", text("a page"))
        if ctx.attempt_count < 3:
            raise ConnectionError("not yet")
        return "fetched"

    async def end(ctx: Context, node_input: str) -> str:
        return f"end {await ctx.save_artifact('page', text('a page'))}"

    return Workflow(name="root", edges=[("START", fetch, end)])


def dynamic() -> Any:
    """Return a graph whose node runs another one several times, and keeps files itself."""
    from google.adk import Context, Workflow
    from google.adk.workflow import node

    async def check(ctx: Context, node_input: str) -> str:
        return f"{node_input}{await ctx.save_artifact('check', text('a check'))}"

    @node(rerun_on_resume=True)
    async def game(ctx: Context, node_input: str) -> str:
        said = node_input
        for _ in range(3):
            said = await ctx.run_node(check, node_input=said)
        return f"{said} {await ctx.save_artifact('check', text('a check'))}"

    return Workflow(name="root", edges=[("START", game)])


def tool() -> Any:
    """Return an agent whose tool runs a node twice."""
    from google.adk.tools import ToolContext

    async def double(ctx: ToolContext, node_input: str) -> str:
        return f"{node_input}{await ctx.save_artifact('double', text('the same'))}"

    async def shout(what: str, tool_context: ToolContext) -> str:
        """Shout something."""
        await tool_context.save_artifact("shout", text("the same"))
        said = await tool_context.run_node(double, await tool_context.run_node(double, what))
        return f"{said} {await tool_context.save_artifact('shout', text('the same'))}"

    return agent("root", call("shout", what="roof"), say("done"), tools=[shout])


async def note(callback_context: CallbackContext, **_: Any) -> None:
    await callback_context.save_artifact("seen", text("the same"))


def at_once() -> Any:
    """Return a graph with an agent that works on two things at once, whose callbacks keep the same files."""
    from google.adk import Workflow
    from google.adk.workflow import node

    def split() -> list[str]:
        return ["a", "b"]

    def end(node_input: Any) -> str:
        return "done"

    callbacks: dict[str, Any] = {"before_agent_callback": note, "before_model_callback": note}
    helper = node(agent("helper", say("done"), say("done"), **callbacks), parallel_worker=True)
    return Workflow(name="root", edges=[("START", split, helper, end)])


Build = Callable[[], Any]

BUILDS: dict[Build, list[str]] = {custom: [], checkpoints: []}
"""What keeps files, with what a person answers."""
if MAJOR >= 2:
    BUILDS.update({nodes: [], rounds: ["again", "again", "good"], tried_again: [], dynamic: [], tool: [], at_once: []})


def app_of(build: Build) -> App:
    resumable = ResumabilityConfig(is_resumable=True) if build is checkpoints else None
    return App(name=APP, root_agent=build(), resumability_config=resumable)


async def kept(service: Any, app: str) -> dict[str, list[str]]:
    """Return the texts of all versions, by name."""
    which = {"app_name": app, "user_id": "u", "session_id": "s"}
    found: dict[str, list[str]] = {}
    for name in await service.list_artifact_keys(**which):
        versions = await service.list_versions(filename=name, **which)
        parts = [await service.load_artifact(filename=name, version=version, **which) for version in versions]
        found[name] = [part.text for part in parts]
    return found


async def by_adk(build: Build) -> dict[str, list[str]]:
    runner = InMemoryRunner(app=app_of(build))
    await runner.session_service.create_session(app_name=APP, user_id="u", session_id="s")
    message = types.UserContent("roof")
    for answer in [*BUILDS[build], ""]:
        events = [event async for event in runner.run_async(user_id="u", session_id="s", new_message=message)]
        asked = [one for event in events for one in event.get_function_calls() if one.name == _QUESTION]
        assert len(asked) == (1 if answer else 0)
        for one in asked:
            given = types.FunctionResponse(id=one.id, name=_QUESTION, response={"result": answer})
            message = types.Content(role="user", parts=[types.Part(function_response=given)])
    return await kept(runner.artifact_service, APP)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
async def test_artifacts_have_the_versions_that_they_have_with_google_adk(
    client: Client, app_name: str, suspended: str, tmp_path: Path, build: Build
) -> None:
    """Also where nothing is kept in memory, so that each step runs the code from its top, or its last checkpoint."""
    artifacts = FileArtifactService(tmp_path)
    app = as_adk_app(app_of(build), app_name)
    assert app is not None
    async with serving(client, app, artifacts=artifacts) as user:
        await user.create()
        view = await user.run("roof")
        for answer in BUILDS[build]:
            (asked,) = view.pending
            view = await user.answered({asked.id: {"result": answer}})
        assert view.status == "finished", view.failures
    assert await kept(artifacts, app_name) == await by_adk(build)
