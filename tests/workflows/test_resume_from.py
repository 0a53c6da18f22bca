"""Event logs from elsewhere, driven on: ADK's own logs, cut at each turn, and what may and may not run of them."""

from __future__ import annotations

import asyncio
import warnings
from itertools import count
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client
from temporalio.worker import Worker

from perdure.agents import LoopAgent, SequentialAgent
from perdure.client import Runner
from perdure.errors import DefinitionWarning, InvalidTrajectory, InvocationFailed, SessionExists, SessionNotFound
from perdure.events import USER, Event, EventActions, user_content
from perdure.worker import create_workers
from tests.conformance.build import ScenarioApp
from tests.conformance.logs import all_scenarios, expected_turns
from tests.conformance.normal_form import FAILED, diff, normalize_log
from tests.conformance.scenario import AgentSpec, LlmSpec, Scenario
from tests.workflows.support import (
    Counted,
    GatedModel,
    User,
    agent,
    calls,
    long_running,
    make_app,
    responses,
    serving,
    short,
    text,
)

pytestmark = [
    pytest.mark.server,
    # A worker that ends while a custom agent waits leaves async generators to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_numbers = count(1)


def _cuts(scenario: Scenario) -> list[int]:
    """Return the turns (from 0) that a bare log can be driven through: those that append something."""
    cuts: list[int] = []
    log: list[dict[str, Any]] = []
    for number, items in enumerate(scenario.expect.turns):
        events = [item for item in items if item != FAILED]
        # A resume has no event of its own: what drives it is the event at which the log breaks off.
        resumes = scenario.turns[number].resume is not None
        drives = bool(events) and (not resumes or (bool(log) and log[-1]["invocation"] == events[0]["invocation"]))
        # Which of a script's failing calls were made is not in a log, so none must be left to come.
        over = FAILED not in items or not any(FAILED in turn for turn in scenario.expect.turns[:number])
        if drives and over:
            cuts.append(number)
        log += events
    return cuts


CASES = {scenario.name: scenario for scenario in all_scenarios()}


def _as_if_failures_were_over(scenario: Scenario, number: int) -> Scenario:
    """Return a scenario without the failing model calls of the turns before a cut: a log does not hold them."""
    failed = sum(FAILED in turn for turn in scenario.expect.turns[:number])

    def mend(agent: AgentSpec) -> AgentSpec:
        update: dict[str, Any] = {"sub_agents": tuple(mend(child) for child in agent.sub_agents)}
        if failed and isinstance(agent, LlmSpec):
            update["script"] = [step for step in agent.script if "error" not in step]
        return agent.model_copy(update=update)

    tools = {
        name: tool.model_copy(update={"fail_first": 0 if failed else tool.fail_first})
        for name, tool in scenario.tools.items()
    }
    app = scenario.app.model_copy(update={"root": mend(scenario.app.root)})
    return scenario.model_copy(update={"app": app, "tools": tools})


@pytest.mark.parametrize("case", CASES)
async def test_a_log_of_adk_goes_on_from_each_turn_as_if_it_had_never_stopped(case: str, client: Client) -> None:
    """The logs are ADK's own (see `source` in the scenarios), and no worker has seen them before."""
    scenario = CASES[case]
    await asyncio.gather(*(_goes_on(scenario, number, client) for number in _cuts(scenario)))


async def _goes_on(scenario: Scenario, number: int, client: Client) -> None:
    built = ScenarioApp(_as_if_failures_were_over(scenario, number), f"resume_from_{next(_numbers)}")
    turns = list(expected_turns(scenario))
    log = [event for turn in turns[:number] for event in turn]
    if scenario.turns[number].resume is None:
        log.append(turns[number][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefinitionWarning)
        (worker,) = create_workers(client, [built.app])
    runner = Runner(built.app.name, client)
    async with worker, asyncio.timeout(30):
        resumed = await runner.resume_from(log, user_id="u", state=scenario.state, allow_pending_calls=True)
        who: dict[str, Any] = {"user_id": "u", "session_id": resumed.session_id}
        failed = False
        try:
            async for _ in runner.follow(**who, invocation_id=resumed.invocation.id, since=resumed.offset):
                pass
        except InvocationFailed as error:
            failed = True
            assert error.step != "import", error
        events = [event async for event in runner.events(**who)]
    actual: list[list[Event]] = []
    for turn in turns[:number]:
        actual.append(events[: len(turn)])
        events = events[len(turn) :]
    authors = scenario.authors if scenario.compare == "per_author" else None
    normal = normalize_log([*actual, events], authors)
    expected = [[item for item in turn if item != FAILED] for turn in scenario.expect.turns[: number + 1]]
    assert [line for pair in zip(expected, normal, strict=True) for line in diff(*pair)] == []
    assert failed == (FAILED in scenario.expect.turns[number])
