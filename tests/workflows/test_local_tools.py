"""Local tools: no activity of their own in the history, and yet recorded, retried, stopped and replayed like any."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents import FunctionTool, ToolContext
from perdure.errors import DefinitionError
from perdure.prove.replay import replay_history
from tests.workflows.support import (
    ONCE,
    Counted,
    Gate,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    named,
    responses,
    serving,
    text,
)
from tests.workflows.test_continue_as_new import runs

pytestmark = pytest.mark.server

ROUNDS = 8


def local(fn: Callable[..., Any], **options: Any) -> FunctionTool:
    return FunctionTool(fn, local=True, **options)


async def history(user: User) -> list[HistoryEvent]:
    """Return the events of all runs: a session hands over before its first local tool."""
    return [event for run in await user.histories() for event in run.events]


async def scheduled(user: User) -> list[str]:
    """Return the types of the activities that went through the server."""
    found = [event.activity_task_scheduled_event_attributes.activity_type.name for event in await history(user)]
    return [name for name in found if name and not name.startswith("perdure:")]


async def markers(user: User) -> int:
    """Return how many ends of local tools are recorded."""
    found = [event.marker_recorded_event_attributes.details.get("data") for event in await history(user)]
    return sum(data is not None and b"perdure:" not in data.payloads[0].data for data in found)


async def lost_tasks(user: User) -> int:
    """Return how many workflow tasks were begun, and never answered: on a busy machine there are some."""
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT for event in await history(user))


@pytest.mark.parametrize("cached", [0, 100])
async def test_a_local_tool_runs_once_and_is_recorded(client: Client, app_name: str, cached: int) -> None:
    """As a marker, which a replay takes the result from; sync and async, with state, actions and a key of its own."""
    seen: list[tuple[str, Any]] = []

    async def note(word: str, tool_context: ToolContext) -> str:
        """Note a word."""
        seen.append((tool_context.idempotency_key, tool_context.state["k"]))
        tool_context.state["last"] = word
        return word.upper()

    add = Counted("add", 3)
    clerk = agent("clerk", [calls("note", "add", word="a"), calls("note", word="b"), text("done")])
    clerk.tools.extend([local(note), local(add.fn)])
    async with serving(client, make_app(app_name, clerk), cached=cached) as user:
        await user.create(k=1)
        assert (await user.run("go")).status == "finished"
        assert responses(await user.events(), "note") == [{"result": "A"}, {"result": "B"}]
        assert responses(await user.events(), "add") == [{"result": 3}]
        assert (await user.view()).state == {"k": 1, "last": "b"}
        assert (await scheduled(user), await markers(user)) == ([], 3)
        again = await lost_tasks(user)
    assert len(seen) == 2 or again, "only a workflow task that was lost lets a local tool run twice"
    assert {state for _, state in seen} == {1}
    assert len({key for key, _ in seen} | set(add.keys)) == 3


async def test_a_local_tool_is_retried_by_its_policy(client: Client, app_name: str) -> None:
    """At once where the pause is short, after a timer where it is long; then the invocation fails, and is resumable."""
    quick, slow = Counted("quick", fail=2), Counted("slow", fail=1)
    fails, kept = Counted("fails", fail=1), Counted("kept")
    at_once = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3)
    clerk = agent("clerk", [calls("quick", "slow"), calls("fails", "kept"), text("done")])
    clerk.tools.extend([local(quick.fn, retry=at_once), local(slow.fn), local(fails.fn, retry=ONCE), local(kept.fn)])
    # Replayed at the end only: the SDK's core may lose a session whose local activity ends while it leaves the cache.
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("go")
        assert (failed.status, failed.failures[0].step) == ("failed", "fails")
        assert failed.failures[0].cause == "RuntimeError: call 1 of fails fails"
        assert (await user.resumed(failed.id)).status == "finished"
        assert await scheduled(user) == []
        await replay_history(await user.workflow.fetch_history())
    counts = {tool: (len(tool.keys), len(set(tool.keys))) for tool in (quick, slow, fails, kept)}
    assert counts == {quick: (3, 1), slow: (2, 1), fails: (2, 1), kept: (1, 1)}


async def test_a_local_tool_that_takes_too_long_times_out(client: Client, app_name: str) -> None:
    gate = Gate()
    slow = local(gate.tool("slow"), timeout=timedelta(seconds=0.5), retry=ONCE)
    async with serving(client, make_app(app_name, agent("clerk", [calls("slow"), text("done")], [slow]))) as user:
        await user.create()
        failed = await user.run("go")
        assert (failed.status, failed.failures[0].cause) == ("failed", "timed out (start-to-close timeout)")
        gate.open()
        assert (await user.resumed(failed.id)).status == "finished"


async def test_a_stop_reaches_a_local_tool(client: Client, app_name: str) -> None:
    """As soon as the server gives the session its next task: within some seconds, not in the middle of one."""
    gate = Gate()
    slow = local(gate.tool("slow"), timeout=timedelta(seconds=50))
    async with serving(client, make_app(app_name, agent("clerk", [calls("slow"), text("done")], [slow]))) as user:
        await user.create()
        invocation = await user.send("go")
        await gate.reached()
        assert (await user.stop(invocation)).status == "stopped"
        assert (gate.cancelled, len(gate.keys)) == (1, 1)
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert len(set(gate.keys)) == 1


async def test_a_stop_ends_the_pause_before_a_retry(client: Client, app_name: str) -> None:
    work = Counted("work", fail=1)
    later = RetryPolicy(initial_interval=timedelta(minutes=5), maximum_interval=timedelta(minutes=5))
    tool = local(work.fn, retry=later)
    async with serving(client, make_app(app_name, agent("clerk", [calls("work"), text("done")], [tool]))) as user:
        await user.create()
        invocation = await user.send("go")
        await eventually(lambda: _recorded(user))
        assert (await user.stop(invocation)).status == "stopped"
        assert (await user.resumed(invocation)).status == "finished"
        assert (len(work.keys), len(set(work.keys))) == (2, 1)


async def test_a_lengthy_local_tool_outlives_the_workflow_task(client: Client, app_name: str) -> None:
    """Nothing heartbeats for it, yet it runs once: the worker asks for more time."""
    runs: list[int] = []

    def slow() -> str:
        """Take long."""
        runs.append(1)
        time.sleep(11)
        return "slept"

    tool = local(slow, timeout=timedelta(seconds=30))
    async with serving(client, make_app(app_name, agent("clerk", [calls("slow"), text("done")], [tool]))) as user:
        await user.create()
        invocation = await user.send("go")
        assert (await user.settled(invocation, patience=40)).status == "finished"
        assert len(runs) == 1


async def test_a_local_tool_that_a_worker_does_not_have_is_looked_for_elsewhere(client: Client, app_name: str) -> None:
    work, pick = Counted("work"), long_running("pick")
    script = [calls("pick"), calls("work"), text("done")]
    whole = make_app(app_name, agent("clerk", script, [pick, local(work.fn)]))
    async with serving(client, whole) as user:
        await user.create()
        waiting = await user.run("a")
    async with serving(client, make_app(app_name, agent("clerk", script, [pick]))) as user:
        await user.answer({waiting.pending[0].id: {}})
        await eventually(lambda: _recorded(user))
        assert await user.status(waiting.id) == "running"
    async with serving(client, whole) as user:
        assert (await user.settled(waiting.id, patience=40)).status == "finished"
        assert (len(work.keys), await scheduled(user)) == (1, ["pick", "work"])


async def _recorded(user: User) -> bool:
    return await markers(user) == 1


async def test_much_state_and_large_results(client: Client, app_name: str) -> None:
    """With too much state it runs as a normal activity; the beginning is told of what is too large."""

    def length(tool_context: ToolContext) -> int:
        """Measure the state."""
        return len(tool_context.state["text"])

    def large() -> str:
        """Return a lot."""
        return "x" * 300_000

    clerk = agent("clerk", [calls("length"), calls("large"), text("done")], [local(length), local(large)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create(text="x" * 100_000)
        assert (await user.run("go")).status == "finished"
        assert responses(await user.events(), "length") == [{"result": 100_000}]
        assert await scheduled(user) == ["length"]
        (told,) = responses(await user.events(), "large")
        assert (told["size"], len(told["beginning"])) == (300_000, 4_000)


async def test_local_tools_are_drained_before_a_run_continues_as_new(small_client: Client, app_name: str) -> None:
    tool = Counted("tool")
    clerk = agent("clerk", [*[calls("tool", "tool")] * ROUNDS, text("done")], [local(tool.fn)])
    async with serving(small_client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        assert await runs(user) > 1
        expected = ["clerk calls tool, tool", "clerk got tool, tool"] * ROUNDS
        assert await user.log() == ["user: a", *expected, "clerk: done"]
    assert len(tool.keys) == len(set(tool.keys)) == 2 * ROUNDS


async def test_a_local_tool_may_ask_for_confirmation(client: Client, app_name: str) -> None:
    pay = Counted("pay", "paid")

    def dear(tool_context: ToolContext) -> bool:
        return "limit" not in tool_context.state

    clerk = agent("clerk", [calls("pay"), text("done")], [local(pay.fn, require_confirmation=dear)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("go")
        assert (waiting.status, pay.keys) == ("waiting", [])
        assert (await user.answered({waiting.pending[0].id: {"confirmed": True}})).status == "finished"
        assert (len(pay.keys), await scheduled(user)) == (1, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heartbeat_timeout": timedelta(seconds=5)}, "a local tool has no heartbeats"),
        ({"timeout": timedelta(minutes=2)}, "1 minute at the most"),
        ({"timeout": timedelta(0)}, "longer than nothing"),
    ],
)
def test_options_that_contradict_local_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        local(named(lambda: None, "work"), **options)


def test_a_local_tool_has_a_short_timeout() -> None:
    """A session takes nothing else meanwhile."""
    tool = local(named(lambda: None, "work"))
    assert (tool.options.timeout, tool.plan().local) == (timedelta(seconds=10), True)
    assert not FunctionTool(named(lambda: None, "work")).plan().local
