"""Stopping: what runs is cancelled, what finishes all the same is kept, and the invocation goes on by `resume` only."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from temporalio.client import Client

from perdure.agents import ParallelAgent
from perdure.errors import CallAnswered, InvocationFinished, InvocationRunning, NotResumable
from perdure.messages.session import InvocationResult
from tests.workflows.support import (
    Counted,
    Gate,
    GatedModel,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server


@pytest.mark.parametrize("cached", [0, 100])
async def test_a_running_async_tool_is_cancelled_and_runs_again(client: Client, app_name: str, cached: int) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk), cached=cached) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        stopped = await user.stop(invocation, reason="enough")
        assert (stopped.status, stopped.reason, stopped.resumable) == ("stopped", "enough", True)
        assert gate.cancelled == 1
        assert (await user.view()).status == "stopped"
        assert await user.log() == ["user: a", "clerk calls work"]
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert await user.log() == ["user: a", "clerk calls work", "clerk got work", "clerk: done"]
        assert (len(gate.keys), len(set(gate.keys))) == (2, 1)
        assert (await user.invocation(invocation)).reason is None


async def test_a_sync_tool_that_finishes_in_time_keeps_its_result(client: Client, app_name: str) -> None:
    """Nothing can interrupt a thread, so what it did all the same must not be done again."""
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("done")], [gate.tool("work", "mine", sync=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        stopping = asyncio.create_task(user.stop(invocation))
        # Longer than a stop takes to reach the tool.
        await asyncio.sleep(2.5)
        assert not stopping.done()
        gate.open()
        assert (await stopping).status == "stopped"
        assert "clerk got work" not in await user.log()
        assert (await user.resumed(invocation)).status == "finished"
        assert len(gate.keys) == 1
        assert responses(await user.events(), "work") == [{"result": "mine"}]


async def test_a_sync_tool_that_takes_too_long_does_not_hold_a_stop_up(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("done")], [gate.tool("work", sync=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        started = time.monotonic()
        assert (await user.stop(invocation)).status == "stopped"
        assert time.monotonic() - started < 12
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert len(set(gate.keys)) == 1


async def test_a_stop_waits_until_an_async_tool_has_cleaned_up(client: Client, app_name: str) -> None:
    """A resume must not start the tool beside what is left of its first run."""
    started, left = asyncio.Event(), list[str]()

    async def work() -> str:
        """Work."""
        if left:
            return "done"
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.7)
            left.append("cleaned up")
        return "never"

    clerk = agent("clerk", [calls("work"), text("done")], [work])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await eventually(started.is_set)
        assert (await user.stop(invocation)).status == "stopped"
        assert left == ["cleaned up"]
        assert (await user.resumed(invocation)).status == "finished"


async def test_an_async_tool_that_finishes_all_the_same_keeps_its_result(client: Client, app_name: str) -> None:
    started: list[int] = []

    async def work() -> str:
        """Work."""
        started.append(1)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "mine"

    clerk = agent("clerk", [calls("work"), text("done")], [work])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await eventually(lambda: bool(started))
        assert (await user.stop(invocation)).status == "stopped"
        assert (await user.resumed(invocation)).status == "finished"
        assert responses(await user.events(), "work") == [{"result": "mine"}]
        assert len(started) == 1


async def test_a_model_call_is_cancelled_and_made_again(client: Client, app_name: str) -> None:
    gate, work = Gate(), Counted("work")
    model = GatedModel([calls("work"), text("done")], {1: gate})
    async with serving(client, make_app(app_name, agent("clerk", model, [work.fn]))) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        assert (await user.stop(invocation)).status == "stopped"
        assert gate.cancelled == 1
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert await user.log() == ["user: a", "clerk calls work", "clerk got work", "clerk: done"]
        assert [request.call_index for request in model.requests] == [0, 1, 1]
        assert len(work.keys) == 1


async def test_a_waiting_invocation_keeps_its_answers_while_it_is_stopped(client: Client, app_name: str) -> None:
    """They are taken, nothing runs, and a resume uses them."""
    clerk = agent(
        "clerk", [calls("pick", "ask"), text("other"), text("done")], [long_running("pick"), long_running("ask")]
    )
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        assert (await user.stop(waiting.id)).status == "stopped"
        pending = await user.pending()
        assert sorted(pending) == ["ask", "pick"], "open calls of a stopped invocation stay listed"
        assert (await user.answer({pending["pick"]: {"n": 1}})).status == "stopped"
        await user.signal({"id": pending["ask"], "response": {"n": 2}})
        await eventually(lambda: _is_empty(user))
        with pytest.raises(CallAnswered):
            await user.answer({pending["pick"]: {"n": 3}})
        await user.run("b")
        assert await user.status(waiting.id) == "stopped"
        assert "user answers pick" not in await user.log()
        assert (await user.resumed(waiting.id)).status == "finished"
        log = await user.log(waiting.id)
        assert log[2:] == ["clerk got pick, ask", "user answers pick", "user answers ask", "clerk: done"]


async def _is_empty(user: User) -> bool:
    return not await user.pending()


async def test_a_stopped_invocation_that_waits_goes_on_waiting_when_resumed(client: Client, app_name: str) -> None:
    picked = Counted("work")
    clerk = agent("clerk", [calls("work"), calls("pick"), text("done")], [picked.fn, long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        before = await user.log()
        await user.stop(waiting.id)
        again = await user.resumed(waiting.id)
        assert (again.status, again.pending) == ("waiting", waiting.pending)
        assert await user.log() == before
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        assert len(picked.keys) == 1


async def test_a_queued_invocation_can_be_stopped(client: Client, app_name: str) -> None:
    """It never started: nothing of it is logged until it is resumed."""
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("a done"), text("b done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first = await user.send("a")
        await gate.reached()
        second = await user.send("b")
        assert (await user.stop(second)).status == "stopped"
        gate.open()
        assert (await user.settled(first)).status == "finished"
        assert "user: b" not in await user.log()
        assert (await user.resumed(second)).status == "finished"
        assert (await user.log())[-2:] == ["user: b", "clerk: b done"]


async def test_what_is_stopped_before_a_plan_is_loaded_can_be_resumed(client: Client, app_name: str) -> None:
    """The first message of a session, stopped while all workers are busy, is neither lost nor "not resumable"."""
    gate = Gate()
    clerk = agent("clerk", GatedModel([text("done")], {0: gate}))
    async with serving(client, make_app(app_name, clerk), max_concurrent_activities=1) as busy:
        await busy.create()
        await busy.send("a")
        await gate.reached()
        user = busy.other(session_id="second")
        await user.create()
        invocation = await user.send("b")
        stopped = await user.stop(invocation)
        assert (stopped.status, stopped.resumable) == ("stopped", True)
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert await user.log() == ["user: b", "clerk: done"]


async def test_parallel_branches_are_stopped_together(client: Client, app_name: str) -> None:
    """What has ended stays, what waits stays open, what ran runs again."""
    gate, quick = Gate(), Counted("quick")
    left = agent("left", [calls("pick"), text("picked")], [long_running("pick")])
    middle = agent("middle", [calls("quick"), text("was quick")], [quick.fn])
    right = agent("right", [calls("work"), text("worked")], [gate.tool("work")])
    fan = ParallelAgent(name="fan", sub_agents=[left, middle, right])
    async with serving(client, make_app(app_name, fan)) as user:
        await user.create()
        invocation = await user.send("a")
        (pick,) = await user.open("pick")
        await user.logged("middle: was quick")
        await gate.reached()
        stopped = await user.stop(invocation)
        assert (stopped.status, [call.id for call in stopped.pending], gate.cancelled) == ("stopped", [pick], 1)
        gate.open()
        waiting = await user.resumed(invocation)
        assert (waiting.status, len(quick.keys), len(gate.keys)) == ("waiting", 1, 2)
        assert (await user.answered({pick: {}})).status == "finished"
        log = await user.log()
        assert log.count("middle: was quick") == log.count("right: worked") == log.count("left: picked") == 1


async def test_calls_of_one_answer_are_stopped_together(client: Client, app_name: str) -> None:
    """The one that had finished is kept."""
    gate, quick = Gate(), Counted("quick")
    clerk = agent("clerk", [calls("quick", "work"), text("done")], [quick.fn, gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        await eventually(lambda: len(quick.keys) == 1)
        await user.stop(invocation)
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert (len(quick.keys), len(gate.keys)) == (1, 2)
        assert (await user.log())[1:] == ["clerk calls quick, work", "clerk got quick, work", "clerk: done"]


async def test_a_stop_gives_the_turn_to_the_next(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("b done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first = await user.send("a")
        await gate.reached()
        second = await user.send("b")
        followed = asyncio.create_task(_follow(user, first))
        await user.stop(first)
        assert (await user.settled(second)).status == "finished"
        assert await asyncio.wait_for(followed, 10) == 0
        assert (await user.log())[-2:] == ["user: b", "clerk: b done"]


async def _follow(user: User, invocation_id: str) -> int:
    view = await user.invocation(invocation_id)
    result = InvocationResult(invocation=view, offset=2)
    return len(
        [
            event
            async for event in user.runner.follow(**user.who, invocation_id=result.invocation.id, since=result.offset)
        ]
    )


async def test_stopping_what_is_stopped_or_failed_is_no_error(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick"), {"error": "down"}, text("up")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting, failed = await user.run("a"), await user.run("b")
        for view in (waiting, failed):
            assert (await user.stop(view.id, reason="first")).status == "stopped"
            assert (await user.stop(view.id)).reason == "first"
        assert (await user.resumed(failed.id)).status == "finished"


async def test_two_stops_at_once_and_a_resume_amid(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        first, second = asyncio.create_task(user.stop(invocation)), asyncio.create_task(user.stop(invocation))
        with pytest.raises(InvocationRunning):
            await user.resume(invocation)
        assert (await first).status == (await second).status == "stopped"
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert (await user.log())[1:] == ["clerk calls work", "clerk got work", "clerk: done"]


async def test_in_an_app_that_is_not_resumable_a_stop_is_for_good(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("b done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        stopped = await user.stop(invocation)
        assert (stopped.status, stopped.resumable) == ("stopped", False)
        with pytest.raises(NotResumable):
            await user.resume(invocation)
        assert (await user.run("b")).status == "finished"
        with pytest.raises(InvocationFinished):
            await user.stop((await user.view()).invocations[-1].id)
        assert (await user.log())[-2:] == ["user: b", "clerk: b done"]
