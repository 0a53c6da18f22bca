"""`on_failure="tell_model"`: after its last attempt a tool's failure is the model's business, and the run goes on."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents import LongRunningFunctionTool, ToolContext
from perdure.agents.expiry import AnswerWith
from perdure.agents.tools import FunctionTool
from perdure.client import Runner
from perdure.compiler.compile import compile_app
from perdure.errors import DefinitionError
from perdure.journal.fold import fold_journal
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationView, Trial
from perdure.plan.diff import describe_plan
from perdure.recovery.salvage import salvage
from perdure.rules.in_doubt import Reconciled
from perdure.sessions.lifecycle import Lifecycle
from perdure.views.ledger import build_effects
from tests.workflows.support import (
    ONCE,
    Counted,
    Gate,
    User,
    agent,
    calls,
    eventually,
    make_app,
    named,
    responses,
    serving,
    text,
)

QUICK = RetryPolicy(maximum_attempts=3, initial_interval=timedelta(milliseconds=10))
TOLD = (
    "Tool 'pay' failed 3 times, the last time with RuntimeError: call 3 of pay fails. It is not tried again by itself."
    " Call it with other arguments if those may be the reason, or go on without it."
)


def tells(fn: Any, **options: Any) -> FunctionTool:
    given: dict[str, Any] = {"retry": QUICK, "on_failure": "tell_model", **options}
    return FunctionTool(fn, **given)


async def ran(user: User) -> InvocationView:
    await user.create()
    return await user.run("a")


async def outcomes(user: User) -> list[tuple[str, str, int]]:
    return [(effect.tool, effect.outcome, effect.attempts) for effect in await user.runner.effects(**user.who)]


# A local tool runs again where a worker without a cache loses its workflow task.
@pytest.mark.server
@pytest.mark.parametrize("resumable", [True, False])
@pytest.mark.parametrize(("local", "cached"), [(True, 100), (False, 0), (False, 100)])
async def test_after_the_last_attempt_the_model_is_told_and_the_run_goes_on(
    client: Client, app_name: str, local: bool, resumable: bool, cached: int
) -> None:
    pay = Counted("pay", fail=9)
    clerk = agent("clerk", [calls("pay"), text("sorry")], [tells(pay.fn, local=local)])
    async with serving(client, make_app(app_name, clerk, resumable=resumable), cached=cached) as user:
        assert (await ran(user)).status == "finished"
        assert responses(await user.events(), "pay") == [{"error": TOLD}]
        assert (await user.log())[-1] == "clerk: sorry"
        assert len(pay.keys) == 3
        assert await outcomes(user) == [("pay", "failed", 3)]
        [effect] = await user.runner.effects(**user.who)
        assert effect.cause == "RuntimeError: call 3 of pay fails"


@pytest.mark.server
async def test_a_retry_that_works_is_no_failure(client: Client, app_name: str) -> None:
    pay = Counted("pay", {"paid": True}, fail=2)
    async with serving(client, make_app(app_name, agent("clerk", [calls("pay"), text("so")], [tells(pay.fn)]))) as user:
        assert (await ran(user)).status == "finished"
        assert responses(await user.events(), "pay") == [{"paid": True}]
        assert await outcomes(user) == [("pay", "done", 3)]


@pytest.mark.server
async def test_a_tool_that_takes_too_long_is_told_of_too(client: Client, app_name: str) -> None:
    async def hang() -> None:
        """Hang."""
        await asyncio.sleep(60)

    tool = tells(hang, retry=ONCE, timeout=timedelta(seconds=0.3))
    async with serving(client, make_app(app_name, agent("clerk", [calls("hang"), text("so")], [tool]))) as user:
        assert (await ran(user)).status == "finished"
        [told] = responses(await user.events(), "hang")
        assert told["error"].startswith("Tool 'hang' failed: timed out (start-to-close timeout).")


@pytest.mark.server
async def test_only_the_tools_that_say_so_are_told_of(client: Client, app_name: str) -> None:
    """The failure of the other fails the invocation; a resume runs that one again, and not the one that was told of."""
    pay, book = Counted("pay", fail=9), Counted("book", fail=1)
    clerk = agent("clerk", [calls("pay", "book"), text("so")], [tells(pay.fn), book.once])
    async with serving(client, make_app(app_name, clerk)) as user:
        view = await ran(user)
        assert [failure.step for failure in view.failures] == ["book"]
        assert (await user.resumed(view.id)).status == "finished"
        assert (len(pay.keys), len(book.keys)) == (3, 2)
        assert responses(await user.events(), "pay") == [{"error": TOLD}]


async def _has_failed(user: User) -> bool:
    projection = await user.journal()
    return any(runs.outcome == "failed" for runs in projection.tool_runs.values())


@pytest.mark.server
@pytest.mark.parametrize("how", ["continued as new", "stopped", "taken over"])
async def test_what_was_told_survives(client: Client, app_name: str, how: str) -> None:
    """The failed tool does not run again, while its sibling is still to return."""
    pay, gate = Counted("pay", fail=9), Gate()
    clerk = agent("clerk", [calls("pay", "wait"), text("so")], [tells(pay.fn), gate.tool("wait")])
    async with serving(client, make_app(app_name, clerk)) as user:
        if how == "continued as new":
            user.runner = Runner(app_name, client, trial=Trial(steps_per_run=2))
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        await eventually(lambda: _has_failed(user))
        if how == "stopped":
            await user.stop(invocation)
            gate.open()
            await user.resume(invocation)
        elif how == "taken over":
            gate.open()
            await Lifecycle(client).take_over(SessionKey(app_name, "u", "s"))
        else:
            gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert len(pay.keys) == 3
        assert responses(await user.events(), "pay") == [{"error": TOLD}]


@pytest.mark.server
@pytest.mark.parametrize("cached", [0, 100])
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("resumable", [True, False])
async def test_a_long_running_tool_that_fails_waits_for_nobody(
    client: Client, app_name: str, resumable: bool, beside: bool, cached: int
) -> None:
    """No person was asked, so none will answer: the session does, and says in the event that it did."""
    ask, look = Counted("pay", fail=9), Counted("look")
    tool = LongRunningFunctionTool(ask.fn, retry=QUICK, on_failure="tell_model")
    clerk = agent("clerk", [calls(*(["look"] if beside else []), "pay"), text("so")], [tool, look.fn])
    async with serving(client, make_app(app_name, clerk, resumable=resumable), cached=cached) as user:
        assert (await ran(user)).status == "finished"
        assert responses(await user.events(), "pay") == [{"error": TOLD}]
        assert (await user.log())[-1] == "clerk: so"
        assert dict((tool, outcome) for tool, outcome, _ in await outcomes(user))["pay"] == "failed"
        if resumable:
            assert await user.pending() == {}
            [event] = [event for event in await user.events() if event.custom_metadata]
            assert event.custom_metadata == {"perdure_tool_failed": True}


@pytest.mark.server
async def test_a_long_running_tool_that_failed_is_told_of_beside_one_that_waits(client: Client, app_name: str) -> None:
    ask = Counted("pay", fail=9)
    tools = [
        LongRunningFunctionTool(ask.fn, retry=QUICK, on_failure="tell_model"),
        LongRunningFunctionTool(named(lambda: None, "pick")),
    ]
    async with serving(client, make_app(app_name, agent("clerk", [calls("pay", "pick"), text("so")], tools))) as user:
        view = await ran(user)
        assert [call.name for call in view.pending] == ["pick"]
        await user.stop(view.id)
        view = await user.resumed(view.id)
        assert (await user.answered({view.pending[0].id: "blue"})).status == "finished"
        assert responses(await user.events(), "pay") == [{"error": TOLD}]
        assert len(ask.keys) == 3


@pytest.mark.server
@pytest.mark.parametrize("cached", [0, 100])
@pytest.mark.parametrize("by", ["person", "deadline"])
async def test_an_answer_between_two_attempts_remains_the_answer(
    client: Client, app_name: str, by: str, cached: int
) -> None:
    """Whoever answers first: what fails after that changes nothing, also for who reads the history only."""
    gate, tries = Gate(), list[str]()

    async def pay(tool_context: ToolContext) -> None:
        """Pay."""
        tries.append(tool_context.idempotency_key)
        if len(tries) > 1:
            await gate.pass_through(tool_context.idempotency_key)
        raise RuntimeError("no")

    limits: dict[str, Any] = {"expires_in": timedelta(seconds=1), "on_expiry": AnswerWith({"by": "deadline"})}
    given = limits if by == "deadline" else {}
    tool = LongRunningFunctionTool(pay, retry=QUICK, on_failure="tell_model", **given)
    async with serving(
        client, make_app(app_name, agent("clerk", [calls("pay"), text("so")], [tool])), cached=cached
    ) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        if by == "person":
            [call] = await user.open("pay")
            await user.answer({call: {"by": "person"}})
        else:
            await eventually(lambda: _is_answered(user))
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert len(tries) == 3
        assert responses(await user.events(), "pay") == [{"by": by}]
        [history] = await user.histories()
    projection = fold_journal(salvage(history.events))
    assert responses(projection.events, "pay") == [{"by": by}]
    assert [effect.outcome for effect in build_effects(projection)] == ["failed"]


async def _is_answered(user: User) -> bool:
    return all(call.answer != "open" for call in (await user.journal()).calls.values())


@pytest.mark.server
@pytest.mark.parametrize("found", [Reconciled(happened=True, result=7), Reconciled(happened=False), None])
async def test_a_call_at_most_once_is_in_doubt_first(client: Client, app_name: str, found: Reconciled | None) -> None:
    """It may have taken effect before it raised: the tool's own function is asked, then a person, and no resume is."""
    pay = Counted("pay", fail=1)
    tool = FunctionTool(pay.fn, at_most_once=True, reconcile=named(lambda: found, "find"), on_failure="tell_model")
    async with serving(client, make_app(app_name, agent("clerk", [calls("pay"), text("so")], [tool]))) as user:
        view = await ran(user)
        if found is None:
            [call] = view.pending
            assert "RuntimeError: call 1 of pay fails" in call.args["reason"]
            view = await user.answered({call.id: {"happened": False}})
        assert view.status == "finished"
        [told] = responses(await user.events(), "pay")
        assert told == {"result": 7} if found and found.happened else "did not take place" in told["error"]
        assert len(pay.keys) == 1


