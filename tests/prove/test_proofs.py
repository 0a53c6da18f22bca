"""Scenarios cut at every point, on a real server, with workers that are really killed. `make prove` does all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from perdure.prove.modes import FEWER_STEPS, Mode
from perdure.prove.proof import ALL_MODES, ProofConfig, Prover, proof_server, prove
from tests.conformance.logs import all_scenarios
from tests.conformance.proofs import prove_scenario

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(300)]

SCENARIOS = {scenario.name: scenario for scenario in all_scenarios()}

SELECTED: list[tuple[Mode, str]] = [
    # Results of tools whose siblings have not run, branches beside a failed one, custom agents, confirmations.
    ("continue-as-new", "llm_parallel_calls"),
    ("continue-as-new", "parallel_failure_one_branch"),
    ("continue-as-new", "custom_agent_failure_step_two"),
    ("continue-as-new", "confirm_two_answered_together"),
    ("replay", "lro_parallel_then_summary"),
    ("replay", "custom_same_step_twice"),
    ("prefix", "tool_failure"),
    # A failure lies before a cut of the bare log.
    ("prefix", "failure_in_sub_agent"),
    ("prefix", "lro_parallel_both_branches"),
    ("prefix", "transfer_back_to_parent"),
    ("kill", "lro_sub_agent"),
    # A model is asked again, or its answer fails the turn.
    ("continue-as-new", "empty_answer"),
    ("prefix", "no_answer_in_sub_agent"),
    ("kill", "no_answer_asked_again"),
    ("prefix", "orphan_waiting_without_a_first_value"),
]

ORDER: dict[str, Any] = {
    "name": "order",
    "script": {
        "clerk": [
            {"calls": [{"name": "stock", "args": {"item": "tea"}}, {"name": "approve", "args": {"item": "tea"}}]},
            {"text": "Ordered."},
        ]
    },
    "turns": [{"message": "tea, please"}, {"respond": [{"call": "approve", "response": {"ok": True}}]}],
}


PARCELS: dict[str, Any] = {
    "name": "parcels",
    "script": {
        "clerk": [
            {
                "calls": [
                    {"name": "stock", "args": {"item": "tea"}},
                    {"name": "packing", "args": {"item": "tea", "weight": 3}},
                ]
            },
            {"text": "Sent."},
        ],
        "packer": [
            {"calls": [{"name": "weigh", "args": {"item": "tea"}}, {"name": "approve", "args": {"item": "tea"}}]},
            {"text": "Packed."},
        ],
        "labeller": [
            {"calls": [{"name": "weigh", "args": {"item": "label"}}]},
            {"calls": [{"name": "set_model_response", "args": {"items": [{"item": "tea", "weight": 3}]}}]},
            {"text": "never"},
        ],
    },
    "turns": [{"message": "tea, please"}, {"respond": [{"call": "approve", "response": {"ok": True}}]}],
}


LOTTERY: dict[str, Any] = {
    "script": {"clerk": [{"calls": [{"name": "draw"}]}, {"text": "Done."}]},
    "turns": [{"message": "a lot"}],
}


@pytest.fixture(scope="module")
async def prover() -> AsyncGenerator[Prover]:
    async with proof_server() as client:
        yield Prover(client, ProofConfig(at_once=4))


@pytest.mark.parametrize(("mode", "name"), SELECTED, ids=lambda value: value)
async def test_a_scenario_can_be_cut_anywhere(mode: Mode, name: str, prover: Prover) -> None:
    report = await prove_scenario(prover, SCENARIOS[name], [mode])
    assert report.ok, str(report)
    assert len(report.verdicts[0].cuts) > 2


@pytest.mark.parametrize("mode", ALL_MODES)
async def test_an_agent_that_a_tool_runs_can_be_cut_anywhere(mode: Mode, prover: Prover) -> None:
    """Its agents wait for a person, and answer by a schema; each of their steps is cut, too."""
    client = getattr(prover, "_client")  # noqa: B009 -- the module's one server
    config = ProofConfig(at_once=4, most_cuts=12)
    report = await prove("tests.prove.shop:depot", PARCELS, [mode], client=client, config=config)
    assert report.ok, str(report)
    assert len(report.verdicts[0].cuts) > 6


@pytest.mark.parametrize("mode", ALL_MODES)
async def test_several_steps_of_one_activity_can_be_cut_anywhere(mode: Mode, prover: Prover) -> None:
    """Killed as a step begins, and as it has ended and is not kept yet."""
    client = getattr(prover, "_client")  # noqa: B009 -- the module's one server
    stock = {"calls": [{"name": "stock", "args": {"item": "tea"}}]}
    scenario = ORDER | {"script": {"clerk": [stock, stock, *ORDER["script"]["clerk"]]}}
    config = ProofConfig(at_once=4, steps_per_activity=20)
    report = await prove("tests.prove.shop:app", scenario, [mode], client=client, config=config)
    assert report.ok, str(report)
    # Each of the steps is a cut point, whatever activity took it.
    assert len(report.verdicts[0].cuts) > (10 if mode == "kill" else 2)


async def test_a_tool_that_says_something_else_each_time_is_found(prover: Prover) -> None:
    """Killed as it is done, it runs again in another process, where its counter starts anew."""
    scenario: dict[str, Any] = {
        "script": {"clerk": [{"calls": [{"name": "ticket"}]}, {"calls": [{"name": "ticket"}]}, {"text": "Done."}]},
        "turns": [{"message": "two tickets"}],
    }
    client = getattr(prover, "_client")  # noqa: B009 -- the module's one server
    report = await prove("tests.prove.shop:careless", scenario, ["kill"], client=client)
    assert not report.ok
    (verdict,) = report.verdicts
    assert any("log (- uninterrupted, + cut):" in cut.problems for cut in verdict.cuts)
    assert {again.tool for _, again in verdict.repeated} == {"ticket"}
    assert all(again.key.startswith("e-") for _, again in verdict.repeated)
    assert not verdict.by_itself, "uninterrupted runs do not differ"


async def test_a_scenario_that_differs_by_itself_is_told_apart(prover: Prover) -> None:
    client = getattr(prover, "_client")  # noqa: B009 -- the module's one server
    report = await prove("tests.prove.shop:lottery", LOTTERY, ["replay"], client=client)
    assert not report.ok
    assert "two uninterrupted runs differ by themselves" in str(report)


async def test_a_step_that_a_run_has_no_more_is_no_cut_point(prover: Prover, tmp_path: Path) -> None:
    """How many steps a custom agent's code takes is not always the same: what it waits for may end together."""
    client = getattr(prover, "_client")  # noqa: B009 -- the module's one server
    scenario: dict[str, Any] = {"state": {"been_here": str(tmp_path / "file")}, "turns": [{"message": "go"}]}
    report = await prove("tests.prove.shop:hurried", scenario, ["kill"], client=client)
    assert report.ok, str(report)
    (verdict,) = report.verdicts
    assert [cut.where for cut in verdict.cuts if cut.skipped == FEWER_STEPS] == [
        f"killed at the {when} of step {len(verdict.cuts) // 2}" for when in ("start", "end")
    ]
    assert len(verdict.made) > 2


async def test_an_app_that_cannot_be_built_is_told(prover: Prover) -> None:
    client = getattr(prover, "_client")  # noqa: B009 -- the module's one server
    scenario: dict[str, Any] = {"script": {"nobody": []}, "turns": [{"message": "hi"}]}
    report = await prove("tests.prove.shop:app", scenario, ["replay"], client=client)
    assert "has no such LLM agent" in (report.verdicts[0].error or "")


def test_the_command_proves_a_users_own_app(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    command = [sys.executable, "-m", "perdure", "prove", "tests.prove.shop:app", "--scenario"]
    options = ["--mode", "replay", "--mode", "prefix", "--steps-per-activity", "5"]
    done = subprocess.run(
        [*command, str(tmp_path / "order.json"), *options], capture_output=True, text=True, check=False, timeout=200
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    # Lines that are indented tell what was skipped, and why.
    verdicts = [line.partition(",")[0] for line in lines if not line.startswith(" ")]
    assert verdicts == ["ok order (replay", "ok order (prefix", "2 passed"]
