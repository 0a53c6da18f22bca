"""Custom agents that deal with failures, entered again: after stops, resumes, and as a session continues as new."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents import App, FunctionTool, ParallelAgent, ResumabilityConfig, SequentialAgent
from perdure.agents.custom import BaseAgent
from perdure.client import Runner
from perdure.messages.session import Trial
from tests.workflows import custom_agents
from tests.workflows.custom_agents import AskBoth, faltering
from tests.workflows.fallback_agents import (
    Deep,
    Gathering,
    Impatient,
    OwnFailure,
    Retry,
    Second,
    Silent,
    Touchy,
    Twice,
    late,
    touchy,
)
from tests.workflows.support import Counted, User, agent, calls, eventually, long_running, serving, text

pytestmark = pytest.mark.server

DOWN = {"error": "overloaded"}
PAID_ONCE = [calls("charge"), calls("sign"), text("Paid.")]
"""What comes after would tell that the agent started afresh."""


def app_of(name: str, root: BaseAgent) -> App:
    config = ResumabilityConfig(is_resumable=True)
    return App(name=name, root_agent=root, resumability_config=config, activities=[faltering, late, touchy])


async def again(user: User, invocation: str) -> str:
    """Stop and resume; returns the status that comes of it."""
    await user.stop(invocation)
    return (await user.resumed(invocation)).status


@pytest.mark.parametrize("how", ["silent", "late failure", "late result"])
async def test_who_has_ended_leaves_nothing_behind(client: Client, app_name: str, how: str) -> None:
    """Neither what failed before, nor what comes of calls for which the agent did not wait."""
    charge = Counted("charge")
    tools = [charge.fn, long_running("ask"), long_running("sign")]
    paying = agent("paying", [calls("ask"), *PAID_ONCE], tools)
    inner = SequentialAgent(name="inner", sub_agents=[paying, agent("last", [text("Bye.")])])
    first: BaseAgent = Silent(name="silent", sub_agents=[agent("first", [DOWN])])
    if how != "silent":
        first = Impatient(name="impatient", fails=how == "late failure")
    root = SequentialAgent(name="root", sub_agents=[first, inner])
    async with serving(client, app_of(app_name, root)) as user:
        await user.create()
        invocation = (await user.run("go")).id
        [ask] = await user.open("ask")
        await user.answered({ask: {}})
        [sign] = await user.open("sign")
        assert await again(user, invocation) == "waiting"
        assert (await user.answered({sign: {}})).status == "finished"
        assert len(charge.keys) == 1


async def test_a_resume_tries_again_what_failed_last_and_nothing_else(client: Client, app_name: str) -> None:
    charge = Counted("charge")
    first = agent("first", [DOWN, text("late")])
    second = agent("second", [calls("charge"), DOWN, text("well")], [charge.fn])
    async with serving(client, app_of(app_name, Second(name="root", sub_agents=[first, second]))) as user:
        await user.create()
        failed = await user.run("go")
        assert (failed.status, failed.failures[0].agent) == ("failed", "second")
        assert (await user.resumed(failed.id)).status == "finished"
        log = await user.log()
        assert log[-2:] == ["second: well", "root: It said overloaded."]
        assert ("first: late" in log, len(charge.keys)) == (False, 1)


@pytest.mark.parametrize("waits", [True, False])
async def test_what_a_resume_tries_again_does_not_hang_on_a_pause(client: Client, app_name: str, waits: bool) -> None:
    """A failure that is journaled since the session waits beside it has not been dealt with by that."""
    charge = Counted("charge")
    first = agent("first", [DOWN, text("late")])
    script = [*([calls("ask")] if waits else []), calls("charge"), DOWN, text("well")]
    second = agent("second", script, [charge.fn, long_running("ask")])
    async with serving(client, app_of(app_name, Gathering(name="root", sub_agents=[first, second]))) as user:
        await user.create()
        failed = await user.run("go")
        if waits:
            [ask] = await user.open("ask")
            failed = await user.answered({ask: {}})
        assert (failed.status, failed.failures[0].step) == ("failed", "late")
        # The function fails again; its neighbour has been tried again, too, and what they stand in for has not.
        failed = await user.resumed(failed.id)
        assert (failed.status, failed.failures[0].step) == ("failed", "late")
        log = await user.log()
        assert (log[-1], log.count("root: No first."), len(charge.keys)) == ("second: well", 1, 1)
        assert "first: late" not in log


async def test_an_error_of_the_agents_own_has_all_tried_again(client: Client, app_name: str) -> None:
    first = agent("first", [DOWN, text("at last")])
    async with serving(client, app_of(app_name, OwnFailure(name="root", sub_agents=[first]))) as user:
        await user.create()
        failed = await user.run("go")
        assert (failed.status, failed.failures[0].step) == ("failed", "work")
        assert (await user.resumed(failed.id)).status == "finished"
        assert (await user.log())[-2:] == ["first: at last", "root: Done."]


@pytest.mark.parametrize("function", [True, False])
async def test_attempts_that_are_tried_again_are_told_apart(client: Client, app_name: str, function: bool) -> None:
    custom_agents.attempts.clear()
    charge = Counted("charge")
    script = [DOWN, calls("noop"), DOWN, *PAID_ONCE]
    paying = agent("paying", script, [charge.fn, Counted("noop").fn, long_running("sign")])
    async with serving(client, app_of(app_name, Retry(name="root", sub_agents=[paying], function=function))) as user:
        await user.create()
        await _pays_once_over_resumes(user, charge)


async def test_attempts_of_a_parallel_agent_are_told_apart(client: Client, app_name: str) -> None:
    charge = Counted("charge")
    paying = agent("paying", [DOWN, DOWN, *PAID_ONCE], [charge.fn, long_running("sign")])
    line = SequentialAgent(name="line", sub_agents=[paying, agent("last", [text("Bye.")])])
    beside = agent("beside", [text(f"{number}") for number in range(6)])
    fan = ParallelAgent(name="fan", sub_agents=[line, beside])
    async with serving(client, app_of(app_name, Retry(name="root", sub_agents=[fan]))) as user:
        await user.create()
        await _pays_once_over_resumes(user, charge)


async def test_attempts_that_stand_at_different_agents_are_told_apart(client: Client, app_name: str) -> None:
    """The first goes on with an agent at which the second one stands already."""
    charge = Counted("charge")
    first = agent("first", [DOWN, text("second attempt"), text("first attempt")])
    tools = [charge.fn, Counted("noop").fn, long_running("sign")]
    paying = agent("paying", [calls("noop"), DOWN, *PAID_ONCE], tools)
    line = SequentialAgent(name="line", sub_agents=[first, paying])
    async with serving(client, app_of(app_name, Retry(name="root", sub_agents=[line]))) as user:
        await user.create()
        await _pays_once_over_resumes(user, charge)


async def test_a_second_attempt_is_taken_over(client: Client, app_name: str) -> None:
    """Where the journal is rebuilt from history, what came last has no path."""
    charge = Counted("charge")
    paying = agent("paying", [DOWN, calls("charge", "sign"), *PAID_ONCE], [charge.fn, long_running("sign")])
    async with serving(client, app_of(app_name, Retry(name="root", sub_agents=[paying]))) as user:
        await user.create()
        invocation = (await user.run("go")).id
        [sign] = await user.open("sign")
        await user.runner.resume(**user.who, invocation_id=invocation, fresh=True)
        await eventually(lambda: _has_status(user, invocation, "waiting"))
        assert (await user.open("sign"), len(charge.keys)) == ([sign], 1)


async def _has_status(user: User, invocation: str, status: str) -> bool:
    return await user.status(invocation) == status


async def test_agents_may_have_any_name_that_python_has(client: Client, app_name: str) -> None:
    silent = Silent(name="root", sub_agents=[agent("col·lecció", [text("hola")])])
    async with serving(client, app_of(app_name, silent)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert (await user.log())[-1] == "col·lecció: hola"


@pytest.mark.parametrize("how", ["stopped", "continued as new"])
async def test_an_agent_that_is_gathered_twice_is_two(client: Client, app_name: str, how: str) -> None:
    paying = agent("paying", [calls("sign"), calls("sign"), text("Paid."), text("Paid.")], [long_running("sign")])
    async with serving(client, app_of(app_name, Twice(name="root", sub_agents=[paying]))) as user:
        if how == "continued as new":
            user.runner = Runner(app_name, client, trial=Trial(steps_per_run=1))
        await user.create()
        waiting = await user.run("go")
        invocation, signs = waiting.id, [call.id for call in waiting.pending]
        if how == "stopped":
            assert await again(user, invocation) == "waiting"
        assert (await user.answered({signs[1]: {}})).status == "waiting"
        if how == "stopped":
            assert await again(user, invocation) == "waiting"
        assert (await user.answered({signs[0]: {}})).status == "finished"
        log = await user.log()
        assert (len(signs), log.count("paying: Paid."), log[-1]) == (2, 2, "root: Done.")


async def _pays_once_over_resumes(user: User, charge: Counted) -> None:
    failed = await user.run("go")
    assert failed.status == "failed"
    assert (await user.resumed(failed.id)).status == "waiting"
    assert await again(user, failed.id) == "waiting"
    [sign] = await user.open("sign")
    assert (await user.answered({sign: {}})).status == "finished"
    assert ((await user.log())[-1], len(charge.keys)) == ("root: Done.", 1)


async def test_what_the_agent_made_good_itself_is_not_tried_again(client: Client, app_name: str) -> None:
    charge = Counted("charge")
    paying = agent("paying", [DOWN, calls("charge"), text("paid"), calls("charge"), text("paid again")], [charge.fn])
    async with serving(client, app_of(app_name, Retry(name="root", sub_agents=[paying]))) as user:
        await user.create(broken=True)
        failed = await user.run("go")
        assert (failed.status, failed.failures[0].cause[:18]) == ("failed", "ValueError: broken")
        await user.runner.change_state(**user.who, state_delta={"broken": False})
        assert (await user.resumed(failed.id)).status == "finished"
        log = await user.log()
        assert (len(charge.keys), log[-1], log.count("root: Attempt 0 failed.")) == (1, "root: Done.", 1)


@pytest.mark.parametrize("how", ["stopped", "continued as new"])
async def test_gathered_sub_agents_may_hand_over(client: Client, app_name: str, how: str) -> None:
    """From one to its own sub-agent, and to that one's peer, which no path in the plan tells."""
    charge = Counted("charge")
    paying = agent("paying", PAID_ONCE, [charge.fn, long_running("sign")])
    middle = agent("middle", [calls("transfer_to_agent", agent_name="paying")])
    first = agent("first", [calls("transfer_to_agent", agent_name="middle")], sub_agents=[middle, paying])
    beside = agent(
        "beside", [*[calls("noop")] * 5, calls("ask"), text("Heard.")], [Counted("noop").fn, long_running("ask")]
    )
    async with serving(client, app_of(app_name, AskBoth(name="both", sub_agents=[first, beside]))) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=2) if how == "continued as new" else None)
        await user.create()
        invocation = (await user.run("go")).id
        sign, ask = await user.open("sign", "ask")
        if how == "stopped":
            assert await again(user, invocation) == "waiting"
        await user.answered({ask: {}})
        assert (await user.answered({sign: {}})).status == "finished"
        log = await user.log()
        assert (len(charge.keys), log.count("paying: Paid."), log[-1]) == (1, 1, "both: Both are done.")


