"""Every scenario, in both modes, and by several steps an activity, through the real client, worker and server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import product
from typing import get_args

import pytest
from temporalio.client import Client

from tests.conformance.build import steps_here
from tests.conformance.logs import all_scenarios
from tests.conformance.runner import Mode, run_scenario

pytestmark = pytest.mark.server

_AT_ONCE = 6
_WAYS: dict[str, tuple[Mode, int]] = {**{mode: (mode, 1) for mode in get_args(Mode)}, "live-20": ("live", 20)}
"""How a scenario is run, and how many steps an activity may take."""
CASES = {f"{scenario.name}-{way}": (scenario, way) for scenario, way in product(all_scenarios(), _WAYS)}

Verdicts = dict[str, asyncio.Task[list[str]]]


@pytest.fixture(scope="module")
async def verdicts(request: pytest.FixtureRequest, client: Client) -> AsyncGenerator[Verdicts]:
    """The selected scenarios, under way, some at a time: most of a scenario is waiting."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def judge(case: str) -> list[str]:
        scenario, way = CASES[case]
        mode, steps = _WAYS[way]
        steps_here.set(steps)
        async with slots:
            return await run_scenario(scenario, client, mode=mode)

    selected = [case for case in CASES if any(item.name == f"test_scenario[{case}]" for item in request.session.items)]
    tasks = {case: asyncio.create_task(judge(case)) for case in selected}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("case", CASES)
async def test_scenario(case: str, verdicts: Verdicts) -> None:
    lines = await verdicts[case]
    assert not lines, "\n".join(lines)
