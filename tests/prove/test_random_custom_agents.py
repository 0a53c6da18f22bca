"""Random custom agents, which fall back, try again, gather and keep checkpoints, cut at random points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client

from perdure.prove.modes import Mode
from perdure.prove.proof import ALL_MODES, Prover
from tests.conformance.proofs import ScenarioSource
from tests.prove.random_prover import CONFIG, PROFILE, TIMEOUT, Names, RandomProver, Tree, proof_of

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(TIMEOUT)]
_DEPTH = 3
_TEXTS = 16
_SHARED_TOOLS: dict[str, dict[str, Any]] = {
    "look": {"returns": {"seen": 1}},
    "ask": {"long_running": True, "returns": {"status": "pending"}},
    "wait": {"long_running": True, "returns": None},
    "spend": {"confirm": True, "returns": {"spent": 5}},
}


@dataclass
class Programs(Names):
    """Gives each model's agent a tool of its own, too, which fails the first times that it runs."""

    tools: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(_SHARED_TOOLS))
    calls: bool = True
    """Programs call functions, which google.adk's apps have none of."""


@st.composite
def _llm(draw: st.DrawFn, names: Programs) -> dict[str, Any]:
    name = names.next("llm")
    flaky = f"flaky_{name}"
    names.tools[flaky] = {"returns": "well", "fail_first": draw(st.integers(0, 2))}
    tools = [*_SHARED_TOOLS, flaky]
    steps: list[dict[str, Any]] = []
    for index in range(draw(st.integers(0, 2))):
        if draw(st.integers(0, 3)) == 0:
            steps.append({"error": "overloaded"})
        else:
            # google.adk puts the responses of two, one of which waits, into the order of their answers.
            most = 2 if names.calls else 1
            called = draw(st.lists(st.sampled_from([*_SHARED_TOOLS, "look"]), min_size=1, max_size=most, unique=True))
            if draw(st.integers(0, 2)) == 0:
                # Alone: one that fails beside a call that is held back runs again in the next run, unasked.
                called = [flaky]
            steps.append({"calls": [{"name": tool, "args": {}} for tool in called], "text": f"round {index}"})
        if draw(st.booleans()):
            steps.append({"text": f"between {index}"})
    steps += [{"text": f"text {name}.{index}"} for index in range(_TEXTS)]
    return {"kind": "llm", "name": name, "tools": tools, "script": steps}


@st.composite
def _tree(draw: st.DrawFn, names: Programs, depth: int) -> dict[str, Any]:
    kinds = ["llm", "program", "sequential", "loop", "parallel", "transfer"] if depth > 1 else ["llm"]
    kind = draw(st.sampled_from(kinds))
    if kind == "llm":
        return draw(_llm(names))
    if kind == "transfer":
        agent = draw(_llm(names))
        child = draw(_llm(names))
        agent["script"].insert(
            draw(st.integers(0, 1)), {"calls": [{"name": "transfer_to_agent", "args": {"agent_name": child["name"]}}]}
        )
        return agent | {"sub_agents": [child], "disallow_transfer_to_parent": True}
    if kind == "program":
        return draw(_program_agent(names, depth))
    name = names.next(kind)
    children = [draw(_tree(names, depth - 1)) for _ in range(draw(st.integers(1, 2)))]
    return {"kind": kind, "name": name, "sub_agents": children} | ({"max_iterations": 2} if kind == "loop" else {})


@st.composite
def _program_agent(draw: st.DrawFn, names: Programs, depth: int) -> dict[str, Any]:
    name = names.next("program")
    children = [draw(_tree(names, depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    subs = [child["name"] for child in children]
    program = draw(st.lists(_statement(subs, 2, calls=names.calls), min_size=1, max_size=4))
    for index in sorted(draw(st.sets(st.integers(0, 4), max_size=2)), reverse=True):
        program.insert(index, {"save": True})
    return {"kind": "program", "name": name, "sub_agents": children, "program": program}


@st.composite
def _statement(draw: st.DrawFn, subs: list[str], depth: int, *, calls: bool) -> dict[str, Any]:
    kinds = ["run", "run", "run", "say", *(["call"] if calls else [])]
    if depth:
        kinds += ["try", "try", "retry", "retry", "break"]
        if len(subs) > 1:
            kinds += ["gather", "gather"]
    kind = draw(st.sampled_from(kinds))
    inner = st.lists(_statement(subs, depth - 1, calls=calls), min_size=1, max_size=2)
    if kind == "run":
        return {"run": draw(st.sampled_from(subs))}
    if kind == "call":
        return {"call": draw(st.sampled_from("abc")), "fails": draw(st.integers(0, 2)) == 0}
    if kind == "say":
        return {"say": draw(st.sampled_from(["one", "two"]))}
    if kind == "try":
        return {"try": draw(inner), "except": draw(inner)}
    if kind == "break":
        return {"break": True}
    if kind == "retry":
        again = draw(inner)
        return {"try": again, "except": again}
    # Each sub-agent once at a time.
    one, *rest = draw(st.permutations(subs))
    return {
        "gather": [
            draw(st.lists(_statement([one], 0, calls=calls), min_size=1, max_size=2)),
            draw(st.lists(_statement(rest, 0, calls=calls), min_size=1, max_size=2)),
        ]
    }


@st.composite
def program_trees(draw: st.DrawFn, *, calls: bool = True) -> Tree:
    names = Programs(calls=calls)
    return Tree(draw(_program_agent(names, _DEPTH)), names.tools)


@PROFILE
@given(tree=program_trees(), mode=st.sampled_from(ALL_MODES))
async def test_a_random_custom_agent_can_be_cut_anywhere(tree: Tree, mode: Mode, proof_client: Client) -> None:
    report = await RandomProver(proof_client, CONFIG).prove_tree(tree, mode)
    assert report.ok, f"{tree}\n{report}"


class AdkProver(RandomProver):
    """Proves trees of google.adk's agents."""

    adk = True


@PROFILE
@given(tree=program_trees(calls=False), mode=st.sampled_from(ALL_MODES))
async def test_a_random_custom_agent_of_adks_can_be_cut_anywhere(tree: Tree, mode: Mode, proof_client: Client) -> None:
    report = await AdkProver(proof_client, CONFIG).prove_tree(tree, mode)
    assert report.ok, f"{tree}\n{report}"


async def test_what_a_silent_custom_agent_began_goes_on_from_a_bare_log(proof_client: Client) -> None:
    # Found by the long profile: the log begins with a sub-agent, and only that one went on.
    names = ("llm1", "llm2")
    agents = [
        {"kind": "llm", "name": name, "tools": [], "script": [{"text": "a"}, {"text": "b"}] * 3} for name in names
    ]
    both: dict[str, Any] = {"kind": "parallel", "name": "both", "sub_agents": agents}
    program: list[dict[str, Any]] = [{"run": "both"}, {"run": "both"}]
    root: dict[str, Any] = {"kind": "program", "name": "twice", "sub_agents": [both], "program": program}
    scenario = Tree(root, {}).scenario([{"message": "go"}])
    report = await Prover(proof_client).prove(ScenarioSource(scenario), proof_of(scenario), ["prefix"])
    assert report.ok, report
