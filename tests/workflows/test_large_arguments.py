"""Large arguments of many calls at once: what one workflow task sends is bounded, whatever the models ask for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure.agents import App, FunctionTool, ParallelAgent, SequentialAgent, ToolContext
from perdure.agents.custom import BaseAgent
from perdure.prove.replay import replay_history
from tests.workflows.support import Gate, User, agent, calls, make_app, named, responses, serving, text

pytestmark = pytest.mark.server

MEGABYTE = 1_000_000
BRANCHES = 6


class Store:
    """A tool that takes large texts and waits at a gate with them."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.lengths: list[int] = []

        async def store(text: str, tool_context: ToolContext) -> str:
            self.lengths.append(len(text))
            await self.gate.pass_through(tool_context.idempotency_key)
            return text

        self.tool = FunctionTool(named(store, "store"))

    def app(self, name: str, rounds: int = 1) -> App:
        """Return an app whose branches call the tool all at once; it returns what it was given."""
        branches: list[BaseAgent] = [
            agent(f"b{n}", [*[calls("store", text=str(n) * MEGABYTE)] * rounds, text(f"stored {n}")], [self.tool])
            for n in range(BRANCHES)
        ]
        return make_app(name, ParallelAgent(name="fan", sub_agents=branches))


def sent(events: Sequence[HistoryEvent]) -> list[int]:
    """Return the bytes of what each workflow task has scheduled."""
    sizes = Counter[int]()
    for event in events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled = event.activity_task_scheduled_event_attributes
            sizes[scheduled.workflow_task_completed_event_id] += event.ByteSize()
    return list(sizes.values())


async def history(user: User) -> list[HistoryEvent]:
    return list((await user.workflow.fetch_history()).events)


@pytest.mark.parametrize("cached", [0, 100])
async def test_branches_that_send_and_return_large_texts_at_once(client: Client, app_name: str, cached: int) -> None:
    """Six of a megabyte each are more than the 4 MB that Temporal takes in one message."""
    store = Store()
    async with serving(client, store.app(app_name), cached=cached) as user:
        await user.create()
        invocation = await user.send("a")
        store.gate.open()
        assert (await user.settled(invocation, patience=60)).status == "finished"
        assert store.lengths == [MEGABYTE] * BRANCHES
        assert {len(found["result"]) for found in responses(await user.events(), "store")} == {MEGABYTE}
        assert len(responses(await user.events(), "store")) == BRANCHES
        runs = [run async for run in client.list_workflows(f"WorkflowType = '{app_name}'")]
        # So much history makes it continue as new, too.
        assert len(runs) > 1
        waited = False
        for run in runs:
            found = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
            # With the 2 MiB of results that the server holds back meanwhile, it must not write more than 4 MiB.
            assert max(sent(found.events), default=0) < 2 * MEGABYTE
            waited = waited or any(event.HasField("timer_started_event_attributes") for event in found.events)
            await replay_history(found)
        assert waited


async def test_a_stop_reaches_what_waits_for_room(client: Client, app_name: str) -> None:
    store = Store()
    async with serving(client, store.app(app_name)) as user:
        await user.create()
        invocation = await user.send("a")
        await store.gate.reached()
        assert (await user.stop(invocation)).status == "stopped"
        store.gate.open()
        assert (await user.settled((await user.resume(invocation)).id, patience=60)).status == "finished"
        assert len(responses(await user.events(), "store")) == BRANCHES


async def test_a_usual_session_waits_for_nothing(client: Client, app_name: str) -> None:
    """No timer, so that histories from before replay as they are."""
    gate = Gate()
    gate.open()
    branches: list[BaseAgent] = [
        agent(f"b{n}", [*[calls("work")] * 3, text("x" * 9_000)], [gate.tool("work", "y" * 9_000)]) for n in range(8)
    ]
    async with serving(client, make_app(app_name, ParallelAgent(name="fan", sub_agents=branches))) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        found = await history(user)
        assert not any(event.HasField("timer_started_event_attributes") for event in found)


