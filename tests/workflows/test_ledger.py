"""The ledger of a session: what its tools did, when, how often, and what became of each call."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from perdure.agents import FunctionTool, LoopAgent, exit_loop
from perdure.cli.main import main
from perdure.journal.compact_json import payload_size
from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_RECONCILE
from perdure.messages.effects import Effect, EffectsPage
from perdure.messages.session import PageInput
from tests.workflows.support import (
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

pytestmark = pytest.mark.server

QUICK = RetryPolicy(maximum_attempts=3, initial_interval=timedelta(milliseconds=10))


async def ledger(user: User) -> dict[str, Effect]:
    """Return the ledger by tool."""
    return {effect.tool: effect for effect in await user.runner.effects(**user.who)}


async def outcomes(user: User) -> dict[str, str]:
    return {tool: effect.outcome for tool, effect in (await ledger(user)).items()}


async def test_a_call_tells_its_attempts_times_and_key(client: Client, app_name: str) -> None:
    before = time.time()
    flaky = Counted("flaky", {"n": 1}, fail=2)
    clerk = agent("clerk", [calls("flaky"), text("done")], [FunctionTool(flaky.fn, retry=QUICK)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = (await user.run("a")).id
        (effect,) = await user.runner.effects(**user.who)
        assert effect.started is not None
        assert effect.ended is not None
        assert before < effect.called < effect.started + 0.1 < effect.ended + 0.1 < time.time() + 0.1
        assert effect.model_dump(exclude={"called", "started", "ended"}) == {
            "call_id": effect.call_id,
            "tool": "flaky",
            "agent": "clerk",
            "branch": None,
            "invocation_id": invocation,
            "idempotency_key": flaky.keys[0],
            "attempts": 3,
            "outcome": "done",
            "cause": None,
        }
        # The event and what the journal keeps of a result tell no times.
        assert responses(await user.events(), "flaky") == [{"n": 1}]


@pytest.mark.parametrize("kind", ["plain", "application error", "timeout"])
async def test_attempts_add_up_over_resumes_and_a_failure_has_its_cause(
    client: Client, app_name: str, kind: str
) -> None:
    runs: list[int] = []

    async def flaky() -> int:
        runs.append(1)
        if len(runs) <= 3:
            match kind:
                case "plain":
                    raise RuntimeError("the line is dead")
                case "application error":
                    raise ApplicationError("the line is dead", {"of": "its own"}, type="RuntimeError")
                case _:
                    await gate.pass_through("k")
        return 7

    gate = Gate()
    tool = FunctionTool(named(flaky, "flaky"), retry=QUICK, timeout=timedelta(seconds=1))
    async with serving(client, make_app(app_name, agent("clerk", [calls("flaky"), text("done")], [tool]))) as user:
        await user.create()
        view = await user.run("a")
        effect = (await ledger(user))["flaky"]
        said = "timed out (start-to-close timeout)" if kind == "timeout" else "RuntimeError: the line is dead"
        assert (effect.outcome, effect.attempts, effect.cause, view.failures[0].cause) == ("failed", 3, said, said)
        assert (await user.resumed(view.id)).status == "finished"
        again = (await ledger(user))["flaky"]
        assert (again.outcome, again.attempts, again.cause, again.started) == ("done", 4, None, effect.started)


async def test_every_outcome_of_a_run(client: Client, app_name: str) -> None:
    """At work, stopped, done, and what never ran."""
    gate, quick, broken = Gate(), Counted("quick"), Counted("broken", fail=1)
    tools = [gate.tool("work"), quick.fn, broken.once, exit_loop]
    script = [calls("quick", "work"), calls("nothing"), calls("broken"), calls("exit_loop"), text("done")]
    clerk = LoopAgent(name="loop", max_iterations=1, sub_agents=[agent("clerk", script, tools)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        await eventually(lambda: _ran(user, "quick"))
        assert await outcomes(user) == {"quick": "running", "work": "running"}
        await user.stop(invocation)
        assert await outcomes(user) == {"quick": "done", "work": "interrupted"}
        gate.open()
        assert (await user.resumed(invocation)).status == "failed"
        expected = {"quick": "done", "work": "done", "nothing": "not run", "broken": "failed"}
        assert await outcomes(user) == expected
        assert (await user.resumed(invocation)).status == "finished"
        assert await outcomes(user) == expected | {"broken": "done"}, "a built-in tool has no effect outside"
        assert {tool: effect.attempts for tool, effect in (await ledger(user)).items()} == {
            "quick": 1,
            "work": 2,
            "nothing": 0,
            "broken": 2,
        }


async def _ran(user: User, tool: str) -> bool:
    return (await ledger(user))[tool].attempts == 1


async def test_a_stopped_local_tool_stands_in_the_ledger(client: Client, app_name: str) -> None:
    """It has started, so it may have taken effect: its attempt counts, and it is not told as if it had never run."""
    gate = Gate()
    slow = FunctionTool(gate.tool("slow"), local=True, timeout=timedelta(seconds=50))
    clerk = agent("clerk", [calls("slow"), text("done")], [slow])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        await user.stop(invocation)
        stopped = (await ledger(user))["slow"]
        assert (stopped.outcome, stopped.attempts, stopped.cause) == ("interrupted", 1, None)
        assert stopped.started is not None
        assert stopped.ended is not None
        assert stopped.started <= stopped.ended
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        done = (await ledger(user))["slow"]
        assert (done.outcome, done.attempts, done.started) == ("done", 2, stopped.started)
        assert (done.idempotency_key, len(gate.keys)) == (stopped.idempotency_key, 2)


async def test_every_outcome_that_a_person_decides(client: Client, app_name: str) -> None:
    def fails() -> None:
        raise RuntimeError("down")

    tools: list[Any] = [
        FunctionTool(Counted("approved").fn, require_confirmation=True),
        FunctionTool(Counted("refused").fn, require_confirmation=True),
        FunctionTool(named(fails, "once"), at_most_once=True),
        FunctionTool(named(fails, "never"), at_most_once=True),
        long_running("ask"),
        long_running("silent", None),
    ]
    script = [calls("approved"), calls("refused"), calls("once"), calls("never"), calls("ask", "silent"), text("done")]
    async with serving(client, make_app(app_name, agent("clerk", script, tools))) as user:
        await user.create()
        waiting = await user.run("a")
        assert await outcomes(user) == {"approved": "awaits approval"}
        for confirmed in (True, False):
            (request,) = await user.open(REQUEST_CONFIRMATION)
            waiting = await user.answered({request: {"confirmed": confirmed}})
        assert (waiting.status, (await outcomes(user))["once"]) == ("failed", "in doubt")
        for happened in (True, False):
            await user.resume(waiting.id)
            (request,) = await user.open(REQUEST_RECONCILE)
            assert "in doubt" in (await outcomes(user)).values()
            waiting = await user.answered({request: {"happened": happened}})
        expected = {"approved": "done", "refused": "rejected", "once": "done", "never": "not run"}
        assert await outcomes(user) == expected | {"ask": "waiting", "silent": "waiting"}
        ask, silent = await user.open("ask", "silent")
        await user.answer({ask: {}})
        assert (await outcomes(user))["ask"] == "answered"
        assert (await user.answered({silent: {}})).status == "finished"
        assert await outcomes(user) == expected | {"ask": "answered", "silent": "answered"}


async def test_a_confirmed_call_of_an_earlier_invocation_tells_its_real_key(client: Client, app_name: str) -> None:
    """In an app that is not resumable the tool runs in the invocation that the answer starts."""
    pay = Counted("pay")
    tool = FunctionTool(pay.fn, require_confirmation=True)
    clerk = agent("clerk", [calls("pay"), text("done")], [tool])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        first = await user.run("a")
        await user.answered({(await user.open(REQUEST_CONFIRMATION))[0]: {"confirmed": True}})
        (effect,) = await user.runner.effects(**user.who)
        assert (effect.outcome, effect.invocation_id, effect.attempts) == ("done", first.id, 1)
        assert [effect.idempotency_key] == pay.keys


async def test_the_ledger_survives_a_lost_workflow_and_comes_in_pages(
    client: Client, temporal_server: str, app_name: str
) -> None:
    clerk = agent("clerk", [*[calls("quick") for _ in range(6)], text("done")], [Counted("quick").once])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("a")
        whole = await user.runner.effects(**user.who)
        page = await user.workflow.query("effects", PageInput(since=2, max_bytes=1), result_type=EffectsPage)
        assert (page.effects, page.total) == (whole[2:3], 6)
        sizes = [payload_size(entry) for entry in (await user.journal()).entries if entry.kind == "tool_ran"]
        assert (len(sizes), max(sizes) <= 200) == (6, True)
        await user.workflow.terminate()
        assert await user.runner.effects(**user.who) == whole
        shown = await _printed(app_name, temporal_server)
        assert shown[0].split()[:3] == ["AGENT", "TOOL", "OUTCOME"]
        assert [line.split()[:4] for line in shown[1:]] == [["clerk", "quick", "done", "1"]] * 6
        rows = await _printed(app_name, temporal_server, "--json")
        assert [Effect.model_validate_json(row) for row in rows] == list(whole)


async def _printed(app: str, address: str, *options: str) -> list[str]:
    arguments = ["effects", app, "--user", "u", "--session", "s", "--address", address, *options]
    # It runs a loop of its own.
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()
