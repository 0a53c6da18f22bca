"""Custom agents: their code runs in steps, and what is recorded is never done twice."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from perdure.agents import App, FunctionTool, ParallelAgent, ResumabilityConfig
from perdure.agents.custom import BaseAgent
from perdure.client import Runner
from perdure.journal.entries import ActivityKept
from perdure.messages.session import Trial
from tests.workflows import custom_agents
from tests.workflows.custom_agents import (
    AskBoth,
    Broken,
    Broker,
    Catcher,
    CatchThenAsk,
    Failing,
    FallBack,
    Forger,
    Gatherer,
    Sleeper,
    Twice,
    fail,
    faltering,
    quote,
    seconds_from_now,
    slow_quote,
    travel,
)
from tests.workflows.support import User, agent, calls, check_log, eventually, long_running, serving, text

pytestmark = pytest.mark.server

ASK = [calls("ask"), text("Take it.")]


def app_of(name: str, root: BaseAgent) -> App:
    config = ResumabilityConfig(is_resumable=True)
    return App(
        name=name,
        root_agent=root,
        resumability_config=config,
        activities=[quote, slow_quote, fail, faltering, travel, seconds_from_now],
    )


@pytest.mark.parametrize(("dropped", "debug"), [("kept", False), ("stopped", False), ("stopped", True)])
async def test_what_a_custom_agent_did_is_not_done_twice(
    client: Client, app_name: str, dropped: str, debug: bool
) -> None:
    """A re-entered agent gets its activities' results again, and logs nothing again."""
    custom_agents.quotes.clear()
    decider = agent("decider", ASK, tools=[long_running("ask")])
    async with serving(client, app_of(app_name, Broker(name="broker", sub_agents=[decider])), debug=debug) as user:
        await user.create()
        invocation = await user.run("quote me")
        assert invocation.status == "waiting"
        if dropped == "stopped":
            await user.stop(invocation.id)
            assert (await user.resumed(invocation.id)).status == "waiting"
        pending = await user.pending()
        done = await user.answered({pending["ask"]: {"ok": True}})
        assert done.status == "finished"
        events = await user.events()
        check_log(events)
        said = [event.text for event in events if event.author == "broker" and event.text]
        assert said == ["Looking around.", "Oslo for 8", "Heard ['Take it.'], state True."]
        assert custom_agents.quotes == ["Oslo"]


async def test_a_checkpoint_lets_a_sub_agent_run_again(client: Client, app_name: str) -> None:
    """A checkpoint forgets the ends underneath, also for a run that is re-entered behind it."""
    script = [text("first"), calls("ask"), text("second")]
    worker = agent("worker", script, tools=[long_running("ask")])
    async with serving(client, app_of(app_name, Twice(name="twice", sub_agents=[worker]))) as user:
        await user.create()
        invocation = await user.run("go")
        await user.stop(invocation.id)
        await user.resumed(invocation.id)
        pending = await user.pending()
        assert (await user.answered({pending["ask"]: {}})).status == "finished"
        events = await user.events()
        assert [event.text for event in events if event.text] == ["go", "first", "second"]
        assert [event.author for event in events if event.actions.end_of_agent] == ["worker", "worker", "twice"]


@pytest.mark.parametrize(
    ("kind", "step", "cause"),
    [
        (Failing, "fail", "no quotes today"),
        (Broken, "_run_async_impl", "ValueError: broken by design (custom_agents.py:"),
        (Forger, "_run_async_impl", "yield events with author=self.name"),
    ],
)
async def test_what_fails_in_a_custom_agent_is_told(
    client: Client, app_name: str, kind: type[BaseAgent], step: str, cause: str
) -> None:
    async with serving(client, app_of(app_name, kind(name="agent"))) as user:
        await user.create()
        failed = await user.run("go")
        [failure] = failed.failures
        assert (failed.status, failure.step) == ("failed", step)
        assert cause in failure.cause
        assert not any(event.text == "pay me" for event in await user.events())


