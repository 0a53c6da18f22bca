"""What random trees share: a drawn scenario, and a prover that makes up the user's turns as it goes."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import HealthCheck, Phase, settings

from perdure.journal.events import USER
from perdure.prove.modes import Mode
from perdure.prove.outcome import Outcome
from perdure.prove.proof import ProofConfig, Prover
from perdure.prove.report import Report
from perdure.prove.scenario import ProofScenario
from tests.conformance.proofs import ScenarioSource
from tests.conformance.scenario import Scenario

LONG = os.environ.get("PERDURE_PROVE") == "long"
CONFIG = ProofConfig(at_once=4, most_cuts=None if LONG else 4)
"""Cut points of a mode that are tried of each tree, spread evenly; the long profile has all."""
PROFILE = settings(
    max_examples=150 if LONG else 3,
    deadline=None,
    derandomize=not LONG,
    # Each example takes seconds, so it is not made smaller.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TIMEOUT = 3600 if LONG else 300

_ANSWERS: dict[str, dict[str, Any]] = {"adk_request_confirmation": {"confirmed": True}}
MOST_TURNS = 6
"""After these a scenario ends, whatever still waits."""


@dataclass
class Names:
    """Gives each agent of a tree a name of its own."""

    used: int = 0

    def next(self, kind: str) -> str:
        self.used += 1
        return f"{kind}{self.used}"


@dataclass
class Tree:
    """A drawn scenario."""

    root: dict[str, Any]
    tools: dict[str, dict[str, Any]]
    resumable: bool = True
    compare: Literal["ordered", "per_author", "gathered"] = field(init=False)

    def __post_init__(self) -> None:
        text = repr(self.root)
        self.compare = "gathered" if "'gather'" in text else "per_author" if "'parallel'" in text else "ordered"

    def scenario(self, turns: list[dict[str, Any]]) -> Scenario:
        return Scenario.model_validate(
            {
                "name": "random",
                "app": {"name": "random", "resumable": self.resumable, "root": self.root},
                "tools": self.tools,
                "turns": turns,
                "compare": self.compare,
                "expect": {"turns": []},
            }
        )


class RandomProver(Prover):
    """Makes up the turns as it goes: answers what waits, resumes what failed; then it cuts."""

    adk = False
    """The trees are of google.adk's agents."""

    async def prove_tree(self, tree: Tree, mode: Mode) -> Report:
        turns: list[dict[str, Any]] = [{"message": "go"}]
        while len(turns) < MOST_TURNS:
            outcome = await self._once(tree.scenario(turns))
            following = next_turn(outcome) if tree.resumable else None
            if following is None:
                break
            turns.append(following)
        scenario = tree.scenario([*turns, {"message": "again"}])
        return await self.prove(ScenarioSource(scenario, adk=self.adk), proof_of(scenario), [mode])

    async def _once(self, scenario: Scenario) -> Outcome:
        outcomes: list[Outcome] = []

        def keep(outcome: Outcome) -> list[str]:
            outcomes.append(outcome)
            return list(outcome.problems)

        report = await self.prove(ScenarioSource(scenario, adk=self.adk), proof_of(scenario), [], check=keep)
        assert report.verdicts == ()
        assert outcomes[0].problems == []
        return outcomes[0]


def proof_of(scenario: Scenario) -> ProofScenario:
    """Return what the user of a scenario does."""
    return ProofScenario(name=scenario.name, turns=scenario.turns, compare=scenario.compare)


def next_turn(outcome: Outcome) -> dict[str, Any] | None:
    """Return what a user does next: resumes what failed, or answers what waits; `None` if that is nothing."""
    if outcome.failed[-1]:
        return {"resume": {"invocation": 1}}
    answers = (event for event in outcome.events if event.author == USER)
    answered = {response.id for event in answers for response in event.get_function_responses()}
    seen: Counter[str] = Counter()
    for event in outcome.events:
        for call in event.get_function_calls():
            name = call.name or ""
            seen[name] += 1
            if call.id in (event.long_running_tool_ids or ()) and call.id not in answered:
                response = _ANSWERS.get(name, {"ok": True})
                return {"respond": [{"call": name, "occurrence": seen[name], "response": response}]}
    return None