@pytest.mark.server
async def test_a_call_in_doubt_is_told_where_nobody_can_be_asked(client: Client, app_name: str) -> None:
    pay = Counted("pay", fail=1)
    tool = FunctionTool(pay.fn, at_most_once=True, on_failure="tell_model")
    app = make_app(app_name, agent("clerk", [calls("pay"), text("so")], [tool]), resumable=False)
    async with serving(client, app) as user:
        assert (await ran(user)).status == "finished"
        [told] = responses(await user.events(), "pay")
        assert told["error"].startswith("It is not known whether the call of 'pay' took effect: RuntimeError")
        assert len(pay.keys) == 1


@pytest.mark.server
async def test_code_that_no_worker_has_fails_the_invocation(client: Client, app_name: str) -> None:
    """That is a deployment's fault: the resume after it runs the tool."""
    pay, gate = Counted("pay"), Gate()
    script = [calls("wait"), calls("pay"), text("so")]
    app = make_app(app_name, agent("clerk", script, [tells(pay.fn), gate.tool("wait")]))
    soon: dict[str, Any] = {"missing_code_attempts": 1, "missing_code_pause": timedelta(milliseconds=50)}
    async with serving(client, app, **soon) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        await user.stop(invocation)
    gate.open()
    async with serving(client, make_app(app_name, agent("clerk", script, [gate.tool("wait")])), **soon) as user:
        view = await user.resumed(invocation)
        assert [failure.step for failure in view.failures] == ["pay"]
    async with serving(client, app, **soon) as user:
        assert (await user.resumed(invocation)).status == "finished"
        assert len(pay.keys) == 1


