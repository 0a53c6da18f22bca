"""The scenarios that ADK recorded, through google.adk's own agents, by several steps an activity: the same logs.

Where google.adk differs from the scenarios (tests/adk/test_conformance.py), it differs as by one step an activity.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from tests.adk.test_conformance import DIFFERENT, SCENARIOS, differences
from tests.conformance.adk_build import AdkScenarioApp
from tests.conformance.build import steps_here
from tests.conformance.runner import TOLD_WRONG, play
from tests.conformance.scenario import Scenario
from tests.workflows.support import User
from tests.workflows.test_stretches import activities

pytestmark = pytest.mark.server

_AT_ONCE = 6
_STEPS = 20

Verdicts = dict[tuple[str, int], asyncio.Task[list[str]]]
"""How a scenario differs, by so many steps an activity."""


@pytest.fixture(scope="module")
async def verdicts(request: pytest.FixtureRequest, client: Client) -> AsyncGenerator[Verdicts]:
    """The selected scenarios, under way, some at a time: most of a scenario is waiting."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def judge(name: str, steps: int) -> list[str]:
        steps_here.set(steps)
        async with slots:
            return await differences(SCENARIOS[name], client)

    selected = {item.name for item in request.session.items}
    names = [name for name in SCENARIOS if f"test_by_several_steps[{name}]" in selected]
    ways = [(name, steps) for name in names for steps in ((1, _STEPS) if name in DIFFERENT else (_STEPS,))]
    tasks = {(name, steps): asyncio.create_task(judge(name, steps)) for name, steps in ways}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_by_several_steps(name: str, verdicts: Verdicts) -> None:
    lines = await verdicts[name, _STEPS]
    assert not any(line.startswith(TOLD_WRONG) for line in lines), "\n".join(lines)
    if name in DIFFERENT:
        assert lines == await verdicts[name, 1]
    else:
        assert not lines, "\n".join(lines)


@pytest.mark.parametrize(("steps", "kinds"), [(1, ["model", "forecast", "model"]), (_STEPS, ["model"])])
async def test_one_activity_takes_them(client: Client, steps: int, kinds: list[str]) -> None:
    """Else the scenarios would show nothing."""
    built: list[AdkScenarioApp] = []

    def build(scenario: Scenario, app_name: str) -> AdkScenarioApp:
        built.append(AdkScenarioApp(scenario, app_name))
        return built[0]

    before = steps_here.set(steps)
    await play(SCENARIOS["llm_one_tool"], client, build=build)
    steps_here.reset(before)
    assert await activities(User(client, built[0].app.name)) == kinds
