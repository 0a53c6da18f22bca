"""Turns: who works when, what a wait holds, and what a failing branch leaves to its siblings (design, "Turns")."""

from __future__ import annotations

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import ParallelAgent
from perdure.errors import InvalidMessage, InvocationFailed, SessionExists, SessionNotFound
from perdure.journal.events import USER
from tests.workflows.support import Counted, Gate, agent, calls, eventually, long_running, make_app, serving, text

pytestmark = pytest.mark.server


@pytest.mark.parametrize("cached", [0, 100])
async def test_messages_queue_and_run_in_order_of_arrival(client: Client, app_name: str, cached: int) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("1"), text("2"), text("3")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk), cached=cached) as user:
        await user.create()
        first = await user.send("a")
        await gate.reached()
        second, third = await user.send("b"), await user.send("c")
        assert [await user.status(i) for i in (first, second, third)] == ["running", "queued", "queued"]
        assert await user.log() == ["user: a", "clerk calls work"]
        gate.open()
        await user.settled(third)
        expected = ["user: a", "clerk calls work", "clerk got work", "clerk: 1", "user: b", "clerk: 2", "user: c"]
        assert await user.log() == [*expected, "clerk: 3"]
        assert [view.id for view in (await user.view()).invocations] == [first, second, third]


async def test_a_waiting_invocation_does_not_hold_the_turn(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick"), text("meanwhile"), text("picked")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        assert waiting.status == "waiting"
        other = await user.run("b")
        assert (other.status, await user.status(waiting.id)) == ("finished", "waiting")
        assert (await user.answered({waiting.pending[0].id: {"ok": 1}})).status == "finished"
        assert await user.log(waiting.id) == [
            *("user: a", "clerk calls pick", "clerk got pick"),
            *("user answers pick", "clerk: picked"),
        ]
        assert (await user.log())[3:5] == ["user: b", "clerk: meanwhile"]


async def test_an_answer_to_a_waiting_invocation_takes_its_turn(client: Client, app_name: str) -> None:
    """While another invocation runs it is accepted, and logged when its turn comes: before what arrived later."""
    gate = Gate()
    script = [calls("pick"), calls("work"), text("worked"), text("picked"), text("last")]
    clerk = agent("clerk", script, [long_running("pick"), gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        working = await user.send("b")
        await gate.reached()
        assert (await user.answer({waiting.pending[0].id: {"ok": 1}})).status == "queued"
        last = await user.send("c")
        assert "user answers pick" not in await user.log()
        assert (await user.view()).status == "running"
        gate.open()
        await user.settled(last)
        log = await user.log()
        assert log[log.index("clerk: worked") :] == [
            *("clerk: worked", "user answers pick", "clerk: picked"),
            *("user: c", "clerk: last"),
        ]
        assert await user.log(working) == ["user: b", "clerk calls work", "clerk got work", "clerk: worked"]


@pytest.mark.parametrize("cached", [0, 100])
async def test_an_answer_to_the_running_invocation_is_logged_at_once(
    client: Client, app_name: str, cached: int
) -> None:
    gate = Gate()
    left = agent("left", [calls("pick"), text("picked")], [long_running("pick")])
    right = agent("right", [calls("work"), text("worked")], [gate.tool("work")])
    fan = ParallelAgent(name="fan", sub_agents=[left, right])
    async with serving(client, make_app(app_name, fan), cached=cached) as user:
        await user.create()
        invocation = await user.send("a")
        (pick,) = await user.open("pick")
        await user.logged("left got pick")
        await gate.reached()
        assert await user.status(invocation) == "running", "an invocation waits only when no branch of it is at work"
        assert (await user.answer({pick: {"ok": 1}})).status == "running"
        await user.logged("left: picked")
        assert (await user.status(invocation), len(gate.keys)) == ("running", 1)
        assert "right got work" not in await user.log()
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert (await user.log())[-1] == "right: worked"


async def test_a_failing_branch_lets_its_siblings_run_on(client: Client, app_name: str) -> None:
    """They run to their end or pause, then the invocation has failed; an answer runs the failed branch on."""
    gate, flaky = Gate(), Counted("flaky", fail=1)
    left = agent("left", [calls("pick"), text("picked")], [long_running("pick")])
    middle = agent("middle", [calls("flaky"), text("mended")], [flaky.once])
    right = agent("right", [calls("work"), text("worked")], [gate.tool("work")])
    fan = ParallelAgent(name="fan", sub_agents=[left, middle, right])
    async with serving(client, make_app(app_name, fan)) as user:
        await user.create()
        invocation = await user.send("a")
        await user.open("pick")
        await gate.reached()
        await eventually(lambda: len(flaky.keys) == 1)
        assert await user.status(invocation) == "running"
        gate.open()
        failed = await user.settled(invocation)
        assert (failed.status, failed.resumable) == ("failed", True)
        assert [(f.agent, f.step) for f in failed.failures] == [("middle", "flaky")]
        assert "call 1 of flaky fails" in failed.failures[0].cause
        assert [call.name for call in failed.pending] == ["pick"]
        assert "right: worked" in await user.log()
        assert (await user.answered({failed.pending[0].id: {"ok": 1}})).status == "finished"
        log = await user.log()
        assert {"left: picked", "middle: mended"} <= set(log)
        assert (len(gate.keys), len(flaky.keys), len(set(flaky.keys))) == (1, 2, 1)


async def test_all_failing_branches_are_told(client: Client, app_name: str) -> None:
    left, middle, right = [
        agent(name, [{"error": f"{name} is down"}, text("up")]) for name in ("left", "middle", "right")
    ]
    inner = ParallelAgent(name="inner", sub_agents=[left, middle])
    async with serving(client, make_app(app_name, ParallelAgent(name="fan", sub_agents=[inner, right]))) as user:
        await user.create()
        with pytest.raises(InvocationFailed, match="2 more branches failed") as raised:
            async for _ in user.runner.run_async(**user.who, new_message="a"):
                pass
        failed = await user.invocation(raised.value.invocation_id)
        assert {failure.cause for failure in failed.failures} == {"left is down", "middle is down", "right is down"}
        assert (await user.resumed(failed.id)).status == "finished"
        assert sorted((await user.log())[1:]) == ["left: up", "middle: up", "right: up"]


async def test_a_session_status_goes_by_precedence(client: Client, app_name: str) -> None:
    """Running, failed, waiting, stopped, idle."""
    gate = Gate()
    script = [calls("pick"), calls("pick"), {"error": "down"}, calls("work"), text("done"), text("b"), text("c")]
    clerk = agent("clerk", script, [long_running("pick"), gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        seen = [(await user.create()).status]
        stopped, waiting = await user.run("a"), await user.run("b")
        seen.append((await user.view()).status)
        await user.stop(stopped.id)
        seen.append((await user.view()).status)
        failed = await user.run("c")
        seen.append((await user.view()).status)
        working = await user.send("d")
        await gate.reached()
        seen.append((await user.view()).status)
        gate.open()
        await user.settled(working)
        seen.append((await user.view()).status)
        await user.resumed(failed.id)
        seen.append((await user.view()).status)
        await user.answered({waiting.pending[0].id: {}})
        seen.append((await user.view()).status)
    assert seen == ["idle", "waiting", "waiting", "failed", "running", "failed", "waiting", "stopped"]


async def test_what_is_no_message_is_refused_and_leaves_no_trace(client: Client, app_name: str) -> None:
    call = types.Part(function_call=types.FunctionCall(name="pick", args={}))
    async with serving(client, make_app(app_name, agent("clerk", [text("x")]))) as user:
        await user.create()
        with pytest.raises(InvalidMessage, match="function calls"):
            await user.runner.send_message(**user.who, message=types.Content(role=USER, parts=[call]))
        with pytest.raises(InvalidMessage, match="empty"):
            await user.runner.send_message(**user.who, message=types.Content(role=USER, parts=[]))
        part = types.Part(function_response=types.FunctionResponse(id="x", response={}))
        with pytest.raises(InvalidMessage, match="respond"):
            await user.runner.send_message(**user.who, message=types.Content(role=USER, parts=[part]))
        assert (await user.view()).invocations == ()


@pytest.mark.parametrize("cached", [0, 100])
async def test_a_retried_message_starts_one_invocation(client: Client, app_name: str, cached: int) -> None:
    clerk = agent("clerk", [text("once"), text("twice")])
    async with serving(client, make_app(app_name, clerk), cached=cached) as user:
        await user.create()
        first = await user.send("a", request_id="r1")
        assert await user.send("a", request_id="r1") == first
        await user.settled(first)
        assert await user.send("a", request_id="r1") == first
        assert await user.send("a", request_id="r2") != first
        await user.logged("clerk: twice")
        assert await user.log() == ["user: a", "clerk: once", "user: a", "clerk: twice"]


async def test_sessions_that_are_not_there_and_are_there_already(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("x")]))) as user:
        with pytest.raises(SessionNotFound, match="create_session"):
            await user.send("a")
        with pytest.raises(SessionNotFound):
            await user.view()
        await user.create()
        with pytest.raises(SessionExists):
            await user.create()
