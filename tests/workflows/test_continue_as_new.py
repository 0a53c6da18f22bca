"""Continue-as-new: automatic, in mid-invocation too, and nobody notices (on a server that suggests it very early)."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import Client

from perdure.agents import ParallelAgent
from perdure.messages.session import SessionInput
from tests.workflows.support import (
    Counted,
    Gate,
    GatedModel,
    User,
    agent,
    calls,
    long_running,
    make_app,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server

ROUNDS = 8


async def runs(user: User) -> int:
    """Return how many runs the session's workflow had."""
    return len(await user.histories())


@pytest.mark.parametrize("cached", [0, 100])
async def test_a_long_invocation_goes_on_in_the_next_run(small_client: Client, app_name: str, cached: int) -> None:
    tool = Counted("tool")
    model = GatedModel([*[calls("tool", "tool")] * ROUNDS, text("done"), text("next")])
    async with serving(small_client, make_app(app_name, agent("clerk", model, [tool.fn])), cached=cached) as user:
        await user.create(k=1)
        followed = user.runner.run_async(**user.who, new_message="a", request_id="r1", state_delta={"temp:t": 1})
        events = [event async for event in followed]
        assert await runs(user) > 1
        assert [event.text for event in events if event.text] == ["done"]
        assert [event.id for event in events] == [event.id for event in (await user.events())[1:]]
        assert await user.log() == [
            "user: a",
            *["clerk calls tool, tool", "clerk got tool, tool"] * ROUNDS,
            "clerk: done",
        ]
        assert len(tool.keys) == len(set(tool.keys)) == 2 * ROUNDS
        assert [request.call_index for request in model.requests] == list(range(ROUNDS + 1))
        assert await user.send("a", request_id="r1") == events[0].invocation_id
        assert (await user.run("b")).status == "finished"
        assert (await user.view()).state == {"k": 1}


async def test_open_calls_branches_at_work_and_queued_messages_are_carried(small_client: Client, app_name: str) -> None:
    tool, quick = Counted("tool"), Counted("quick")
    left = agent("left", [calls("pick"), text("picked")], [long_running("pick")])
    middle = agent("middle", [calls("quick"), text("was quick")], [quick.fn])
    right = agent("right", [*[calls("tool")] * ROUNDS, text("worked"), text("b done")], [tool.fn])
    fan = ParallelAgent(name="fan", sub_agents=[left, middle, right])
    async with serving(small_client, make_app(app_name, fan)) as user:
        await user.create()
        invocation = await user.send("a")
        waiting = await user.settled(invocation)
        assert (waiting.status, await runs(user) > 1) == ("waiting", True)
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        log = await user.log()
        assert log.count("middle: was quick") == log.count("right: worked") == log.count("left: picked") == 1
        assert (len(tool.keys), len(set(tool.keys)), len(quick.keys)) == (ROUNDS, ROUNDS, 1)
        ends = [event.author for event in await user.events() if event.actions.end_of_agent]
        assert sorted(ends) == ["fan", "left", "middle", "right"]


async def test_what_runs_is_awaited_and_its_result_is_kept(small_client: Client, app_name: str) -> None:
    """An activity that was left running would finish into nothing, and its effect would happen twice."""
    gate = Gate()
    script = [calls("work"), text("worked"), *[text("later")] * 15]
    clerk = agent("clerk", script, [gate.tool("work", "mine")])
    async with serving(small_client, make_app(app_name, clerk)) as user:
        await user.create()
        first = await user.send("a")
        await gate.reached()
        # Each leaves some events in the history, until it is time to continue as new.
        later = [await user.send(f"m{number}") for number in range(15)]
        gate.open()
        for invocation in (first, *later):
            assert (await user.settled(invocation)).status == "finished"
        assert (len(gate.keys), await runs(user) > 1) == (1, True)
        assert responses(await user.events(), "work") == [{"result": "mine"}]
        said = [line for line in await user.log() if line.startswith("user: m")]
        assert said == [f"user: m{number}" for number in range(15)]


async def test_messages_that_come_in_between_are_taken_once(small_client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text(str(number)) for number in range(24)])
    async with serving(small_client, make_app(app_name, clerk)) as user:
        await user.create()
        for burst in range(4):
            ids = await asyncio.gather(*(user.send(f"m{burst}.{n}") for n in range(6)))
            assert len(set(ids)) == 6
            await asyncio.gather(*(user.settled(invocation) for invocation in ids))
        log = await user.log()
        assert [line for line in log if line.startswith("clerk")] == [f"clerk: {n}" for n in range(24)]
        assert len({line for line in log if line.startswith("user")}) == 24
        assert await runs(user) > 1


async def test_answers_and_stops_find_the_next_run(small_client: Client, app_name: str) -> None:
    """One invocation waits and one is stopped while others fill the history."""
    script = [calls("pick"), calls("pick"), *[text("fill")] * 12, text("a done"), text("b done")]
    async with serving(small_client, make_app(app_name, agent("clerk", script, [long_running("pick")]))) as user:
        await user.create()
        waiting, stopped = await user.run("a"), await user.run("b")
        await user.stop(stopped.id)
        for number in range(12):
            await user.run(f"m{number}")
        assert await runs(user) > 1
        assert [await user.status(view.id) for view in (waiting, stopped)] == ["waiting", "stopped"]
        await user.signal({"id": waiting.pending[0].id, "response": {}})
        await user.logged("clerk: a done")
        assert (await user.resumed(stopped.id)).status == "waiting"
        assert (await user.answered({stopped.pending[0].id: {}})).status == "finished"


async def test_only_the_journal_travels(small_client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text("fill")] * 12)
    async with serving(small_client, make_app(app_name, clerk)) as user:
        await user.create()
        for number in range(12):
            await user.run(f"m{number}")
        history = await user.workflow.fetch_history()
        started = history.events[0].workflow_execution_started_event_attributes
        (start,) = await user.client.data_converter.decode(started.input.payloads, [SessionInput])
        assert isinstance(start, SessionInput)
        assert start.journal is not None
        assert start.state == {}
        assert (await user.journal()).events == await user.events()
