"""Tools that have returned, and callbacks or plugins behind them that raise: a resume runs the tool no second time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents.adk_app import AdkApp
from perdure.agents.durable import durable
from perdure.client import Runner
from perdure.journal.fold import fold_journal
from perdure.messages.session import Trial
from perdure.recovery.salvage import salvage
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import responses, serving

pytestmark = pytest.mark.server

Wrap = Callable[[Any], Any]


class Desk:
    """An agent that books, and what looks at its tools behind them: it raises until it is mended."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.before: list[str] = []
        self.seen: list[tuple[Any, Any]] = []
        self.mended = False

    def book(self, what: str, tool_context: ToolContext) -> dict[str, Any]:
        """Book something."""
        self.ran.append(what)
        tool_context.state[f"booked:{what}"] = len(self.ran)
        return {"number": 7}

    def before_tool(self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        self.before.append(args["what"])
        args["what"] = args["what"].upper()

    def after_tool(self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> Any:
        return self.look(args["what"], tool_response)

    def look(self, what: Any, response: Any) -> None:
        self.seen.append((what, response))
        if not self.mended:
            raise RuntimeError("no ink")


class ToolPlugin(BasePlugin):
    def __init__(self, desk: Desk) -> None:
        super().__init__(name="tools")
        self._desk = desk

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> None:
        self._desk.look(tool_args["what"], result)


class EventPlugin(BasePlugin):
    def __init__(self, desk: Desk) -> None:
        super().__init__(name="events")
        self._desk = desk

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        for response in event.get_function_responses():
            self._desk.look("A", response.response)


def by_agent(desk: Desk, name: str, tool: Any, *calls: list[Any]) -> AdkApp:
    callbacks = {"before_tool_callback": desk.before_tool, "after_tool_callback": desk.after_tool}
    root = agent("desk", *(calls or [call("book", what="a")]), say("done"), say("done"), tools=[tool], **callbacks)
    return make_app(name, root, resumable=True)


def by_plugin(kind: type[ToolPlugin | EventPlugin]) -> Callable[..., AdkApp]:
    def build(desk: Desk, name: str, tool: Any) -> AdkApp:
        root = agent(
            "desk",
            call("book", what="a"),
            say("done"),
            say("done"),
            tools=[tool],
            before_tool_callback=desk.before_tool,
        )
        return make_app(name, root, resumable=True, plugins=[kind(desk)])

    return build


_BEHIND = {"agent": by_agent, "a plugin of tools": by_plugin(ToolPlugin), "a plugin of events": by_plugin(EventPlugin)}

_TOOLS: dict[str, Wrap] = {
    "function": lambda fn: fn,
    "tool": FunctionTool,
    "long-running": LongRunningFunctionTool,
    "retried": lambda fn: durable(fn, retry=RetryPolicy(initial_interval=timedelta(milliseconds=1))),
    "at most once": lambda fn: durable(fn, at_most_once=True),
}

_TRIALS = {"live": None, "a run for each step": Trial(steps_per_run=1, reenter=True)}


@pytest.mark.parametrize("trial", _TRIALS.values(), ids=_TRIALS)
@pytest.mark.parametrize("tool", _TOOLS)
@pytest.mark.parametrize("behind", _BEHIND)
async def test_a_resume_runs_what_is_behind_a_tool_and_not_the_tool(
    client: Client, app_name: str, behind: str, tool: str, trial: Trial | None
) -> None:
    desk = Desk()
    async with serving(client, _BEHIND[behind](desk, app_name, _TOOLS[tool](desk.book))) as user:
        user.runner = Runner(app_name, client, trial=trial)
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert "no ink" in failed.failures[0].cause
        again = await user.resumed(failed.id)
        assert again.status == "failed"
        desk.mended = True
        done = await user.resumed(failed.id)
        if tool == "long-running":
            done = await user.answered({done.pending[0].id: {"number": 8}})
        assert done.status == "finished", done.failures
        assert (await user.view()).state == {"booked:A": 1}
        assert responses(await user.events(), "book")[0] == {"number": 7}
    assert (desk.ran, desk.before) == (["A"], ["a"])
    assert desk.seen[:3] == [("A", {"number": 7})] * 3


async def test_each_of_two_calls_at_once_runs_once(client: Client, app_name: str) -> None:
    desk = Desk()
    both = [*call("book", what="a"), *call("book", what="b")]
    async with serving(client, by_agent(desk, app_name, desk.book, both)) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        desk.mended = True
        assert (await user.resumed(failed.id)).status == "finished"
        assert len(responses(await user.events(), "book")) == 2
    assert sorted(desk.ran) == ["A", "B"]


async def test_a_journal_that_was_rebuilt_knows_it_too(client: Client, app_name: str) -> None:
    desk = Desk()
    async with serving(client, by_agent(desk, app_name, desk.book)) as user:
        await user.create()
        failed = await user.run("go")
        projection = await user.journal()
        (history,) = await user.histories()
        rebuilt = fold_journal(salvage(history.events))
    assert projection.invocations[failed.id].kept
    assert rebuilt.invocations[failed.id].kept == projection.invocations[failed.id].kept


@pytest.mark.parametrize("result", [object(), "x" * 300_000], ids=["no JSON", "too large"])
async def test_what_cannot_be_kept_fails_as_ever(client: Client, app_name: str, result: object) -> None:
    desk = Desk()

    def book(what: str) -> Any:
        """Book something."""
        desk.ran.append(what)
        return result

    async with serving(client, by_agent(desk, app_name, book)) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        desk.mended = True
        assert (await user.resumed(failed.id)).status == "finished"
    assert len(desk.ran) == 2


async def test_a_tool_that_another_calls_is_none_of_the_call(client: Client, app_name: str) -> None:
    """The class of both is the same, and so is the context."""
    desk = Desk()
    inner = FunctionTool(lambda: {"inner": 1})

    async def book(what: str, tool_context: ToolContext) -> Any:
        """Book something."""
        desk.ran.append(what)
        return {"outer": await inner.run_async(args={}, tool_context=tool_context)}

    async with serving(client, by_agent(desk, app_name, FunctionTool(book))) as user:
        await user.create()
        failed = await user.run("go")
        desk.mended = True
        assert (await user.resumed(failed.id)).status == "finished"
        assert responses(await user.events(), "book") == [{"outer": {"inner": 1}}]
    assert desk.ran == ["A"]
