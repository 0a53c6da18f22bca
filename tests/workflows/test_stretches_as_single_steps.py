"""Several steps in one activity come to what they come to as activities of their own, whatever fails, stops or ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from temporalio.client import AsyncActivityHandle, Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities import stretch_log, stretches
from perdure.agents import LlmAgent, ParallelAgent, ToolContext
from perdure.agents.adk_app import AnyApp
from perdure.agents.expiry import AnswerWith, FailInvocation, OnExpiry
from perdure.agents.tools import FunctionTool
from perdure.errors import ModelError
from perdure.journal.events import Event
from perdure.messages.session import InvocationView, ModelInput
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.plan.contents import types
from perdure.prove.outcome import Outcome
from perdure.prove.proof import ProofConfig, Prover
from perdure.prove.scenario import ProofScenario
from perdure.recovery.history_payloads import steps as steps_in
from perdure.rules.tool_responses import failure_output
from perdure.steps.base import ATTEMPTS_OF_DEFECTS
from perdure.steps.native import NativeSteps
from perdure.streams.partials import ATTEMPT
from tests.conformance.build import taking
from tests.conformance.logs import all_scenarios
from tests.conformance.proofs import ScenarioSource, check
from tests.streams.support import streaming
from tests.workflows.support import (
    ONCE,
    Counted,
    Gate,
    GatedModel,
    User,
    agent,
    calls,
    eventually,
    named,
    responses,
    serving,
    text,
)
from tests.workflows.test_deadlines import timed
from tests.workflows.test_stretches import ROUNDS, activities, app_of

pytestmark = pytest.mark.server

STEPS = 20
either = pytest.mark.parametrize("steps", [1, STEPS])
"""Whatever a test says holds of one step an activity, too."""
LOOKS = [*([calls("look")] * ROUNDS), text("done")]
LOOKED = ["user: go", *(["clerk calls look", "clerk got look"] * ROUNDS), "clerk: done"]
ALONE = [*["model", "look"] * ROUNDS, "model"]
DONE = ["user: go", "clerk calls look", "clerk got look"]


async def ran(user: User) -> InvocationView:
    await user.create()
    return await user.run("go")


async def begun(user: User, gate: Gate) -> str:
    await user.create()
    invocation = await user.send("go")
    await gate.reached()
    return invocation


Heartbeat = Callable[..., Awaitable[None]]
Way = Callable[..., Awaitable[None]]
"""Sends a heartbeat or not: it gets how one is sent, and what is kept in it."""


def heartbeats_go(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    send = AsyncActivityHandle.heartbeat

    async def heartbeat(handle: AsyncActivityHandle, *details: Any) -> None:
        await way(partial(send, handle), *details)

    monkeypatch.setattr(AsyncActivityHandle, "heartbeat", heartbeat)


async def is_refused(_send: Heartbeat, *_details: Any) -> None:
    raise RPCError("no", RPCStatusCode.UNAVAILABLE, b"")


async def loses_its_reply(send: Heartbeat, *details: Any) -> None:
    await send(*details)
    raise RPCError("lost", RPCStatusCode.DEADLINE_EXCEEDED, b"")


async def hangs(send: Heartbeat, *details: Any) -> None:
    await asyncio.sleep(2)
    await send(*details)


@asynccontextmanager
async def redeployed(
    client: Client, app: AnyApp, gate: Gate, *before: Callable[[], bool], late: float | None = None
) -> AsyncGenerator[tuple[User, InvocationView]]:
    """End the worker behind some conditions, a tool at the gate, and have another one go on; yields what comes of it.

    The gate opens when the worker has ended, or so many seconds after it was told to end.
    """
    async with serving(client, app) as user:
        invocation = await begun(user, gate)
        for held in before:
            await eventually(held)
        if late is not None:
            asyncio.get_running_loop().call_later(late, gate.open)
    gate.open()
    async with serving(client, app):
        yield user, await user.settled(invocation)
        await user.events()


@either
async def test_a_tool_that_hands_over_to_nobody_tells_its_model(client: Client, app_name: str, steps: int) -> None:
    def pass_on(tool_context: ToolContext) -> str:
        tool_context.actions.transfer_to_agent = "nobody"
        return "handing over"

    clerk = agent("clerk", [calls("pass_on"), text("done")], [named(pass_on, "pass_on")])
    async with serving(client, app_of(app_name, clerk, steps)) as user:
        assert (await ran(user)).status == "finished"
        assert await user.log() == ["user: go", "clerk calls pass_on", "clerk got pass_on", "clerk: done"]
        [told] = responses(await user.events(), "pass_on")
        assert told["result"] == "handing over"
        assert "there is no such agent" in told["error"]


@either
async def test_a_model_that_is_asked_once_survives_its_worker(client: Client, app_name: str, steps: int) -> None:
    tool, gate = Counted("look"), Gate()
    script = [calls("look"), calls("slow"), text("done")]
    clerk = agent("clerk", script, [tool.fn, gate.tool("slow")], model_retry=ONCE)
    async with redeployed(client, app_of(app_name, clerk, steps), gate) as (user, view):
        assert (view.status, view.failures) == ("finished", ())
        assert await user.log() == [*DONE, "clerk calls slow", "clerk got slow", "clerk: done"]
        assert (len(tool.keys), len(gate.keys), len(set(gate.keys))) == (1, 2, 1)


@either
async def test_a_sync_tool_that_finishes_while_its_worker_ends_does_not_run_again(
    client: Client, app_name: str, steps: int
) -> None:
    tool, gate = Counted("look"), Gate()
    clerk = agent("clerk", [calls("look"), calls("work"), text("done")], [tool.fn, gate.tool("work", sync=True)])
    async with redeployed(client, app_of(app_name, clerk, steps), gate, late=1) as (user, view):
        assert view.status == "finished"
        assert (len(tool.keys), len(gate.keys)) == (1, 1)
        assert responses(await user.events(), "work") == [{"result": "done"}]


def declining(runs: list[str]) -> Callable[..., Any]:
    """Return a tool that fails for good, and notes that it ran."""

    def pay() -> str:
        runs.append("pay")
        raise ApplicationError("declined", type="Declined", non_retryable=True)

    return named(pay, "pay")


@either
async def test_what_failed_for_good_beside_a_tool_at_work_does_not_run_again(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Nor where no heartbeat has kept that: the worker hands it over as it ends."""

    async def first_only(send: Heartbeat, *details: Any) -> None:
        await (send(*details) if len(details) < 2 else is_refused(send))

    heartbeats_go(monkeypatch, first_only)
    runs, gate = list[str](), Gate()
    clerk = agent("clerk", [calls("pay", "slow"), text("done")], [declining(runs), gate.tool("slow")])
    async with redeployed(client, app_of(app_name, clerk, steps), gate, lambda: bool(runs)) as (user, view):
        assert [failure.step for failure in view.failures] == ["pay"]
        assert (view.status, runs) == ("failed", ["pay"])
        effects = {effect.tool: effect.attempts for effect in await user.runner.effects(**user.who)}
        assert effects["pay"] == 1