@pytest.mark.server
@pytest.mark.parametrize("long", [True, False])
async def test_every_beginning_of_the_history_tells_the_same(client: Client, app_name: str, long: bool) -> None:
    """Where the history says that the tool failed, the journal that is read out of it holds what the model was told."""
    pay = Counted("pay", fail=9)
    tool = LongRunningFunctionTool(pay.fn, retry=QUICK, on_failure="tell_model") if long else tells(pay.fn)
    async with serving(client, make_app(app_name, agent("clerk", [calls("pay"), text("so")], [tool]))) as user:
        assert (await ran(user)).status == "finished"
        [history] = await user.histories()
    failed = next(event.event_id for event in history.events if event.HasField("activity_task_failed_event_attributes"))
    for end in range(failed, len(history.events) + 1):
        projection = fold_journal(salvage(history.events[:end]))
        [invocation] = projection.invocations.values()
        assert invocation.status in ("running", "finished")
        told = [
            response.response
            for event in [*projection.events, *invocation.answers]
            for response in event.get_function_responses()
        ]
        assert told[-1] == {"error": TOLD}
        assert [effect.outcome for effect in build_effects(projection)] == ["failed"]


def test_the_plan_says_so() -> None:
    def pay() -> None:
        """Pay."""

    app = make_app("shop", agent("clerk", [], [tells(pay)]))
    plan = compile_app(app)
    assert any("tool pay (tells the model of failures)" in line for line in describe_plan(plan))
    assert plan.digest != compile_app(make_app("shop", agent("clerk", [], [FunctionTool(pay, retry=QUICK)]))).digest


def test_something_else_is_refused() -> None:
    wrong: Any = "ignore"
    with pytest.raises(DefinitionError, match="on_failure is 'ignore'; it is 'fail' or 'tell_model'"):
        FunctionTool(time.sleep, on_failure=wrong)
