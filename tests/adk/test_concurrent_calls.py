"""Calls of one answer run at the same time, and see what the others write, as in ADK: nobody's write is lost."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest
from google.adk.events.event import Event as AdkEvent
from google.adk.sessions.state import State
from google.adk.tools import ToolContext
from google.adk.tools.base_tool import BaseTool
from temporalio.client import Client

from perdure.adk.events import AdkEvents
from perdure.adk.session_service import SharedState, StepSession
from perdure.journal.projection import Projection
from perdure.messages.keys import SessionKey
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import serving


def count(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
    """Keep a list, as audits do."""
    tool_context.state["audit"] = [*tool_context.state.get("audit", []), args["n"]]


async def look_up(n: int, tool_context: ToolContext) -> int:
    """Look up, and take a while."""
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


class Call:
    """One of several calls of an answer that run at the same time here, and see the same state."""

    def __init__(self, shared: SharedState) -> None:
        shared.at_work += 1
        self.step = StepSession(SessionKey("shop", "ann", "s1"), Projection(), shared, AdkEvents())
        self.event = AdkEvent(author="clerk", invocation_id="e-1")
        self.shared = shared
        self.state = State(self.step.session.state, self.event.actions.state_delta)

    def count(self, n: int) -> None:
        self.state["audit"] = [*self.state.get("audit", []), n]

    def returns(self) -> dict[str, Any]:
        """Return what it logs, and then what it wrote past its delta."""
        logged = self.step.returned(self.event).actions.state_delta
        past = self.step.written_past_deltas()
        self.shared.at_work -= 1
        return {**logged, **past}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_none_that_returns_takes_back_what_another_has_written(order: tuple[int, ...]) -> None:
    shared = SharedState.of({})
    audited = [Call(shared) for _ in range(3)]
    for number, one in enumerate(audited):
        one.count(number)
    logged = {index: audited[index].returns() for index in order}
    assert shared.state == {"audit": [0, 1, 2]}
    assert [logged[index]["audit"] for index in range(3)] == [[0], [0, 1], [0, 1, 2]]


def test_one_that_writes_once_another_has_returned_sees_its_write() -> None:
    shared = SharedState.of({})
    early, late = Call(shared), Call(shared)
    early.count(1)
    early.returns()
    late.count(2)
    assert late.returns() == {"audit": [1, 2]}


def calling(*calls: tuple[str, int]) -> list[Any]:
    return [part for name, n in calls for part in call(name, n=n)]


@pytest.mark.server
async def test_each_sees_what_the_others_have_written(client: Client, app_name: str) -> None:
    clerk = agent("clerk", calling(("look_up", 1), ("look_up", 2), ("look_up", 3)), say("done"), tools=[look_up])
    clerk.before_tool_callback = count
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert sorted((await user.view()).state["audit"]) == [1, 2, 3]


@pytest.mark.server
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
    assert sorted(state["audit"]) == [1, 2, 3]
    assert state["seen"] == [0]


@pytest.mark.server
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