async def test_what_was_kept_by_a_worker_that_fell_silent_is_not_done_again(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what failed for good, or is large; and that the activity is tried again is no attempt of its model."""
    silent = asyncio.Event()

    async def until_silent(send: Heartbeat, *details: Any) -> None:
        if not silent.is_set():
            await send(*details)

    heartbeats_go(monkeypatch, until_silent)
    look, big, runs, gate = Counted("look"), Counted("big", returns="x" * 150_000), list[str](), Gate()
    tools = [look.fn, FunctionTool(declining(runs), on_failure="tell_model"), big.fn, gate.tool("slow")]
    clerk = agent("clerk", [calls("look"), calls("pay", "big", "slow"), text("done")], tools, model_retry=ONCE)
    async with serving(client, app_of(app_name, clerk)) as user:
        invocation = await begun(user, gate)
        await eventually(lambda: _has_kept_both(user))
        silent.set()
        await gate.reached(2)
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert await user.log() == [*DONE, "clerk calls pay, big, slow", "clerk got pay, big, slow", "clerk: done"]
        assert (len(look.keys), runs, len(big.keys), len(set(gate.keys))) == (1, ["pay"], 1, 1)


async def _has_kept_both(user: User) -> bool:
    pending = (await user.workflow.describe()).raw_description.pending_activities
    kept = [part for one in pending for part in await user.client.data_converter.decode(one.heartbeat_details.payloads)]
    return any(part.get("failed") and part["entries"] for part in kept)


@either
async def test_what_fails_beside_a_tool_at_work_is_tried_again_meanwhile(
    client: Client, app_name: str, steps: int
) -> None:
    flaky, gate = Counted("flaky", fail=2), Gate()
    clerk = agent("clerk", [calls("flaky", "slow"), text("done")], [flaky.fn, gate.tool("slow")])
    async with serving(client, app_of(app_name, clerk, steps)) as user:
        invocation = await begun(user, gate)
        await eventually(lambda: len(flaky.keys) == 3)
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert (len(flaky.keys), len(set(flaky.keys)), len(gate.keys)) == (3, 1, 1)
        assert sorted(effect.attempts for effect in await user.runner.effects(**user.who)) == [1, 3]


@either
async def test_a_large_result_beside_a_tool_at_work_outlives_the_worker(
    client: Client, app_name: str, steps: int
) -> None:
    big, gate = Counted("big", returns="x" * 150_000), Gate()
    clerk = agent("clerk", [calls("big", "slow"), text("done")], [big.fn, gate.tool("slow")])
    async with redeployed(client, app_of(app_name, clerk, steps), gate, lambda: bool(big.keys)) as (user, view):
        assert (view.status, len(big.keys)) == ("finished", 1)
        assert await user.log() == ["user: go", "clerk calls big, slow", "clerk got big, slow", "clerk: done"]


@either
@pytest.mark.parametrize(("attempts", "beside"), [(1, False), (2, False), (2, True)])
async def test_attempts_are_counted_and_told(
    client: Client, app_name: str, steps: int, attempts: int, *, beside: bool
) -> None:
    runs: list[int] = []
    gate = Gate()

    def pay() -> str:
        runs.append(1)
        if len(runs) < attempts:
            raise RuntimeError("busy")
        gate.open()
        raise ApplicationError("declined", type="Declined", non_retryable=True)

    called = calls("pay", "slow") if beside else calls("pay")
    tools = [FunctionTool(named(pay, "pay"), on_failure="tell_model"), gate.tool("slow")]
    async with serving(client, app_of(app_name, agent("clerk", [called, text("done")], tools), steps)) as user:
        assert (await ran(user)).status == "finished"
        told = failure_output("pay", "Declined: declined", attempts).result
        assert (responses(await user.events(), "pay"), len(runs)) == ([told], attempts)
        effects = {effect.tool: effect for effect in await user.runner.effects(**user.who)}
        assert (effects["pay"].attempts, effects["pay"].outcome) == (attempts, "failed")


class FailingModel(ScriptedModel):
    """Fails in its second call, as often as it is told to, in the way that a test says."""

    def __init__(self, fail: Callable[[], Awaitable[None]], *, times: int = 99) -> None:
        super().__init__([calls("look"), text("done")])
        self._fail = fail
        self._times = times
        self.tries = 0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        if llm_request.call_index == 1:
            self.tries += 1
            if self.tries <= self._times:
                if stream:
                    half = types.Content(role="model", parts=[types.Part(text="Half")])
                    yield LlmResponse(content=half, partial=True)
                await self._fail()
        async for response in super().generate_content_async(llm_request, stream):
            yield response


@either
async def test_a_defect_of_a_model_is_tried_as_often_behind_a_tool(client: Client, app_name: str, steps: int) -> None:
    async def fail() -> None:
        raise KeyError("defect")

    model, tool = FailingModel(fail), Counted("look")
    async with serving(client, app_of(app_name, agent("clerk", model, [tool.fn]), steps)) as user:
        failed = await ran(user)
        assert (failed.status, [failure.step for failure in failed.failures]) == ("failed", ["model"])
        assert (model.tries, len(tool.keys)) == (ATTEMPTS_OF_DEFECTS, 1)
        assert await user.log() == DONE


@either
async def test_a_model_that_is_late_is_asked_as_often_behind_a_tool(client: Client, app_name: str, steps: int) -> None:
    async def wait() -> None:
        await asyncio.sleep(30)

    model, tool = FailingModel(wait), Counted("look")
    retry = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=10))
    clerk = agent("clerk", model, [tool.fn], model_retry=retry, model_timeout=timedelta(seconds=1))
    async with serving(client, app_of(app_name, clerk, steps)) as user:
        assert (await ran(user)).status == "failed"
        assert (model.tries, len(tool.keys)) == (2, 1)
        assert await user.log() == DONE


@either
async def test_a_streamed_answer_that_is_begun_anew_has_one_id(client: Client, app_name: str, steps: int) -> None:
    seen, gate = list[Event](), Gate()

    async def fail() -> None:
        await gate.pass_through("model")
        raise ModelError("overloaded", retryable=True, retry_after=0.1)

    clerk = agent("clerk", FailingModel(fail, times=1), [Counted("look").fn])
    async with streaming(client, app_of(app_name, clerk, steps)) as user:
        await user.create()
        async with aclosing(user.runner.run_async(**user.who, new_message="go", streaming=True)) as events:
            async for event in events:
                seen.append(event)
                if event.partial:
                    gate.open()
        half = [event for event in seen if event.partial]
        [answer] = [event for event in seen if event.text == "done" and not event.partial]
        assert {event.id for event in half} == {answer.id}
        assert [(event.text, (event.custom_metadata or {})[ATTEMPT]) for event in half] == [("Half", 1), ("done", 2)]
        assert [event for event in seen if not event.partial] == (await user.events())[1:]


async def test_a_model_call_that_is_cut_off_was_an_attempt_of_it(client: Client, app_name: str) -> None:
    """What was streamed of it is begun anew under the same id, as by an attempt of one activity."""
    gate = Gate()

    async def wait() -> None:
        await gate.pass_through("model")

    clerk = agent("clerk", FailingModel(wait, times=1), [Counted("look").fn])
    async with redeployed(client, app_of(app_name, clerk), gate) as (user, view):
        assert view.status == "finished"
        assert await user.log() == [*DONE, "clerk: done"]
        history = await user.workflow.fetch_history()
    asked = [call for _, call in steps_in(history.events) if isinstance(call, ModelInput)]
    assert [(call.call_index, call.tried) for call in asked] == [(0, 0), (1, 1)]
    assert [call.answer_id is not None for call in asked] == [False, True]


@pytest.mark.parametrize(
    ("module", "bound", "most", "found"),
    [
        (stretches, "BEGIN_WITHIN", 0, ALONE),
        (stretches, "_MAX_BYTES", 10, ALONE),
        (stretches, "_MAX_BYTES", 4_000, ["model", "look", "model", "look", "model"]),
        (stretches, "_MOST_ENTRIES", 1, ALONE),
        # The workflow logs what each tool returned.
        (stretch_log, "_SMALL_BYTES", 10, ["model"] * (ROUNDS + 1)),
    ],
)
async def test_no_step_begins_behind_a_bound(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, module: Any, bound: str, most: int, found: list[str]
) -> None:
    monkeypatch.setattr(module, bound, most)
    tool = Counted("look", returns="x" * 1_000)
    async with serving(client, app_of(app_name, agent("clerk", LOOKS, [tool.fn]))) as user:
        assert (await ran(user)).status == "finished"
        assert await user.log() == LOOKED
        assert await activities(user) == found
        assert len(tool.keys) == len(set(tool.keys)) == ROUNDS


@pytest.mark.parametrize(
    ("way", "which", "found"),
    [
        (is_refused, {1, 2, 3}, [*["model", "look"] * 3, "model"]),
        # Behind the tool.
        (is_refused, {2}, ["model", "model"]),
        (loses_its_reply, {1, 3}, ["model", "look", "model", "model"]),
        (hangs, {2}, ["model"]),
    ],
)
async def test_a_heartbeat_that_comes_to_nothing_costs_no_step(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, way: Way, which: set[int], found: list[str]
) -> None:
    """One that is not heard of to have been taken ends its activity, which hands over what it has."""
    sent: list[int] = []

    async def one(send: Heartbeat, *details: Any) -> None:
        sent.append(len(details))
        await (way(send, *details) if len(sent) in which else send(*details))

    heartbeats_go(monkeypatch, one)
    tool = Counted("look")
    # Sparse, so that none comes by the clock.
    async with serving(client, app_of(app_name, agent("clerk", LOOKS, [tool.fn])), heartbeats="sparse") as user:
        assert (await ran(user)).status == "finished"
        assert await user.log() == LOOKED
        assert await activities(user) == found
        assert len(tool.keys) == len(set(tool.keys)) == ROUNDS


async def _stopped(user: User, invocation: str) -> None:
    assert (await user.stop(invocation)).status == "stopped"


async def _cancelled(user: User, invocation: str) -> None:
    await user.workflow.cancel()
    assert (await user.settled(invocation)).status == "stopped"


@either
@pytest.mark.parametrize(("end", "at"), [(_stopped, "model"), (_cancelled, "model"), (_cancelled, "tool")])
async def test_what_was_done_before_an_end_is_logged(
    client: Client, app_name: str, steps: int, end: Callable[[User, str], Awaitable[None]], at: str
) -> None:
    tool, gate = Counted("look"), Gate()
    model = GatedModel([calls("look"), calls("slow"), text("done")], {1: gate} if at == "model" else {})
    slow = Counted("slow").fn if at == "model" else gate.tool("slow")
    async with serving(client, app_of(app_name, agent("clerk", model, [tool.fn, slow]), steps)) as user:
        invocation = await begun(user, gate)
        await end(user, invocation)
        done = [*DONE, *(["clerk calls slow"] if at == "tool" else [])]
        assert (await user.log(), gate.cancelled) == (done, 1)
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert await user.log() == [*DONE, "clerk calls slow", "clerk got slow", "clerk: done"]
        assert [request.call_index for request in model.requests] == ([0, 1, 1, 2] if at == "model" else [0, 1, 2])
        assert (len(tool.keys), len(set(gate.keys))) == (1, 1)


@either
@pytest.mark.parametrize(("on_expiry", "status"), [(AnswerWith("late"), "finished"), (FailInvocation(), "failed")])
async def test_a_deadline_passes_beside_a_stretch(
    client: Client, app_name: str, steps: int, on_expiry: OnExpiry, status: str
) -> None:
    tool, gate = Counted("look"), Gate()
    left = agent("left", [calls("ask"), text("left done")], [timed(on_expiry)])
    right = agent("right", [calls("look"), calls("slow"), text("right done")], [tool.fn, gate.tool("slow")])
    both = ParallelAgent(name="both", sub_agents=[left, right])
    async with serving(client, app_of(app_name, both, steps)) as user:
        invocation = await begun(user, gate)
        await eventually(lambda: _has_expired(user, invocation))
        gate.open()
        assert (await user.settled(invocation)).status == status
        log = [line for line in await user.log() if line.startswith("right")]
        assert log[:4] == ["right calls look", "right got look", "right calls slow", "right got slow"]
        assert (len(tool.keys), len(gate.keys)) == (1, 1)


async def _has_expired(user: User, invocation: str) -> bool:
    is_answered = "user answers ask" in await user.log()
    return is_answered or any(call.deadline is None for call in (await user.invocation(invocation)).pending)


@pytest.mark.parametrize("options", [{"timeout": timedelta(minutes=1)}, {"heartbeat_timeout": timedelta(seconds=9)}])
async def test_a_tool_with_a_time_of_its_own_is_an_activity_of_its_own(
    client: Client, app_name: str, options: dict[str, Any]
) -> None:
    tool = Counted("careful")
    clerk = agent("clerk", [calls("careful"), text("done")], [FunctionTool(tool.fn, **options)])
    async with serving(client, app_of(app_name, clerk)) as user:
        assert (await ran(user)).status == "finished"
        assert await activities(user) == ["model", "careful", "model"]


@pytest.mark.process
async def test_a_worker_that_is_killed_amid_a_stretch_loses_the_step_that_it_was_at(client: Client) -> None:
    """As a step is about to begin, and as it is done and not kept."""
    [scenario] = [one for one in all_scenarios() if one.name == "llm_one_tool"]
    proof = ProofScenario(name=scenario.name, state=scenario.state, turns=scenario.turns, compare=scenario.compare)
    outcomes: list[Outcome] = []

    def judge(outcome: Outcome) -> list[str]:
        outcomes.append(outcome)
        return check(scenario, outcome)

    prover = Prover(client, ProofConfig(at_once=8, most_cuts=7))
    with taking(STEPS):
        report = await prover.prove(ScenarioSource(scenario), proof, ["kill"], check=judge)
    assert report.ok, str(report)
    steps, *cut = [[step for step in outcome.steps if step.kind != "other"] for outcome in outcomes]
    assert [step.kind for step in steps] == ["model", "tool", "model"]
    assert len({step.activity.split("/")[1] for step in steps}) == 1, "not one activity"
    # To a proof the attempts of one activity are the same.
    assert max(map(len, cut)) == len(steps) + 1


async def test_what_a_model_is_to_see_is_made_while_the_heartbeat_is_under_way(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which runs no code of the user's, and asks no model: a step begins when all before it is kept."""
    tool, made, prepare = Counted("look"), asyncio.Event(), NativeSteps.prepare_model_call
    model = GatedModel([calls("look"), text("done")])

    def prepare_model_call(self: NativeSteps, *args: Any) -> None:
        prepare(self, *args)
        made.set()

    async def waits(send: Heartbeat, *details: Any) -> None:
        if tool.keys:
            await asyncio.wait_for(made.wait(), 5)
            assert len(model.requests) == 1
        await send(*details)

    monkeypatch.setattr(NativeSteps, "prepare_model_call", prepare_model_call)
    heartbeats_go(monkeypatch, waits)
    clerk = LlmAgent(name="clerk", model=model, tools=[FunctionTool(tool.fn)])
    async with serving(client, app_of(app_name, clerk)) as user:
        assert (await ran(user)).status == "finished"
        assert await activities(user) == ["model"]
        assert (len(model.requests), made.is_set()) == (2, True)
