"""The scenarios that ADK recorded, through google.adk's own agents, as the conformance tests run Perdure's.

google.adk's code makes the requests and decides what an answer means, so its version counts. Where it differs from the
scenarios, which follow 1.39.1 and the rules of SEMANTICS.md, stands here by name, and is looked at: what no longer
differs leaves the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import google.adk.version
import pytest
from temporalio.client import Client

from tests.conformance.adk_build import AdkScenarioApp
from tests.conformance.build import ScenarioError
from tests.conformance.logs import all_scenarios
from tests.conformance.runner import TOLD_WRONG, Outcome, compare, play
from tests.conformance.scenario import Scenario

pytestmark = pytest.mark.server

_AT_ONCE = 6
_VERSION = int(google.adk.version.__version__.split(".")[0])
SCENARIOS = {scenario.name: scenario for scenario in all_scenarios()}

_REQUESTS = "the request is google.adk's: "
_BY_ALL = {
    "an answer with an error code, or an empty one, ends the agent (R14)": (
        "empty_answer",
        "no_answer_asked_again",
        "no_answer_in_parallel",
        "no_answer_in_sequence",
        "no_answer_in_sub_agent",
        "no_answer_not_resumable",
        "no_answer_refused",
    ),
    _REQUESTS + "responses stand in the order of the answers (R13)": (
        "answers_in_history",
        "answers_of_one_name_in_another_order",
        "lro_two_null_answered_one_by_one",
    ),
    _REQUESTS + "calls that wait without a first value are shown (R12)": ("orphan_waiting_without_a_first_value",),
    _REQUESTS + "it is empty behind an answer if include_contents is none": ("include_contents_none_long_running",),
}
_BY_1 = {
    _REQUESTS + "calls whose tools failed are shown (R12)": (
        "failure_not_resumable",
        "orphan_failed_beside_text",
        "resume_older_invocation",
    ),
}
_BY_2 = {
    "the model is asked once more behind the first value of a long-running tool": (
        "answer_after_the_end",
        "answer_reruns_failed_branch",
        "custom_long_running_underneath",
        "custom_same_step_twice",
        "escalate_while_sibling_waits",
        "failure_beside_long_running",
        "long_running_nested_parallel",
        "long_running_transfer_in_parallel",
        "long_running_transfers_back_and_on",
        "lro_loop_second_iteration",
        "lro_parallel_both_branches",
        "lro_parallel_one_branch",
        "lro_parallel_then_summary",
        "lro_pending",
        "lro_sequential_step_one",
        "lro_skip_summarization",
        "lro_sub_agent",
        "lro_sub_agent_transfers_back",
        "lro_sub_agent_two_in_a_row",
        "lro_twice_in_a_row",
        "lro_two_answered_one_by_one",
        "lro_two_answered_together",
        "lro_with_normal_tool",
        "message_while_pending",
        "resume_sequence_while_pending",
        "resume_while_pending",
        "two_invocations_pending",
    ),
    "an answer goes on with its invocation in an app that is not resumable": (
        "confirm_not_resumable",
        "lro_not_resumable",
        "lro_null_not_resumable",
        "lro_null_not_resumable_in_sequence",
    ),
    "what calls responded is logged where another one of their answer failed": (
        "tool_failure_in_parallel_calls",
        "orphan_failed_beside_text",
    ),
    _REQUESTS + "an answer to another agent's call is told": ("lro_sequential_step_two",),
    _REQUESTS + "transfers are told to agents whose include_contents is none": ("include_contents_none_transfer",),
}
_TABLE = _BY_ALL | (_BY_1 if _VERSION == 1 else _BY_2)
DIFFERENT = {name: reason for reason, names in _TABLE.items() for name in names}

Verdicts = dict[str, asyncio.Task[list[str]]]


async def differences(scenario: Scenario, client: Client) -> list[str]:
    try:
        outcome = await play(scenario, client, build=AdkScenarioApp)
    except ScenarioError as error:
        return [str(error)]
    _leave_errors_out(outcome)
    return compare(scenario, outcome)


def _leave_errors_out(outcome: Outcome) -> None:
    """google.adk 2 logs an event of what failed a turn, 1 does not."""
    if _VERSION > 1:
        for at, failed in enumerate(outcome.failed):
            if failed:
                outcome.turns[at] = [event for event in outcome.turns[at] if event.content or not event.error_code]


@pytest.fixture(scope="module")
async def verdicts(request: pytest.FixtureRequest, client: Client) -> AsyncGenerator[Verdicts]:
    """The selected scenarios, under way, some at a time: most of a scenario is waiting."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def judge(name: str) -> list[str]:
        async with slots:
            return await differences(SCENARIOS[name], client)

    selected = {item.name for item in request.session.items}
    tasks = {name: asyncio.create_task(judge(name)) for name in SCENARIOS if f"test_scenario[{name}]" in selected}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_scenario(name: str, verdicts: Verdicts) -> None:
    lines = await verdicts[name]
    assert not any(line.startswith(TOLD_WRONG) for line in lines), "\n".join(lines)
    if name in DIFFERENT:
        assert lines, f"{name} no longer differs: {DIFFERENT[name]}"
    else:
        assert not lines, "\n".join(lines)


def test_the_table_names_scenarios() -> None:
    assert set(DIFFERENT) <= set(SCENARIOS)
