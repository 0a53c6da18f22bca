"""Random agent trees with random scripts, cut at random points: each run ends as the uninterrupted one did."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client

from perdure.prove.modes import Mode
from perdure.prove.proof import ALL_MODES, ProofConfig
from tests.conformance.build import taking
from tests.prove.random_prover import CONFIG, PROFILE, TIMEOUT, Names, RandomProver, Tree

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(TIMEOUT)]
_DEPTH = 3
_TOOLS: dict[str, dict[str, Any]] = {
    "look": {"returns": {"seen": 1}},
    "write": {"returns": None, "state_delta": {"written": 1}},
    "flaky": {"returns": "well", "fail_first": 1},
    "ask": {"long_running": True, "returns": {"status": "pending"}},
    "wait": {"long_running": True, "returns": None},
    "spend": {"confirm": True, "returns": {"spent": 5}},
}

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
    return Tree(root, _TOOLS, draw(st.booleans()) or draw(st.booleans()))


@PROFILE
@given(tree=trees(), mode=st.sampled_from(ALL_MODES), steps=st.sampled_from((1, 2, 20)))
async def test_a_random_tree_can_be_cut_anywhere(tree: Tree, mode: Mode, steps: int, proof_client: Client) -> None:
    prover = RandomProver(proof_client, CONFIG)
    with taking(steps):
        report = await prover.prove_tree(tree, mode)
    assert report.ok, f"{tree}\n{steps} steps an activity\n{report}"


async def test_a_silent_long_running_call_beside_a_quick_tool_can_be_cut_anywhere(proof_client: Client) -> None:
    # Found by the long profile: the round's response event says nothing of the call that has returned nothing.
    calls: list[dict[str, Any]] = [{"name": "look", "args": {}}, {"name": "wait", "args": {}}]
    steps: list[dict[str, Any]] = [{"calls": calls}, {"text": "seen"}, {"text": "more"}]
    root: dict[str, Any] = {"kind": "llm", "name": "llm1", "tools": ["look", "wait"], "script": steps}
    report = await RandomProver(proof_client, ProofConfig()).prove_tree(Tree(root, _TOOLS), "prefix")
    assert report.ok, report
