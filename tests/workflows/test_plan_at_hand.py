"""An invocation's plan: from the session's own worker where that knows enough, else by a normal activity."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from perdure.agents import FunctionTool, ToolContext
from perdure.client import Runner
from perdure.prove.replay import replay_history
from tests.workflows.support import Gate, User, agent, calls, eventually, make_app, named, serving, text

pytestmark = pytest.mark.server


async def of_plan(user: User) -> tuple[int, int]:
    """Return how often the plan came by a normal activity, and how often a local one was asked for it."""
    found = (await user.workflow.fetch_history()).events
    normal = [event.activity_task_scheduled_event_attributes.activity_type.name for event in found]
    local = [event.marker_recorded_event_attributes.details.get("data") for event in found]
    asked = [data for data in local if data is not None and b"perdure:load_plan" in data.payloads[0].data]
    return normal.count("perdure:load_plan"), len(asked)


async def test_a_worker_that_knows_the_namespace_gives_the_plan_itself(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("one"), text("two")], []))) as user:
        await user.create()
        await user.run("a")
        # It had to look for the search attributes, once.
        assert await of_plan(user) == (1, 1)
        other = user.other(session_id="later")
        await other.create()
        for turn in ("a", "b"):
            assert (await other.run(turn)).status == "finished"
        assert await of_plan(other) == (0, 2)
        await replay_history(await other.workflow.fetch_history())


async def test_a_plan_that_shares_state_is_not_asked_for_in_vain(client: Client, app_name: str) -> None:
    def count(tool_context: ToolContext) -> int:
        tool_context.state["user:count"] = tool_context.state.get("user:count", 0) + 1
        return tool_context.state["user:count"]

    clerk = agent("clerk", [calls("count"), text("counted")] * 2, [FunctionTool(count)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        for turn in ("a", "b"):
            assert (await user.run(turn)).status == "finished"
        # Nobody could know before the first.
        assert await of_plan(user) == (2, 1)
        assert (await user.view()).state["user:count"] == 2
        # It carries the journal, which else is written by two events: beside shared state, and at the turn's end.
        found = (await user.workflow.fetch_history()).events
        assert sum(event.HasField("workflow_properties_modified_event_attributes") for event in found) == 2 * 2 * 2


async def test_a_large_plan_comes_by_a_normal_activity(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text("one")], [], instruction="x" * 260_000)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("a")
        other = user.other(session_id="later")
        await other.create()
        assert (await other.run("a")).status == "finished"
        assert await of_plan(other) == (1, 1)


async def test_a_session_starts_while_local_tools_hold_all_places(client: Client, app_name: str) -> None:
    gate = Gate()

    async def work(tool_context: ToolContext) -> str:
        await gate.pass_through(tool_context.idempotency_key)
        return "done"

    clerk = agent("clerk", [calls("work"), text("worked")], [FunctionTool(named(work, "work"), local=True)])
    async with serving(client, make_app(app_name, clerk), max_concurrent_activities=1) as user:
        await user.create()
        busy = await user.send("a")
        await gate.reached()
        other = user.other(session_id="later")
        # Else the run whose history is looked at is over before it is.
        other.runner = Runner(app_name, client, local_tools=True)
        await other.create()
        turn = await other.send("a")

        async def planned() -> bool:
            return await of_plan(other) == (1, 1)

        await eventually(planned)
        gate.open()
        assert (await user.settled(busy)).status == "finished"
        assert (await other.settled(turn)).status == "finished"