async def test_a_custom_agent_may_deal_with_a_failure(client: Client, app_name: str) -> None:
    child = agent("child", [{"error": "overloaded"}])
    async with serving(client, app_of(app_name, Catcher(name="catcher", sub_agents=[child]))) as user:
        await user.create()
        done = await user.run("go")
        assert done.status == "finished"
        assert (await user.events())[-1].text == "It failed: EffectFailed."


async def test_a_failure_that_was_dealt_with_is_none(client: Client, app_name: str) -> None:
    """An agent that goes on after a failed parallel agent waits like any other."""
    branches: list[BaseAgent] = [agent("bad", [{"error": "overloaded"}, text("never")]), agent("good", [text("fine")])]
    asking = agent("asking", ASK, tools=[long_running("ask")])
    sub_agents: list[BaseAgent] = [ParallelAgent(name="fan", sub_agents=branches), asking]
    root = CatchThenAsk(name="catcher", sub_agents=sub_agents)
    async with serving(client, app_of(app_name, root)) as user:
        await user.create()
        waiting = await user.run("go")
        assert (waiting.status, waiting.failures) == ("waiting", ())
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        assert "bad: never" not in await user.log()


@pytest.mark.parametrize("how", ["stopped", "taken over", "continued as new"])
async def test_gathered_calls_get_their_own_results_again(client: Client, app_name: str, how: str) -> None:
    """Where some have their results already, the next ones are made in another order than the first time."""
    custom_agents.arrivals.clear()
    decider = agent("decider", ASK, tools=[long_running("ask")])
    trial = Trial(steps_per_run=2) if how == "continued as new" else None
    async with serving(client, app_of(app_name, Gatherer(name="gatherer", sub_agents=[decider]))) as user:
        user.runner = Runner(app_name, client, trial=trial)
        await user.create()
        invocation = await user.run("go")
        assert invocation.status == "waiting"
        if how == "stopped":
            await user.stop(invocation.id)
            assert (await user.resumed(invocation.id)).status == "waiting"
        elif how == "taken over":
            await user.runner.resume(**user.who, invocation_id=invocation.id, fresh=True)
        [call_id] = await user.open("ask")
        assert (await user.answered({call_id: {}})).status == "finished"
        log = await user.log()
        assert [line for line in log if line.startswith("gatherer: ")] == [
            f"gatherer: {when}: ['Oslo-Rome', 'Bergen-Nice']" for when in ("Before", "After")
        ]
        assert sorted(custom_agents.arrivals) == ["Bergen", "Nice", "Oslo", "Rome"]


@pytest.mark.parametrize("how", ["stopped", "continued as new"])
async def test_a_sleep_until_a_kept_time_is_not_slept_twice(client: Client, app_name: str, how: str) -> None:
    trial = Trial(steps_per_run=2) if how == "continued as new" else None
    async with serving(client, app_of(app_name, Sleeper(name="sleeper"))) as user:
        user.runner = Runner(app_name, client, trial=trial)
        await user.create()
        invocation = await user.send("go")
        first = await user.workflow.describe()
        if how == "stopped":
            await eventually(lambda: _has_kept(user))
            await user.stop(invocation)
            await user.resume(invocation)
        assert (await user.settled(invocation)).status == "finished"
        [awake] = [event for event in await user.events() if event.text == "Awake."]
        assert 0 <= awake.timestamp - awake.actions.state_delta["due"] < 2
        assert how == "stopped" or (await user.workflow.describe()).run_id != first.run_id


class _Charge:
    """A tool that must not run twice; it takes effect, and then raises or returns."""

    def __init__(self, *, raises: bool) -> None:
        self.runs = 0
        self._raises = raises

    def tool(self) -> FunctionTool:
        def charge() -> dict[str, bool]:
            self.runs += 1
            if self._raises:
                raise RuntimeError("the line is dead")
            return {"charged": True}

        return FunctionTool(charge, at_most_once=True)


