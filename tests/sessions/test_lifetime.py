"""A session outlives its workflow: terminated, timed out, cancelled, it comes back whole (design, "Lifetime")."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from perdure.agents import LongRunningFunctionTool, ParallelAgent
from perdure.errors import CallAnswered, InvocationFailed, InvocationNotFound
from perdure.messages.session import SessionInput
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
    serving,
    text,
)

pytestmark = pytest.mark.server

Ending = Callable[[User], Awaitable[None]]


async def terminated(user: User) -> None:
    await user.workflow.terminate("by an operator")


async def timed_out(user: User) -> None:
    async def is_timed_out() -> bool:
        return (await user.workflow.describe()).status == WorkflowExecutionStatus.TIMED_OUT

    await eventually(is_timed_out)


async def start(user: User, ending: Ending) -> None:
    """Create the session; one that is to time out by the raw client, with a timeout that Perdure never sets."""
    if ending is terminated:
        await user.create(k=1)
        return
    start = SessionInput(state={"k": 1})
    timeout = timedelta(seconds=4)
    await user.client.start_workflow(user.app, start, id=user.key, task_queue=user.app, execution_timeout=timeout)


both = pytest.mark.parametrize("end", [terminated, timed_out])


@both
async def test_a_session_closed_while_it_waits_is_answered(client: Client, app_name: str, end: Ending) -> None:
    tool = Counted("tool")
    script = [calls("tool"), calls("pick"), text("picked"), text("next")]
    clerk = agent("clerk", script, [tool.fn, long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await start(user, end)
        waiting = await user.run("a")
        before = await user.journal()
        await end(user)
        assert ((await user.view()).status, await user.pending()) == ("waiting", {"pick": waiting.pending[0].id})
        assert len(await user.log()) == 5
        assert (await user.answered({waiting.pending[0].id: {"n": 1}})).status == "finished"
        after = await user.journal()
        assert after.entries[: len(before.entries)] == before.entries
        assert (await user.run("b")).status == "finished"
        assert (await user.log())[5:] == ["user answers pick", "clerk: picked", "user: b", "clerk: next"]
        assert ((await user.view()).state, len(tool.keys)) == ({"k": 1}, 1)
        with pytest.raises(CallAnswered):
            await user.answer({waiting.pending[0].id: {}})


@both
async def test_a_session_closed_while_it_runs_is_resumed(client: Client, app_name: str, end: Ending) -> None:
    """What ran is stopped; what was queued takes its turn as soon as anything brings the session back."""
    gate, tool = Gate(), Counted("tool")
    script = [calls("tool"), calls("work"), text("b done"), text("a done")]
    clerk = agent("clerk", script, [tool.fn, gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await start(user, end)
        first = await user.send("a")
        await gate.reached()
        second = await user.send("b")
        await end(user)
        view = await user.view()
        assert [(i.status, i.id) for i in view.invocations] == [("stopped", first), ("queued", second)]
        gate.open()
        assert (await user.resumed(first)).status == "finished"
        assert await user.status(second) == "finished"
        log = await user.log()
        assert log[-4:] == ["user: b", "clerk: b done", "clerk got work", "clerk: a done"]
        assert (len(tool.keys), len(gate.keys), len(set(gate.keys))) == (1, 2, 1)
        assert (await user.view()).status == "idle"


async def test_a_message_brings_a_session_back(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("b done"), text("a done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first = await user.send("a")
        await gate.reached()
        await terminated(user)
        gate.open()
        assert (await user.run("b")).status == "finished"
        stopped = await user.invocation(first)
        assert (stopped.status, stopped.resumable) == ("stopped", True)
        assert stopped.reason is not None
        assert "terminated" in stopped.reason
        assert (await user.resumed(first)).status == "finished"


async def test_an_answer_that_was_not_logged_yet_comes_back(client: Client, app_name: str) -> None:
    gate = Gate()
    pick = LongRunningFunctionTool(gate.tool("pick", {"status": "pending"}))
    async with serving(client, make_app(app_name, agent("clerk", [calls("pick"), text("picked")], [pick]))) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        (call_id,) = await user.open("pick")
        await user.answer({call_id: {"n": 1}})
        await terminated(user)
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        log = await user.log()
        assert log == ["user: a", "clerk calls pick", "clerk got pick", "user answers pick", "clerk: picked"]


async def test_branches_of_a_closed_session_go_on_where_they_were(client: Client, app_name: str) -> None:
    quick, bad = Counted("quick"), Counted("bad", fail=1)
    left = agent("left", [calls("pick"), text("picked")], [long_running("pick")])
    middle = agent("middle", [calls("quick"), text("was quick")], [quick.fn])
    right = agent("right", [calls("bad"), text("mended")], [bad.once])
    fan = ParallelAgent(name="fan", sub_agents=[left, middle, right])
    async with serving(client, make_app(app_name, fan)) as user:
        await user.create()
        failed = await user.run("a")
        await terminated(user)
        assert (await user.view()).status == "failed"
        assert (await user.answered({failed.pending[0].id: {}})).status == "finished"
        assert sorted((await user.log())[-4:])[-2:] == ["right: mended", "user answers pick"]
        assert (len(quick.keys), len(bad.keys)) == (1, 2)


async def test_a_follower_is_told_that_the_workflow_was_closed(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()

        async def follow() -> None:
            async for _ in user.runner.run_async(**user.who, new_message="a"):
                pass

        following = asyncio.create_task(follow())
        await gate.reached()
        await terminated(user)
        with pytest.raises(InvocationFailed, match="terminated") as raised:
            await asyncio.wait_for(following, 20)
        gate.open()
        assert (await user.resumed(raised.value.invocation_id)).status == "finished"


async def test_a_session_is_brought_back_once(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text(str(n)) for n in range(6)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("first")
        await terminated(user)
        ids = await asyncio.gather(*(user.send(f"m{n}") for n in range(5)))
        for invocation in ids:
            assert (await user.settled(invocation)).status == "finished"
        assert [line for line in await user.log() if line.startswith("clerk")] == [f"clerk: {n}" for n in range(6)]


async def test_a_request_id_is_known_after_the_session_came_back(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text("once"), text("twice")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first = await user.run("a", request_id="r1")
        await terminated(user)
        assert await user.send("a", request_id="r1") == first.id
        with pytest.raises(InvocationNotFound):
            await user.resume("e-none")
        assert await user.log() == ["user: a", "clerk: once"]


async def test_a_cancellation_stops_the_invocations_and_keeps_the_session(client: Client, app_name: str) -> None:
    """One that waits, one at work and one that is queued."""
    gate = Gate()
    script = [calls("pick"), calls("work"), text("b done"), text("c done"), text("picked")]
    clerk = agent("clerk", script, [long_running("pick"), gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting, working = await user.run("a"), await user.send("b")
        await gate.reached()
        queued = await user.send("c")
        await user.workflow.cancel()
        await eventually(lambda: _all_stopped(user))
        assert gate.cancelled == 1
        assert (await user.workflow.describe()).status == WorkflowExecutionStatus.RUNNING
        gate.open()
        for invocation in (working, queued):
            view = await user.invocation(invocation)
            assert view.reason is not None
            assert "cancelled" in view.reason
            assert (await user.resumed(invocation)).status == "finished"
        assert (await user.answer({waiting.pending[0].id: {}})).status == "stopped"
        assert (await user.resumed(waiting.id)).status == "finished"
        assert (await user.log())[-2:] == ["user answers pick", "clerk: picked"]


async def _all_stopped(user: User) -> bool:
    return {view.status for view in (await user.view()).invocations} == {"stopped"}


@pytest.mark.parametrize("times", [1, 2])
async def test_an_idle_session_does_not_mind_a_cancellation(client: Client, app_name: str, times: int) -> None:
    clerk = agent("clerk", [text("a"), text("b")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("a")
        for _ in range(times):
            await user.workflow.cancel()
        # A message that comes into the same step as a cancellation is stopped by it.
        await eventually(lambda: _is_undisturbed(user))
        assert (await user.run("b")).status == "finished"
        assert (await user.workflow.describe()).status == WorkflowExecutionStatus.RUNNING


async def _is_undisturbed(user: User) -> bool:
    """Return whether nobody has cancelled the session's newest run."""
    history = await user.workflow.fetch_history()
    return not any(event.HasField("workflow_execution_cancel_requested_event_attributes") for event in history.events)


