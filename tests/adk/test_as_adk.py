"""Turns of many shapes, each beside google.adk's own runner with the same agents: their logs and their errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.apps.app import App
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, ToolContext
from google.genai import types
from temporalio.client import Client

from perdure.journal.events import Event
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import serving, short

pytestmark = pytest.mark.server

Told = tuple[list[str], str | None]
"""A turn's log, and its error."""


async def as_adk(root: BaseAgent, messages: int) -> list[Told]:
    """Return what ADK's own runner gives for some messages."""
    runner = InMemoryRunner(app=App(name="shop", root_agent=root))
    session = await runner.session_service.create_session(app_name="shop", user_id="u")
    told: list[Told] = []
    for _ in range(messages):
        lines, error = list[str](), None
        try:
            async for event in runner.run_async(
                user_id="u", session_id=session.id, new_message=types.UserContent("go")
            ):
                lines += short(Event.model_validate(event.model_dump(mode="json", by_alias=True, exclude_none=True)))
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        told.append((lines, error))
    return told


async def as_perdure(client: Client, app_name: str, root: BaseAgent, messages: int) -> list[Told]:
    """Return what Perdure gives for them."""
    told: list[Told] = []
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        for _ in range(messages):
            view = await user.run("go")
            lines = [line for line in await user.log(view.id) if not line.startswith("user:")]
            told.append((lines, view.failures[0].cause if view.failures else None))
    return told


def pay() -> str:
    """Pay."""
    return "paid"


def ask(tool_context: ToolContext) -> dict[str, str]:
    """Ask."""
    tool_context.request_confirmation(hint="sure?")
    return {"status": "asked"}


def look() -> str:
    """Look."""
    return "seen"


def skip(tool_context: ToolContext) -> str:
    """Do without a summary."""
    tool_context.actions.skip_summarization = True
    return "skipped"


TOOLS: dict[str, Any] = {"pay": FunctionTool(pay, require_confirmation=True), "ask": ask, "look": look, "skip": skip}


@pytest.mark.parametrize(
    "names", [names for size in (1, 2, 3) for names in itertools.combinations(TOOLS, size)], ids="+".join
)
async def test_calls_of_one_answer_end_the_turn_or_not(client: Client, app_name: str, names: tuple[str, ...]) -> None:
    """In an app that nothing pauses: tools that ask, or want no summary, beside others that do neither."""

    def root() -> BaseAgent:
        calls = [part for name in names for part in call(name)]
        return agent("clerk", calls, say("summary"), tools=[TOOLS[name] for name in names])

    assert await as_perdure(client, app_name, root(), 1) == await as_adk(root(), 1)


def route(desk: str, tool_context: ToolContext) -> str:
    """Route."""
    tool_context.actions.transfer_to_agent = desk
    return f"to {desk}"


def _lost(*parts: types.Part) -> BaseAgent:
    return agent("desk", list(parts), say("here"), tools=[route, look])


LOST: dict[str, Callable[[], BaseAgent]] = {
    "by the model": lambda: agent(
        "root",
        call("transfer_to_agent", agent_name="nobody"),
        say("here"),
        sub_agents=[agent("other", say("other"))],
    ),
    "by a tool": lambda: _lost(*call("route", desk="nobody")),
    "by a tool beside others": lambda: _lost(*call("look"), *call("route", desk="nobody")),
    "by a sub-agent": lambda: agent(
        "root",
        call("transfer_to_agent", agent_name="desk"),
        say("root"),
        sub_agents=[_lost(*call("route", desk="nobody"))],
    ),
}


@pytest.mark.parametrize("who", LOST)
async def test_a_transfer_to_nobody_fails_the_turn_and_no_later_one(client: Client, app_name: str, who: str) -> None:
    assert await as_perdure(client, app_name, LOST[who](), 2) == await as_adk(LOST[who](), 2)
