"""What sequential, loop and parallel agents do next: a table, and the walk that a workflow makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from perdure.journal.runs import AgentRun
from perdure.plan.nodes import AdkRules, LoopNode, ParallelNode, Plan, SequentialNode
from perdure.rules.next_agents import (
    Branch,
    End,
    Enter,
    EnterAll,
    all_branches,
    child_ahead,
    child_behind,
    first_child,
    stops_behind,
)
from tests.journal.sample_entries import PLAN, llm

ONE, TWO = llm("one"), llm("two")
SEQUENCE = SequentialNode(name="all", sub_agents=(ONE, TWO))
LOOP = LoopNode(name="all", sub_agents=(ONE, TWO), max_iterations=2)
ADK_1, ADK_2 = AdkRules(major=1), AdkRules(major=2)
PARALLEL = ParallelNode(name="all", sub_agents=(ONE, TWO))


def at(child: str, looped: object = None, *, ended: bool = False, escalated: bool = False) -> AgentRun:
    """Return the run of an agent whose checkpoint names a sub-agent, which has begun."""
    state: dict[str, Any] = {"current_sub_agent": child} | ({} if looped is None else {"times_looped": looped})
    run = AgentRun("all", None, state=state)
    run.children.append(AgentRun(child, None, run, ended=ended, escalated=escalated))
    return run


def named(child: str, looped: int | None = None) -> dict[str, Any]:
    return {"current_sub_agent": child} | ({} if looped is None else {"times_looped": looped})


@pytest.mark.parametrize(
    ("node", "run", "wanted"),
    [
        (SequentialNode(name="all"), None, End(is_logged=False)),
        (LoopNode(name="all"), at("one", 1), End(is_logged=False)),
        (SEQUENCE, None, Enter(0, 0, named("one"))),
        (SEQUENCE, at("two"), Enter(1)),
        (SEQUENCE, at("one", ended=True), Enter(1, 0, named("two"))),
        (SEQUENCE, at("one", ended=True, escalated=True), Enter(1, 0, named("two"))),
        (SEQUENCE, at("two", ended=True), End()),
        (SEQUENCE, at("gone"), Enter(0, 0, named("one"))),
        (LOOP, None, Enter(0, 0, named("one", 0))),
        (LOOP, at("two", 1), Enter(1, 1)),
        (LOOP, at("two", 0, ended=True), Enter(0, 1, named("one", 1))),
        (LOOP, at("two", 1, ended=True), End(2)),
        (LOOP, at("one", 0, ended=True, escalated=True), End(0)),
        (LOOP, at("one", 7), End(7)),
        (LOOP, at("two", "many"), Enter(1, 0)),
        (LOOP.model_copy(update={"max_iterations": None}), at("two", 9, ended=True), Enter(0, 10, named("one", 10))),
        (LOOP.model_copy(update={"max_iterations": 0}), None, End(0)),
    ],
)
def test_the_sub_agent_that_comes_next(
    node: SequentialNode | LoopNode, run: AgentRun | None, wanted: Enter | End
) -> None:
    assert child_ahead(PLAN, node, run) == wanted


def test_where_nothing_waits_adk_2_ends_behind_a_sub_agent_that_asks() -> None:
    cases = [
        (ADK_2, False, True, True),
        (ADK_1, False, True, False),
        (ADK_2, True, True, False),
        (ADK_2, False, False, False),
    ]
    for adk, resumable, asked, stops in cases:
        plan = Plan(app="shop", resumable=resumable, adk=adk, root=SEQUENCE)
        run = at("one", ended=True)
        run.children[0].asked = asked
        assert stops_behind(plan, run.children[0]) is stops
        assert child_ahead(plan, SEQUENCE, run) == (End() if stops else Enter(1, 0, named("two")))


def test_branches_are_entered_at_once_with_one_checkpoint() -> None:
    branches = (Branch(0, "up.all.one"), Branch(1, "up.all.two"))
    assert all_branches(PARALLEL, "up", None) == EnterAll(branches, {})
    assert all_branches(PARALLEL, "up", AgentRun("all", "up", state={})) == EnterAll(branches)
    assert all_branches(ParallelNode(name="all"), None, None) == End(is_logged=False)


def walk(node: SequentialNode | LoopNode, run: AgentRun | None, escalates: Sequence[str]) -> Iterator[Enter | End]:
    """Yield what a workflow does that enters an agent, and is cut off nowhere."""
    step = first_child(node, run)
    yield step
    while isinstance(step, Enter):
        name = f"{node.sub_agents[step.index].name} {step.iteration}"
        step = child_behind(node, step, escalated=name in escalates, stops=False)
        yield step


@pytest.mark.parametrize("node", [SEQUENCE, LOOP], ids=["sequential", "loop"])
@pytest.mark.parametrize("escalates", [(), ("two 0",), ("one 1",)])
def test_whoever_is_cut_off_behind_a_sub_agent_goes_on_as_if_it_was_not(
    node: SequentialNode | LoopNode, escalates: tuple[str, ...]
) -> None:
    """Entered again with the checkpoint that was logged last, it does the rest of the same walk."""
    steps = list(walk(node, None, escalates))
    for number, step in enumerate(steps[:-1]):
        assert isinstance(step, Enter)
        child = node.sub_agents[step.index].name
        run = AgentRun("all", None, state=step.checkpoint)
        assert list(walk(node, run, escalates))[1:] == steps[number + 1 :]
        ended = AgentRun(child, None, run, ended=True, escalated=f"{child} {step.iteration}" in escalates)
        run.children.append(ended)
        assert child_ahead(PLAN, node, run) == steps[number + 1]