async def _enter_again(user: User, invocation: str, how: str) -> None:
    if how == "stopped":
        await user.stop(invocation)
        assert (await user.resumed(invocation)).status == "waiting"
    elif how == "taken over":
        await user.runner.resume(**user.who, invocation_id=invocation, fresh=True)
    assert (await user.settled(invocation)).status == "waiting"


@pytest.mark.parametrize(
    ("what", "how"),
    [("model", "continued as new"), ("charge", "stopped"), ("charge", "taken over")],
    ids=lambda value: value,
)
async def test_a_failure_that_was_dealt_with_is_met_again(client: Client, app_name: str, how: str, what: str) -> None:
    """An agent that fell back on something else stays with that, and nothing that failed is tried again."""
    custom_agents.attempts.clear()
    charge = _Charge(raises=True)
    script = [{"error": "overloaded"}] if what == "model" else [calls("charge")]
    first = agent("first", [*script, text("late")], tools=[charge.tool()])
    second = agent("second", ASK, tools=[long_running("ask")])
    async with serving(client, app_of(app_name, FallBack(name="root", sub_agents=[first, second]))) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=1) if how == "continued as new" else None)
        await user.create()
        invocation = (await user.run("go")).id
        await _enter_again(user, invocation, how)
        [call_id] = await user.open("ask")
        assert (await user.answered({call_id: {}})).status == "finished"
        log = await user.log()
        assert [line for line in log if line.startswith("root: ")] == [
            "root: No function: not yet.",
            f"root: No first: {what} failed.",
            "root: Done.",
        ]
        assert "first: late" not in log
        assert (len(custom_agents.attempts), charge.runs) == (1, int(what == "charge"))


async def test_what_an_agent_fails_by_in_the_end_is_tried_again(client: Client, app_name: str) -> None:
    """Else no resume could mend what has failed."""
    custom_agents.attempts.clear()
    first = agent("first", [{"error": "overloaded"}, text("at last")])
    second = agent("second", ASK, tools=[long_running("ask")])
    root = FallBack(name="root", sub_agents=[first, second], ends_well=False)
    async with serving(client, app_of(app_name, root)) as user:
        await user.create()
        waiting = await user.run("go")
        await _enter_again(user, waiting.id, "stopped")
        [call_id] = await user.open("ask")
        failed = await user.answered({call_id: {}})
        assert (failed.status, failed.failures[0].agent) == ("failed", "first")
        assert (await user.resumed(waiting.id)).status == "finished"
        assert (await user.log())[-3:] == ["root: well", "first: at last", "root: Done."]


@pytest.mark.parametrize("how", ["stopped", "taken over", "continued as new"])
async def test_gathered_sub_agents_go_on_where_they_were(client: Client, app_name: str, how: str) -> None:
    charge = _Charge(raises=False)
    script = [calls("charge"), calls("charge"), calls("sign"), text("Paid.")]
    paying = agent("paying", script, tools=[charge.tool(), long_running("sign")])
    asking = agent("asking", [calls("ask"), text("Heard.")], tools=[long_running("ask")])
    async with serving(client, app_of(app_name, AskBoth(name="both", sub_agents=[paying, asking]))) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=2) if how == "continued as new" else None)
        await user.create()
        invocation = (await user.run("go")).id
        await _enter_again(user, invocation, how)
        signing, asked = await user.open("sign", "ask")
        await user.answered({asked: {}})
        assert (await user.answered({signing: {}})).status == "finished"
        log = await user.log()
        assert (charge.runs, log.count("paying: Paid."), log.count("asking: Heard.")) == (2, 1, 1)
        assert log[-1] == "both: Both are done."


async def _has_kept(user: User) -> bool:
    return any(isinstance(entry, ActivityKept) for entry in (await user.journal()).entries)
