"""Proves scenarios: every cut must leave what the uninterrupted run leaves, and what the scenario expects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.agents.adk_app import AnyApp
from perdure.prove.ledger import Ledger
from perdure.prove.modes import Mode
from perdure.prove.outcome import Outcome, effects
from perdure.prove.proof import ALL_MODES, Prover
from perdure.prove.report import Report
from perdure.prove.scenario import ProofScenario
from tests.conformance import runner
from tests.conformance.adk_build import AdkScenarioApp
from tests.conformance.build import ScenarioApp, steps_here
from tests.conformance.normal_form import Item
from tests.conformance.scenario import LlmSpec, Scenario


@dataclass(frozen=True)
class ScenarioSource:
    """Builds a scenario's app in a worker process."""

    scenario: Scenario
    adk: bool = False
    """Of google.adk's agents."""
    steps: int = field(default_factory=steps_here.get)
    """How many its activities may take."""
    modules: Sequence[str] = ("tests.conformance.proofs", "tests.conformance.steps_agent")

    def build(self, app_name: str, ledger: Ledger) -> AnyApp:
        """Return the app."""
        make = AdkScenarioApp if self.adk else ScenarioApp
        steps_here.set(self.steps)
        return make(self.scenario, app_name, ledger).app


async def prove_scenario(prover: Prover, scenario: Scenario, modes: Sequence[Mode] = ALL_MODES) -> Report:
    """Prove a scenario in some modes."""
    proof = ProofScenario(name=scenario.name, state=scenario.state, turns=scenario.turns, compare=scenario.compare)
    return await prover.prove(ScenarioSource(scenario), proof, modes, check=lambda outcome: check(scenario, outcome))


def check(scenario: Scenario, outcome: Outcome) -> list[str]:
    """Return how an outcome differs from what its scenario expects."""
    problems: list[str] = []
    requests: dict[str, list[list[Item]]] = {agent.name: [] for agent in scenario.agents if isinstance(agent, LlmSpec)}
    seen: dict[tuple[str, int], list[Item]] = {}
    asked = [note for note in outcome.notes if "request" in note]
    for note in sorted(asked, key=lambda note: note["call"]):
        where = (note["agent"], note["call"])
        if seen.setdefault(where, note["request"]) != note["request"]:
            problems.append(f"model call {note['call']} of {note['agent']} saw something else when it was repeated")
    for (agent, number), request in seen.items():
        if number != len(requests[agent]) + 1:
            problems.append(f"model call {number} of {agent} got step {len(requests[agent]) + 1}")
        requests[agent].append(request)
    for spec in scenario.agents:
        if isinstance(spec, LlmSpec) and len(requests[spec.name]) != len(spec.script):
            problems.append(
                f"{spec.name} made {len(requests[spec.name])} model calls, but its script has {len(spec.script)} steps"
            )
    runs: Counter[str] = Counter()
    for (what, key), count in effects(outcome.steps).items():
        if key:
            runs[what.removeprefix("tool ")] += count
    played = runner.Outcome(
        turns=outcome.turns, failed=outcome.failed, state=outcome.state, requests=requests, tool_runs=runs
    )
    if scenario.compare == "per_author":
        # Who comes after parallel branches sees them as they interleaved.
        scenario = scenario.model_copy(
            update={"expect": scenario.expect.model_copy(update={"requests": _in_any_order(scenario.expect.requests)})}
        )
        played.requests = _in_any_order(requests)
    return problems + runner.compare(scenario, played)


def _in_any_order(requests: dict[str, list[list[Item]]]) -> dict[str, list[list[Item]]]:
    return {
        agent: [sorted(request, key=lambda content: json.dumps(content, sort_keys=True)) for request in calls]
        for agent, calls in requests.items()
    }
