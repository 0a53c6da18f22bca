"""A run hands over after so many steps, whatever failed in it before, and whoever dealt with that."""

from __future__ import annotations

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from perdure.agents import LoopAgent, ParallelAgent, SequentialAgent
from perdure.agents.custom import BaseAgent
from perdure.client import Runner
from perdure.messages.session import Trial
from tests.workflows.fallback_agents import Second
from tests.workflows.support import Counted, User, agent, calls, make_app, serving, text

pytestmark = pytest.mark.server

STEPS = 3
ROUNDS = 6
DOWN = {"error": "overloaded"}
_STEPS = (EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, EventType.EVENT_TYPE_MARKER_RECORDED)


def steps(history: WorkflowHistory) -> int:
    """Return how many steps a run took; reading the plan is one."""
    markers = (event.marker_recorded_event_attributes.marker_name for event in history.events)
    local = sum(name == "core_local_activity" for name in markers)
    return local + sum(event.event_type == _STEPS[0] for event in history.events)


def failing(shape: str) -> BaseAgent:
    """Return agents of which one fails, beside others at work."""
    bad, good = agent("bad", [DOWN]), agent("good", [calls("work"), text("Good.")], [Counted("work").fn])
    match shape:
        case "alone":
            return bad
        case "in parallel agents within each other":
            fan = ParallelAgent(name="fan", sub_agents=[bad, good])
            return ParallelAgent(name="outer", sub_agents=[fan, agent("other", [text("Other.")])])
        case "in a sequence of parallel agents":
            return SequentialAgent(name="row", sub_agents=[ParallelAgent(name="fan", sub_agents=[good]), bad])
        case "in a loop":
            return LoopAgent(name="loop", max_iterations=2, sub_agents=[agent("first", [text("One.")]), bad])
        case "in one of two tools":
            tools = [Counted("charge", fail=9).once, Counted("look").once]
            return agent("caller", [calls("charge", "look")], tools)
        case "in two tools of a branch":
            tools = [Counted("charge", fail=9).once, Counted("look", fail=9).once]
            caller = agent("caller", [calls("charge", "look")], tools)
            return ParallelAgent(name="fan", sub_agents=[caller, good])
        case _:
            return ParallelAgent(name="fan", sub_agents=[bad, good])


@pytest.mark.parametrize(
    "shape",
    [
        "alone",
        "in a parallel agent",
        "in parallel agents within each other",
        "in a sequence of parallel agents",
        "in a loop",
        "in one of two tools",
        "in two tools of a branch",
    ],
)
async def test_a_failure_that_was_dealt_with_holds_up_no_run(client: Client, app_name: str, shape: str) -> None:
    """What runs beside a failure is brought to its end; behind it each run is as long as any other."""
    work = Counted("work")
    busy = agent("busy", [*[calls("work")] * ROUNDS, text("Done.")], [work.fn])
    root = Second(name="catcher", sub_agents=[failing(shape), busy])
    async with serving(client, make_app(app_name, root)) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=STEPS))
        await user.create()
        assert (await user.run("go")).status == "finished"
        taken = await _steps(user)
        # What was begun beside the failure goes on: a few steps.
        assert max(taken) <= 2 * STEPS + 2, taken
        # The custom agent's code runs once more as each run begins, and that is not counted.
        assert max(taken[-2 * ROUNDS // STEPS :]) <= STEPS + 1, taken
        assert len(work.keys) == len(set(work.keys)) == ROUNDS


@pytest.mark.parametrize("shape", ["in a parallel agent", "in two tools of a branch"])
async def test_a_failed_invocation_holds_up_no_run_of_the_next(client: Client, app_name: str, shape: str) -> None:
    work = Counted("work")
    busy = agent("busy", [*[calls("work")] * ROUNDS, text("Done.")], [work.fn])
    row = SequentialAgent(name="row", sub_agents=[busy, failing(shape)])
    async with serving(client, make_app(app_name, row)) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=STEPS))
        await user.create()
        assert (await user.run("go")).status == "failed"
        assert (await user.run("again")).status == "failed"
        taken = await _steps(user)
        assert sum(count > STEPS for count in taken) <= 2, taken


async def _steps(user: User) -> list[int]:
    return [steps(history) for history in await user.histories()]