async def test_messages_are_taken_while_large_arguments_wait(client: Client, app_name: str) -> None:
    store = Store()
    async with serving(client, store.app(app_name, rounds=2)) as user:
        await user.create()
        invocation = await user.send("a")
        store.gate.open()
        others = await asyncio.gather(*(user.send(f"m{n}") for n in range(3)))
        for one in (invocation, *others):
            assert (await user.settled(one, patience=90)).status in ("finished", "failed")
        assert await user.status(invocation) == "finished"
        assert len(responses(await user.events(), "store")) == 2 * BRANCHES


def large(number: int) -> str:
    """Return as much as a local tool may, of what cannot be packed."""
    return Random(number).randbytes(118_000).hex()


def many(name: str, times: int) -> dict[str, Any]:
    return {"calls": [{"name": name, "args": {"number": number}} for number in range(times)]}


def recorded(events: Sequence[HistoryEvent]) -> list[int]:
    """Return the bytes of what local tools returned with each workflow task."""
    sizes = Counter[int]()
    for event in events:
        if event.HasField("marker_recorded_event_attributes"):
            sizes[event.marker_recorded_event_attributes.workflow_task_completed_event_id] += event.ByteSize()
    return list(sizes.values())


def scheduled(events: Sequence[HistoryEvent], tool: str) -> int:
    """Return how often a tool ran as a normal activity."""
    return sum(event.activity_task_scheduled_event_attributes.activity_type.name == tool for event in events)


@pytest.mark.parametrize("cached", [0, 100])
async def test_branches_whose_local_tools_return_much_at_once(client: Client, app_name: str, cached: int) -> None:
    """Eighteen results of a quarter of a megabyte, of which one message takes sixteen."""
    tool = FunctionTool(large, local=True)
    branches: list[BaseAgent] = [agent(f"b{n}", [many("large", 6), text(f"read {n}")], [tool]) for n in range(3)]
    app = make_app(app_name, ParallelAgent(name="fan", sub_agents=branches))
    async with serving(client, app, cached=cached) as user:
        await user.create()
        invocation = await user.send("a")
        assert (await user.settled(invocation, patience=60)).status == "finished"
        assert len(responses(await user.events(), "large")) == 18
        sizes: list[int] = []
        async for run in client.list_workflows(f"WorkflowType = '{app_name}'"):
            found = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
            sizes += recorded(found.events)
            await replay_history(found)
        assert max(sizes) < 2 * MEGABYTE


async def test_of_what_local_tools_return_together_the_largest_is_shortened(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [many("large", 20), text("read")], [FunctionTool(large, local=True)]))
    async with serving(client, app) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        told = responses(await user.events(), "large")
        assert (len(told), any("beginning" in one for one in told)) == (20, True)


async def test_of_many_local_tools_at_once_some_run_locally(client: Client, app_name: str) -> None:
    """What is too many runs as normal activities; the next step, and the next turn, have all places again."""

    def small(number: int) -> int:
        return number

    clerk = agent(
        "clerk",
        [many("small", 20), many("small", 4), text("read"), many("small", 6), text("again")],
        [FunctionTool(small, local=True)],
    )
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        assert (await user.run("b")).status == "finished"
        found = await user.workflow.fetch_history()
        assert scheduled(found.events, "small") == 14
        numbers = [found["result"] for found in responses(await user.events(), "small")]
        assert numbers == [*range(20), *range(4), *range(6)]
        await replay_history(found)


async def test_agents_that_end_with_a_local_tool_hold_no_place_of_later_turns(client: Client, app_name: str) -> None:
    """Their model is not called any more, which would free it."""

    def note(number: int, tool_context: ToolContext) -> int:
        tool_context.actions.skip_summarization = True
        return number

    steps: list[BaseAgent] = [
        agent(f"a{n}", [many("note", 2), many("note", 2)], [FunctionTool(note, local=True)]) for n in range(4)
    ]
    async with serving(client, make_app(app_name, SequentialAgent(name="line", sub_agents=steps))) as user:
        await user.create()
        for turn, expected in (("a", 2), ("b", 4)):
            assert (await user.run(turn)).status == "finished"
            found = await user.workflow.fetch_history()
            assert scheduled(found.events, "note") == expected
        await replay_history(found)
