"""Several steps of an agent in one activity: the log is as with one, and each step is kept before the next begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities import kept_steps
from perdure.agents import App, LlmAgent, ParallelAgent, ResumabilityConfig, ToolContext
from perdure.agents.custom import BaseAgent
from perdure.agents.tools import FunctionTool
from perdure.config import WorkerConfig
from perdure.errors import DefinitionError
from perdure.journal.entries import ModelCalled
from perdure.models.scripted import ScriptedModel
from perdure.plan.nodes import ToolOptions
from tests.sessions.test_lifetime import start, terminated, timed_out
from tests.workflows.support import ONCE, Counted, Gate, User, agent, calls, check_log, named, serving, text
from tests.workflows.test_resets import points, reset

pytestmark = pytest.mark.server

ROUNDS = 8


def app_of(name: str, root: BaseAgent, steps: int = 20, **fields: Any) -> App:
    config = ResumabilityConfig(is_resumable=True)
    return App(name=name, root_agent=root, resumability_config=config, steps_per_activity=steps, **fields)


async def activities(user: User) -> list[str]:
    """Return the activities of a session's agents, in order."""
    history = await user.workflow.fetch_history()
    kinds = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    return [kind.removeprefix("perdure:") for kind in kinds if kind != "perdure:load_plan"]


@pytest.mark.parametrize(("steps", "models"), [(1, 9), (2, 9), (3, 5), (20, 1)])
async def test_a_turn_takes_as_many_activities_as_its_steps_need(
    client: Client, app_name: str, steps: int, models: int
) -> None:
    tool = Counted("look")
    clerk = agent("clerk", [*([calls("look")] * ROUNDS), text("done")], [tool.fn])
    async with serving(client, app_of(app_name, clerk, steps)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert await user.log() == [
            "user: go",
            *(["clerk calls look", "clerk got look"] * ROUNDS),
            "clerk: done",
        ]
        check_log(await user.events())
        assert (await activities(user)).count("model") == models
        assert len(set(tool.keys)) == len(tool.keys) == ROUNDS
        assert sum(isinstance(entry, ModelCalled) for entry in (await user.journal()).entries) == ROUNDS + 1


async def test_a_stop_keeps_what_was_done_and_a_resume_goes_on_behind_it(client: Client, app_name: str) -> None:
    before, gate = Counted("look"), Gate()
    clerk = agent("clerk", [calls("look"), calls("slow"), text("done")], [before.fn, gate.tool("slow")])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("go")
        await gate.reached()
        assert (await user.stop(invocation)).status == "stopped"
        done = ["user: go", "clerk calls look", "clerk got look", "clerk calls slow"]
        assert await user.log() == done
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert await user.log() == [*done, "clerk got slow", "clerk: done"]
        assert (len(before.keys), len(gate.keys), len(set(gate.keys))) == (1, 2, 1)


async def test_a_sync_tool_that_finishes_in_spite_of_a_stop_does_not_run_again(client: Client, app_name: str) -> None:
    before, gate = Counted("look"), Gate()
    clerk = agent("clerk", [calls("look"), calls("work"), text("done")], [before.fn, gate.tool("work", sync=True)])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("go")
        await gate.reached()
        stopping = asyncio.create_task(user.stop(invocation))
        # Longer than a stop takes to reach the tool.
        await asyncio.sleep(2.5)
        assert not stopping.done()
        gate.open()
        assert (await stopping).status == "stopped"
        assert (await user.resumed(invocation)).status == "finished"
        assert (len(before.keys), len(gate.keys)) == (1, 1)
        check_log(await user.events())


async def test_all_apps_of_a_worker_may_be_given_the_number(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("look"), calls("look"), text("done")], [Counted("look").fn])
    async with serving(client, app_of(app_name, clerk, 1), steps_per_activity=20) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert await activities(user) == ["model"]


@pytest.mark.parametrize("steps", [0, 101])
def test_a_worker_takes_no_other_number_than_an_app(steps: int) -> None:
    with pytest.raises(DefinitionError, match="from 1 to 100"):
        WorkerConfig(steps_per_activity=steps)


@pytest.mark.parametrize(("fails", "runs", "status"), [(1, 2, "finished"), (2, 3, "finished"), (9, 3, "failed")])
async def test_a_tool_is_tried_as_often_as_by_itself(
    client: Client, app_name: str, fails: int, runs: int, status: str
) -> None:
    first, tool = Counted("look"), Counted("flaky", fail=fails)
    clerk = agent("clerk", [calls("look", "flaky"), text("done")], [first.fn, tool.fn])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == status
        assert (len(tool.keys), len(set(tool.keys)), len(first.keys)) == (runs, 1, 1)
        effects = await user.runner.effects(**user.who)
        assert [effect.attempts for effect in effects] == [1, runs]


