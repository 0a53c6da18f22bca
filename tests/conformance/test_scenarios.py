"""Every scenario, in both modes, through the real client, worker and server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import product
from typing import get_args

import pytest
from temporalio.client import Client

from tests.conformance.logs import all_scenarios
from tests.conformance.runner import Mode, run_scenario

pytestmark = pytest.mark.server

_AT_ONCE = 6
CASES = {f"{scenario.name}-{mode}": (scenario, mode) for scenario, mode in product(all_scenarios(), get_args(Mode))}

Verdicts = dict[str, asyncio.Task[list[str]]]


@pytest.fixture(scope="module")
async def verdicts(request: pytest.FixtureRequest, client: Client) -> AsyncGenerator[Verdicts]:
    """The selected scenarios, under way, some at a time: most of a scenario is waiting."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def judge(case: str) -> list[str]:
        scenario, mode = CASES[case]
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