async def test_a_cancellation_while_a_plan_is_loaded_loses_nothing(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", GatedModel([text("done")], {0: gate}))
    async with serving(client, make_app(app_name, clerk), max_concurrent_activities=1) as busy:
        await busy.create()
        await busy.send("a")
        await gate.reached()
        user = busy.other(session_id="second")
        await user.create()
        invocation = await user.send("b")
        await user.workflow.cancel()
        await eventually(lambda: _all_stopped(user))
        gate.open()
        assert (await user.run("c")).status == "finished"
        assert (await user.workflow.describe()).status == WorkflowExecutionStatus.RUNNING
        assert (await user.invocation(invocation)).status == "stopped"


async def test_a_plan_is_pinned_to_its_invocation(client: Client, app_name: str) -> None:
    """A redeployed worker goes on with what waits as it was defined; the next invocation takes the new plan."""
    old = GatedModel([calls("pick"), text("picked"), text("next")])
    new = GatedModel(old.steps_as_given)
    app = make_app(app_name, agent("clerk", old, [long_running("pick")], instruction="Be old."))
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
    app = make_app(app_name, agent("clerk", new, [long_running("pick")], instruction="Be new."))
    async with serving(client, app) as user:
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        assert (await user.run("b")).status == "finished"
        shown = [request.config.model_dump_json(include={"system_instruction"}) for request in new.requests]
        assert ["Be old." in shown[0], "Be new." in shown[1]] == [True, True]
        assert [request.call_index for request in new.requests] == [1, 2]