async def test_a_failure_that_is_met_again_is_as_it_was(client: Client, app_name: str) -> None:
    async def slow() -> None:
        await asyncio.sleep(30)

    first = agent(
        "first",
        [calls("slow")],
        [FunctionTool(slow, timeout=timedelta(seconds=1), retry=RetryPolicy(maximum_attempts=1))],
    )
    second = agent("second", [calls("ask"), text("Heard.")], [long_running("ask")])
    async with serving(client, app_of(app_name, Second(name="root", sub_agents=[first, second]))) as user:
        await user.create()
        invocation = (await user.run("go")).id
        assert await again(user, invocation) == "waiting"
        [ask] = await user.open("ask")
        assert (await user.answered({ask: {}})).status == "finished"
        assert (await user.log())[-1] == "root: It said nothing."


async def test_what_a_stop_made_fail_is_no_failure(client: Client, app_name: str) -> None:
    async with serving(client, app_of(app_name, Touchy(name="root"))) as user:
        await user.create()
        invocation = await user.send("go")
        await eventually(lambda: _is_at_work(user))
        await user.stop(invocation)
        assert not any(entry.kind == "failure_caught" for entry in (await user.journal()).entries)


async def _is_at_work(user: User) -> bool:
    work = (await user.workflow.describe()).raw_description.pending_activities
    return any(activity.activity_type.name == "touchy" and activity.HasField("last_started_time") for activity in work)


@pytest.mark.parametrize("levels", [140, 240])
async def test_what_could_not_be_read_again_is_not_logged(client: Client, app_name: str, levels: int) -> None:
    asking = agent("asking", [calls("ask"), text("Heard.")], [long_running("ask")])
    async with serving(client, app_of(app_name, Deep(name="root", levels=levels, sub_agents=[asking]))) as user:
        await user.create()
        view = await user.run("go")
        if levels > 148:
            assert view.status == "failed"
            assert "148 lists and objects" in view.failures[0].cause
            return
        [ask] = await user.open("ask")
        assert (await user.answered({ask: {}})).status == "finished"
