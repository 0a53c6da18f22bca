"""Builds the tree of an invocation's agents, with where each stands. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from perdure.plan.nodes import CustomNode, Node, Plan
from perdure.views.explanation import InvocationExplanation
from perdure.views.graph_standing import NodeStanding
from perdure.views.next_steps import AgentStep

State = Literal["at work", "waits", "failed", "stopped", "queued", "ended", "took part", "not entered"]


@dataclass(frozen=True)
class Agent:
    """An agent of the tree."""

    name: str
    kind: str
    description: str
    state: State
    words: str
    """What it does next; empty where that is not known."""
    calls: tuple[tuple[str, str], ...]
    """Its calls that are not done with: the tool, and what becomes of each."""
    below: tuple[Agent, ...]
    graph: tuple[NodeStanding, ...]
    """Of a graph that goes on: its nodes."""


def agent_tree(plan: Plan, invocation: InvocationExplanation, authors: Collection[str]) -> Agent:
    """Return the tree.

    Args:
        plan: The invocation's plan.
        invocation: How it stands.
        authors: Agents that have logged in it.
    """
    return _Tree(invocation, authors).agent(plan.root)


def at_work(agent: Agent) -> tuple[str, ...]:
    """Return the names of a tree's agents that are at work, and not only wait for those below them."""
    below = tuple(name for one in agent.below for name in at_work(one))
    return below or ((agent.name,) if agent.state == "at work" else ())


class _Tree:
    def __init__(self, invocation: InvocationExplanation, authors: Collection[str]) -> None:
        self._status = invocation.status
        self._authors = authors
        self._steps = {step.agent: step for step in _walk(invocation.resume.step)}
        self._done = {name for step in self._steps.values() for name in step.done}
        self._failed = {failure.agent: failure.step for failure in invocation.failures}
        self._waiting = {awaited.call.agent for awaited in invocation.awaits}

    def agent(self, node: Node) -> Agent:
        step = self._steps.get(node.name)
        return Agent(
            name=node.name,
            kind="graph" if isinstance(node, CustomNode) and node.graph is not None else node.kind,
            description=node.description,
            state=self._state(node.name, step),
            words=self._words(node.name, step),
            calls=self._calls(node.name, step),
            below=tuple(self.agent(child) for child in node.sub_agents),
            graph=step.graph if step is not None else (),
        )

    def _state(self, name: str, step: AgentStep | None) -> State:
        if name in self._failed:
            return "failed"
        if step is None or step.next == "ends":
            return self._state_outside(name, step)
        if name in self._waiting:
            return "waits"
        states: dict[str, State] = {"running": "at work", "queued": "queued", "waiting": "waits"}
        return states.get(self._status, "stopped")

    def _state_outside(self, name: str, step: AgentStep | None) -> State:
        """Return the state of an agent that is not entered again."""
        if name in self._done or step is not None:
            return "ended"
        if name in self._waiting:
            return "waits"
        if name not in self._authors:
            return "not entered"
        return "ended" if self._status == "finished" else "took part"

    def _words(self, name: str, step: AgentStep | None) -> str:
        if name in self._failed:
            return f"failed in {self._failed[name]}"
        if step is None or step.next == "ends":
            return ""
        return self._now(name, step.words)

    def _calls(self, name: str, step: AgentStep | None) -> tuple[tuple[str, str], ...]:
        return tuple((call.tool, self._now(name, call.next)) for call in step.calls) if step is not None else ()

    def _now(self, name: str, words: str) -> str:
        """Return what is done now, or else on a resume; a wait goes on, whatever became of the invocation."""
        if self._status in ("running", "waiting") or (name in self._waiting and name not in self._failed):
            return words
        return f"on a resume: {words}"


def _walk(step: AgentStep | None) -> Iterator[AgentStep]:
    if step is not None:
        yield step
        for below in step.below:
            yield from _walk(below)
