"""Calls of one answer run at the same time, and see what the others write, as in ADK: nobody's write is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.tools import ToolContext
from google.adk.tools.base_tool import BaseTool
from temporalio.client import Client

from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import responses, serving

pytestmark = pytest.mark.server


def count(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
    """Keep a list, as audits do."""
    tool_context.state["audit"] = [*tool_context.state.get("audit", []), args["n"]]


async def look_up(n: int, tool_context: ToolContext) -> int:
    """Look up, and take a while; returns how many had begun when it did."""
    await asyncio.sleep(0.2)
    return len(tool_context.state["audit"])


def note(n: int, tool_context: ToolContext) -> str:
    """Write past the delta."""
    tool_context.session.state.setdefault("seen", []).append(n)
    return "noted"


def fail(n: int, tool_context: ToolContext) -> str:
    """Fail at first."""
    tool_context.state["failed"] = tool_context.state.get("failed", 0) + 1
    raise ValueError("no")


def calling(*calls: tuple[str, int]) -> list[Any]:
    return [part for name, n in calls for part in call(name, n=n)]


async def test_each_sees_what_the_others_have_written(client: Client, app_name: str) -> None:
    clerk = agent("clerk", calling(("look_up", 1), ("look_up", 2), ("look_up", 3)), say("done"), tools=[look_up])
    clerk.before_tool_callback = count
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        events = await user.events()
        # Of what several wrote under one key the log takes the last call's, as ADK does; they begin in any order.
        assert (await user.view()).state["audit"][-1] == 3
    assert sorted(found["result"] for found in responses(events, "look_up")) == [1, 2, 3]


async def test_what_is_written_past_deltas_lasts_as_the_invocation_does(client: Client, app_name: str) -> None:
    clerk = agent("clerk", calling(("note", 1), ("look_up", 2), ("note", 3)), say("saw {seen}"), tools=[note, look_up])
    clerk.before_tool_callback = count
    clerk.instruction = "You have seen {seen} and {audit}."
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        # Of the state that is there as the turn begins.
        await user.runner.change_state(**user.who, state_delta={"audit": [], "seen": [0]})
        assert (await user.run("go")).status == "finished"
        state = (await user.view()).state
    assert state["audit"][-1] == 3
    assert state["seen"] == [0]


async def test_what_a_call_wrote_that_failed_is_gone(client: Client, app_name: str) -> None:
    clerk = agent("clerk", calling(("fail", 1)), say("done"), tools=[fail])
    async with serving(client, make_app(app_name, clerk, resumable=True)) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        clerk.tools = [_counted]
        assert (await user.resumed(failed.id)).status == "finished"
        assert (await user.view()).state["failed"] == 1


def _counted(n: int, tool_context: ToolContext) -> str:
    """Succeed."""
    tool_context.state["failed"] = tool_context.state.get("failed", 0) + 1
    return "done"


_counted.__name__ = "fail"