async def test_a_model_is_asked_as_often_as_by_itself(client: Client, app_name: str) -> None:
    """An error that is not to be tried again fails the turn, and a resume asks again."""
    tool = Counted("look")
    clerk = agent("clerk", [calls("look"), {"error": "overloaded"}, text("done")], [tool.fn])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("go")
        assert (failed.status, [failure.step for failure in failed.failures]) == ("failed", ["model"])
        assert await user.log() == ["user: go", "clerk calls look", "clerk got look"]
        assert (await user.resumed(failed.id)).status == "finished"
        assert len(tool.keys) == 1


def _once(fn: Callable[..., Any]) -> FunctionTool:
    return FunctionTool(fn, at_most_once=True)


def _own_retries(fn: Callable[..., Any]) -> FunctionTool:
    return FunctionTool(fn, retry=ONCE)


@pytest.mark.parametrize("make", [_once, _own_retries])
async def test_a_tool_with_options_of_its_own_is_an_activity_of_its_own(
    client: Client, app_name: str, make: Callable[[Callable[..., Any]], FunctionTool]
) -> None:
    tool = Counted("careful")
    clerk = agent("clerk", [calls("careful"), text("done")], [make(tool.fn)])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert await activities(user) == ["model", "careful", "model"]


async def test_no_more_model_calls_are_made_than_are_allowed(client: Client, app_name: str) -> None:
    tool = Counted("look")
    clerk = agent("clerk", [*([calls("look")] * ROUNDS), text("done")], [tool.fn])
    async with serving(client, app_of(app_name, clerk, max_llm_calls=3)) as user:
        await user.create()
        waiting = await user.run("go")
        assert (waiting.status, len(tool.keys)) == ("waiting", 3)
        assert (await user.resumed(waiting.id)).status == "waiting"
        assert len(tool.keys) == 6


