"""Resuming by invocation id: what is refused, and that nothing which completed runs again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents import (
    FunctionTool,
    LongRunningFunctionTool,
    LoopAgent,
    ParallelAgent,
    SequentialAgent,
    ToolContext,
)
from perdure.config import WorkerConfig
from perdure.errors import InvocationFailed, InvocationFinished, InvocationNotFound, InvocationRunning, NotResumable
from perdure.worker import create_workers
from tests.workflows.support import (
    ONCE,
    Counted,
    Gate,
    GatedModel,
    User,
    agent,
    calls,
    long_running,
    make_app,
    serving,
    text,
)

pytestmark = pytest.mark.server


async def test_each_invocation_gets_its_own_clear_answer(client: Client, app_name: str) -> None:
    gate = Gate()
    script = [text("done"), calls("pick"), calls("work"), text("end")]
    clerk = agent("clerk", script, [long_running("pick"), gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        finished, waiting, running = await user.run("a"), await user.run("b"), await user.send("c")
        await gate.reached()
        before = await user.events()
        with pytest.raises(InvocationNotFound, match="'e-none'"):
            await user.resume("e-none")
        with pytest.raises(InvocationNotFound):
            await user.stop("e-none")
        with pytest.raises(InvocationNotFound):
            await user.invocation("e-none")
        with pytest.raises(InvocationRunning, match="follow it"):
            await user.resume(running)
        assert (await user.resume(finished.id)).status == "finished"
        with pytest.raises(InvocationFinished):
            await user.stop(finished.id)
        view = await user.resume(waiting.id)
        assert (view.status, [call.id for call in view.pending]) == ("waiting", [waiting.pending[0].id])
        queued = await user.send("d")
        with pytest.raises(InvocationRunning, match="queued"):
            await user.resume(queued)
        assert await user.events() == before
        gate.open()
        await user.settled(running)


async def test_following_a_resume_of_what_has_finished_or_waits_ends_at_once(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text("done"), calls("pick")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        for view in (await user.run("a"), await user.run("b")):
            followed = user.runner.run_async(**user.who, invocation_id=view.id)
            assert [event async for event in followed] == []


async def test_an_app_that_is_not_resumable_refuses(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [{"error": "down"}])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        failed = await user.run("a")
        assert (failed.status, failed.resumable) == ("failed", False)
        with pytest.raises(NotResumable, match="is_resumable=True"):
            await user.resume(failed.id)


async def test_a_failed_step_runs_again_and_what_completed_does_not(client: Client, app_name: str) -> None:
    """Calls of one model answer: the sibling's result is kept, and the failed tool sees its key again."""
    good, bad, earlier = Counted("good", "g"), Counted("bad", "b", fail=3), Counted("earlier")
    twice = FunctionTool(bad.fn, retry=RetryPolicy(maximum_attempts=2, initial_interval=_soon()))
    model = GatedModel([calls("earlier"), calls("good", "bad"), text("done")])
    clerk = agent("clerk", model, [good.fn, twice, earlier.fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        assert (failed.status, failed.failures[0].step, len(bad.keys)) == ("failed", "bad", 2)
        before = await user.log()
        assert before[-1] == "clerk calls good, bad"
        assert (await user.resumed(failed.id)).status == "finished"
        assert await user.log() == [*before, "clerk got good, bad", "clerk: done"]
        assert (len(good.keys), len(earlier.keys), len(bad.keys), len(model.requests)) == (1, 1, 4, 3)
        assert len(set(bad.keys)) == 1
        assert len({*good.keys, *bad.keys, *earlier.keys}) == 3


def _soon() -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=20)


async def test_a_long_running_siblings_result_is_kept(client: Client, app_name: str) -> None:
    started, bad = Counted("start", {"status": "pending"}), Counted("bad", fail=1)
    start = LongRunningFunctionTool(started.fn, retry=ONCE)
    clerk = agent("clerk", [calls("start", "bad"), text("done")], [start, bad.once])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        assert failed.status == "failed"
        waiting = await user.resumed(failed.id)
        assert (waiting.status, len(started.keys), len(bad.keys)) == ("waiting", 1, 2)
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"


async def test_a_model_that_failed_is_called_again(client: Client, app_name: str) -> None:
    work = Counted("work")
    clerk = agent("clerk", [calls("work"), {"error": "down"}, text("up")], [work.fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        with pytest.raises(InvocationFailed, match="down; resume it") as raised:
            async for _ in user.runner.run_async(**user.who, new_message="a"):
                pass
        failure = raised.value
        assert (failure.agent, failure.step, failure.cause, failure.resumable) == ("clerk", "model", "down", True)
        followed = user.runner.run_async(**user.who, invocation_id=failure.invocation_id)
        assert [event.text async for event in followed] == ["up", None]
        assert len(work.keys) == 1


async def test_completed_agents_iterations_and_branches_do_not_run_again(client: Client, app_name: str) -> None:
    before, flaky, twin = Counted("before"), Counted("flaky", fail=1), Counted("twin")
    first = agent("first", [calls("before"), text("1")], [before.fn])
    looped = agent("looped", [text("round 1"), {"error": "down"}, text("round 2")])
    left = agent("left", [calls("flaky"), text("left done")], [flaky.once])
    right = agent("right", [calls("twin"), text("right done")], [twin.fn])
    steps = [
        first,
        LoopAgent(name="loop", sub_agents=[looped], max_iterations=2),
        ParallelAgent(name="fan", sub_agents=[left, right]),
    ]
    async with serving(client, make_app(app_name, SequentialAgent(name="all", sub_agents=[*steps]))) as user:
        await user.create()
        failed = await user.run("a")
        assert failed.failures[0].agent == "looped"
        failed = await user.resumed(failed.id)
        assert (failed.status, failed.failures[0].agent) == ("failed", "left")
        assert (await user.resumed(failed.id)).status == "finished"
        log = await user.log()
        assert log[:5] == ["user: a", "first calls before", "first got before", "first: 1", "looped: round 1"]
        assert log[5] == "looped: round 2"
        assert sorted(log[6:]) == sorted(
            [
                *("left calls flaky", "left got flaky", "left: left done"),
                *("right calls twin", "right got twin", "right: right done"),
            ]
        )
        assert [len(tool.keys) for tool in (before, flaky, twin)] == [1, 2, 1]
        ends = [e.author for e in await user.events() if e.actions.end_of_agent]
        assert ends.count("right") == ends.count("first") == ends.count("all") == 1


async def test_two_resumes_at_once_run_it_once(client: Client, app_name: str) -> None:
    bad = Counted("bad", fail=1)
    clerk = agent("clerk", [calls("bad"), text("done")], [bad.once])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        results = await asyncio.gather(*(user.resume(failed.id) for _ in range(4)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, InvocationRunning) for error in refused)
        assert (await user.settled(failed.id)).status == "finished"
        assert len(bad.keys) == 2
        assert (await user.log()).count("clerk: done") == 1


async def test_a_resume_takes_its_turn(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [{"error": "down"}, calls("work"), text("b"), text("up"), text("c")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        await user.send("b")
        await gate.reached()
        assert (await user.resume(failed.id)).status == "queued"
        last = await user.send("c")
        gate.open()
        await user.settled(last)
        assert (await user.log())[-4:] == ["clerk: b", "clerk: up", "user: c", "clerk: c"]


@pytest.mark.parametrize("cached", [0, 100])
async def test_a_failing_invocation_resumed_again_and_again_keeps_one_log(
    client: Client, app_name: str, cached: int
) -> None:
    bad = Counted("bad", fail=3)
    clerk = agent("clerk", [calls("bad"), text("done")], [bad.once])
    async with serving(client, make_app(app_name, clerk), cached=cached) as user:
        await user.create()
        view = await user.run("a")
        for attempt in range(1, 4):
            assert (view.status, len(bad.keys)) == ("failed", attempt)
            assert f"call {attempt} of bad fails" in view.failures[0].cause
            view = await user.resumed(view.id)
        assert view.status == "finished"
        assert view.failures == ()
        assert await user.log() == ["user: a", "clerk calls bad", "clerk got bad", "clerk: done"]
        assert len(set(bad.keys)) == 1


async def test_a_resume_is_taken_though_it_comes_with_the_failure(client: Client, app_name: str) -> None:
    """One workflow task holds both, and takes requests first: to them the invocation is at work."""
    gate = Gate()

    async def work(tool_context: ToolContext) -> str:
        await gate.pass_through(tool_context.idempotency_key)
        if len(gate.keys) == 1:
            raise RuntimeError("the first time")
        return "done"

    app = make_app(app_name, agent("clerk", [calls("work"), text("end")], [FunctionTool(work, retry=ONCE)]))
    config = WorkerConfig(graceful_shutdown_timeout=timedelta(seconds=20), max_cached_workflows=0)
    (worker,) = create_workers(client, [app], config)
    user = User(client, app_name)
    async with worker:
        await user.create()
        invocation = await user.send("go")
        await gate.reached()
        ending = asyncio.create_task(worker.shutdown())
        # From here on the worker takes no workflow tasks any more, but its activity may end.
        await asyncio.sleep(0.5)
        gate.open()
        await ending
    resuming = asyncio.create_task(user.resume(invocation))
    await asyncio.sleep(0.5)
    async with serving(client, app):
        await resuming
        assert (await user.settled(invocation)).status == "finished"
    assert len(gate.keys) == 2
