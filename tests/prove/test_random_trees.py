"""Random agent trees with random scripts, cut at random points: each run ends as the uninterrupted one did."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from temporalio.client import Client

from perdure.events import USER
from perdure.prove.modes import Mode
from perdure.prove.outcome import Outcome
from perdure.prove.proof import ALL_MODES, ProofConfig, Prover, proof_server
from perdure.prove.report import Report
from perdure.prove.scenario import ProofScenario
from tests.conformance.proofs import ScenarioSource
from tests.conformance.scenario import Scenario

LONG = os.environ.get("PERDURE_PROVE") == "long"
pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(3600 if LONG else 300)]
EXAMPLES = 150 if LONG else 4
_DEPTH = 3
_CUTS = None if LONG else 4
"""Cut points of a mode that are tried of each tree, spread evenly; `None` is all."""
_TOOLS: dict[str, dict[str, Any]] = {
    "look": {"returns": {"seen": 1}},
    "write": {"returns": None, "state_delta": {"written": 1}},
    "flaky": {"returns": "well", "fail_first": 1},
    "ask": {"long_running": True, "returns": {"status": "pending"}},
    "wait": {"long_running": True, "returns": None},
    "spend": {"confirm": True, "returns": {"spent": 5}},
}
_ANSWERS: dict[str, dict[str, Any]] = {"adk_request_confirmation": {"confirmed": True}}
_MOST_TURNS = 6
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
    resumable: bool
    parallel: bool

    def scenario(self, turns: list[dict[str, Any]]) -> Scenario:
        return Scenario.model_validate(
            {
                "name": "random",
                "app": {"name": "random", "resumable": self.resumable, "root": self.root},
                "tools": _TOOLS,
                "turns": turns,
                "compare": "per_author" if self.parallel else "ordered",
                "expect": {"turns": []},
            }
        )


_call = st.sampled_from([*_TOOLS, "look", "write"])


@st.composite
def _steps(draw: st.DrawFn, number: int, *, fails: bool) -> list[dict[str, Any]]:
    """Some rounds of calls, then texts for as often as the agent may come round again."""
    rounds: list[dict[str, Any]] = []
    for index in range(draw(st.integers(0, 2))):
        if fails and draw(st.integers(0, 5)) == 0:
            rounds.append({"error": "overloaded"})
        else:
            names = draw(st.lists(_call, min_size=1, max_size=2, unique=True))
            rounds.append({"calls": [{"name": name, "args": {}} for name in names], "text": f"round {index}"})
    return [*rounds, *({"text": f"text {number}.{index}"} for index in range(12))]


@st.composite
def _agent(draw: st.DrawFn, names: Names, depth: int, *, alone: bool) -> dict[str, Any]:
    kinds = ["llm", "sequential", "loop", "parallel", "custom", "transfer"] if depth > 1 else ["llm"]
    kind = draw(st.sampled_from(kinds))
    if kind in ("llm", "transfer"):
        name = names.next("llm")
        # A model that fails beside a branch at work: which failed first is then a matter of chance.
        steps = draw(_steps(names.used, fails=alone))
        agent: dict[str, Any] = {"kind": "llm", "name": name, "tools": list(_TOOLS), "script": steps}
        if kind == "transfer":
            child = draw(_agent(names, 1, alone=alone))
            steps[-12:-12] = [{"calls": [{"name": "transfer_to_agent", "args": {"agent_name": child["name"]}}]}]
            agent |= {"sub_agents": [child], "disallow_transfer_to_parent": True}
        return agent
    name = names.next(kind)
    inside = alone and kind != "parallel"
    children = [draw(_agent(names, depth - 1, alone=inside)) for _ in range(draw(st.integers(1, 2)))]
    agent = {"kind": kind, "name": name, "sub_agents": children}
    if kind == "loop":
        agent["max_iterations"] = 2
    if kind == "custom":
        agent["steps"] = [child["name"] for child in children]
    return agent


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    root = draw(_agent(Names(), _DEPTH, alone=True))
    return Tree(root, draw(st.booleans()) or draw(st.booleans()), "'parallel'" in repr(root))


@pytest.fixture(scope="module")
async def proof_client() -> AsyncGenerator[Client]:
    async with proof_server() as client:
        yield client


class RandomProver(Prover):
    """Makes up the turns as it goes: answers what waits, resumes what failed; then it cuts."""

    async def prove_tree(self, tree: Tree, mode: Mode) -> Report:
        turns: list[dict[str, Any]] = [{"message": "go"}]
        while len(turns) < _MOST_TURNS:
            following = _next_turn(tree, await self._once(tree.scenario(turns)))
            if following is None:
                break
            turns.append(following)
        scenario = tree.scenario([*turns, {"message": "again"}])
        return await self.prove(ScenarioSource(scenario), _proof(scenario), [mode])

    async def _once(self, scenario: Scenario) -> Outcome:
        outcomes: list[Outcome] = []

        def keep(outcome: Outcome) -> list[str]:
            outcomes.append(outcome)
            return list(outcome.problems)

        report = await self.prove(ScenarioSource(scenario), _proof(scenario), [], check=keep)
        assert report.verdicts == ()
        assert outcomes[0].problems == []
        return outcomes[0]


def _proof(scenario: Scenario) -> ProofScenario:
    return ProofScenario(name=scenario.name, turns=scenario.turns, compare=scenario.compare)


def _next_turn(tree: Tree, outcome: Outcome) -> dict[str, Any] | None:
    if not tree.resumable:
        return None
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


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    # Each example takes seconds, so it is not made smaller.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(tree=trees(), mode=st.sampled_from(ALL_MODES))
async def test_a_random_tree_can_be_cut_anywhere(tree: Tree, mode: Mode, proof_client: Client) -> None:
    prover = RandomProver(proof_client, ProofConfig(at_once=4, most_cuts=_CUTS))
    report = await prover.prove_tree(tree, mode)
    assert report.ok, f"{tree}\n{report}"


async def test_a_silent_long_running_call_beside_a_quick_tool_can_be_cut_anywhere(proof_client: Client) -> None:
    # Found by the long profile: the round's response event says nothing of the call that has returned nothing.
    calls: list[dict[str, Any]] = [{"name": "look", "args": {}}, {"name": "wait", "args": {}}]
    steps: list[dict[str, Any]] = [{"calls": calls}, {"text": "seen"}, {"text": "more"}]
    root: dict[str, Any] = {"kind": "llm", "name": "llm1", "tools": ["look", "wait"], "script": steps}
    report = await RandomProver(proof_client, ProofConfig()).prove_tree(Tree(root, True, False), "prefix")
    assert report.ok, report