async def test_branches_do_their_steps_each_by_itself(client: Client, app_name: str) -> None:
    tools = [Counted(f"look_{name}") for name in "ab"]
    script = [*([calls("look_{}")] * ROUNDS), text("done")]

    def branch(name: str, tool: Counted) -> LlmAgent:
        steps: Sequence[Any] = [calls(f"look_{name}") if "calls" in step else step for step in script]
        return agent(name, steps, [tool.fn])

    both = ParallelAgent(name="both", sub_agents=[branch(name, tool) for name, tool in zip("ab", tools, strict=True)])
    async with serving(client, app_of(app_name, both)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        events = await user.events()
        check_log(events)
        assert [len(tool.keys) for tool in tools] == [ROUNDS, ROUNDS]
        for name in "ab":
            own = [event for event in events if event.author == name and event.parts]
            assert len(own) == 2 * ROUNDS + 1
            assert {event.branch for event in own} == {f"both.{name}"}


async def taken_back(user: User) -> None:
    run_id, found = await points(user)
    await reset(user, run_id, found[-1])


@pytest.mark.parametrize("end", [terminated, timed_out, taken_back])
async def test_what_history_has_lost_is_done_again_by_the_same_keys(
    client: Client, app_name: str, end: Callable[[User], Awaitable[None]]
) -> None:
    """A heartbeat is no history: what the activity had done is lost, and its tools are told by their keys."""
    tool, gate = Counted("look"), Gate()
    clerk = agent("clerk", [calls("look"), calls("slow"), text("done")], [tool.fn, gate.tool("slow")])
    async with serving(client, app_of(app_name, clerk)) as user:
        await start(user, end)
        invocation = await user.send("go")
        await gate.reached()
        await end(user)
        gate.open()
        if end is not taken_back:
            await user.resume(invocation)
        assert (await user.settled(invocation)).status == "finished"
        check_log(await user.events())
        # A reset takes it out of history that there was such an activity.
        lost = [event.error_message or "" for event in await user.events() if event.error_code == "STEPS_LOST"]
        assert len(lost) == (end is not taken_back)
        assert all("several steps of agent 'clerk'" in message for message in lost)
        assert (len(tool.keys), len(set(tool.keys))) == (2, 1)
        assert len(set(gate.keys)) == 1


async def test_each_step_is_kept_once_and_the_next_worker_goes_on_behind_all_of_them(
    client: Client, app_name: str
) -> None:
    tool, gate = Counted("look"), Gate()
    clerk = agent("clerk", [*([calls("look")] * 3), calls("slow"), text("done")], [tool.fn, gate.tool("slow")])
    app = app_of(app_name, clerk)
    async with serving(client, app) as user:
        await user.create()
        invocation = await user.send("go")
        await gate.reached()
        [pending] = (await user.workflow.describe()).raw_description.pending_activities
        kept = await client.data_converter.decode(pending.heartbeat_details.payloads)
        assert [part["steps"] for part in kept] == list(range(1, 8))
        # What Temporal's UI shows of the activity.
        assert [name for part in kept for name in part["took"]] == [*["model", "look"] * 3, "model"]
        history = await user.workflow.fetch_history()
        told = [event.user_metadata.summary for event in history.events if event.user_metadata.HasField("summary")]
        assert "clerk: scripted, up to 20 steps" in await client.data_converter.decode(told)
        events = [entry["event"]["id"] for part in kept for entry in part["entries"] if entry["kind"] == "event"]
        assert len(set(events)) == len(events) == 7
    gate.open()
    async with serving(client, app):
        assert (await user.settled(invocation)).status == "finished"
        assert len(tool.keys) == len(set(tool.keys)) == 3
        assert len(set(gate.keys)) == 1
        check_log(await user.events())


async def test_what_no_heartbeat_can_keep_is_handed_over(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    class Refusing(kept_steps.KeptSteps):
        async def beat(self) -> None:
            if len(refused) < 3 and self._kept:
                refused.append(1)

                async def heartbeat(*_details: Any) -> None:
                    raise RPCError("no", RPCStatusCode.UNAVAILABLE, b"")

                monkeypatch.setattr(self._activity, "heartbeat", heartbeat)
            await super().beat()

    monkeypatch.setattr(kept_steps, "KeptSteps", Refusing)
    tool = Counted("look")
    clerk = agent("clerk", [*([calls("look")] * ROUNDS), text("done")], [tool.fn])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert len(tool.keys) == len(set(tool.keys)) == ROUNDS
        assert len(refused) == 3
        check_log(await user.events())


async def test_what_a_tool_writes_is_seen_by_the_next_step_and_by_other_sessions(client: Client, app_name: str) -> None:
    seen: list[Any] = []

    def write(tool_context: ToolContext) -> str:
        number = tool_context.state.get("user:count", 0)
        seen.append(number)
        tool_context.state["user:count"] = number + 1
        return "written"

    clerk = agent(
        "clerk", [*([calls("write")] * 3), text("done"), calls("write"), text("done")], [named(write, "write")]
    )
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert (await user.run("again")).status == "finished"
        assert seen == [0, 1, 2, 3]
        other = user.other(session_id="other")
        await other.create()
        assert (await other.run("go")).status == "finished"
        assert seen == [0, 1, 2, 3, 4, 5, 6]


def test_an_app_says_how_many_steps_within_bounds() -> None:
    model = ScriptedModel([text("done")])
    with pytest.raises(DefinitionError, match="steps_per_activity"):
        app_of("shop", LlmAgent(name="clerk", model=model), 0)
    with pytest.raises(DefinitionError, match="steps_per_activity"):
        app_of("shop", LlmAgent(name="clerk", model=model), 101)


@pytest.mark.parametrize(
    ("key", "in_branch", "found"),
    [("seen", False, 1), ("app:seen", False, 2), ("user:seen", False, 2), ("seen", True, 2)],
)
async def test_what_others_read_is_written_at_once(
    client: Client, app_name: str, key: str, *, in_branch: bool, found: int
) -> None:
    """Other sessions, or the branches beside it; of a turn by itself nobody reads the state meanwhile."""

    def write(tool_context: ToolContext) -> str:
        tool_context.state[key] = 1
        return "done"

    clerk = agent("clerk", [calls("write"), text("done")], [write])
    root = ParallelAgent(name="both", sub_agents=[clerk]) if in_branch else clerk
    async with serving(client, app_of(app_name, root)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert (await activities(user)).count("model") == found
        assert (await user.view()).state[key] == 1


async def test_a_step_that_takes_longer_than_a_lost_worker_is_waited_for_runs_once(
    client: Client, app_name: str
) -> None:
    """Temporal's SDK gives up by itself what it has sent no heartbeat for, five seconds behind the timeout of these."""
    begun: list[str] = []

    async def slow(tool_context: ToolContext) -> str:
        begun.append(tool_context.idempotency_key)
        await asyncio.sleep(ToolOptions().heartbeat_timeout.total_seconds() + 6)
        return "done"

    clerk = agent("clerk", [calls("slow"), text("done")], [slow])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert await user.log() == ["user: go", "clerk calls slow", "clerk got slow", "clerk: done"]
        assert len(begun) == 1
        assert await activities(user) == ["model"]
