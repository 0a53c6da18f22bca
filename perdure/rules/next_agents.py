"""Decides which sub-agents a sequential, loop or parallel agent enters next, or that it ends (SEMANTICS.md). Pure.

The workflow asks as it goes, and carries the answer out; `perdure.views.next_steps` asks where an invocation stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.journal.runs import AgentRun, current_child, times_looped
from perdure.plan.nodes import LoopNode, ParallelNode, Plan, SequentialNode


@dataclass(frozen=True)
class Enter:
    """The agent enters one sub-agent."""

    index: int
    """Its place among the sub-agents."""
    iteration: int = 0
    """Iterations of a loop agent that are through; a sequential agent is in its first."""
    checkpoint: dict[str, Any] | None = None
    """The agent's checkpoint, logged before; `None` if the sub-agent was entered before, and goes on."""

    @property
    def resumes(self) -> bool:
        """Whether the sub-agent goes on with its newest run."""
        return self.checkpoint is None


@dataclass(frozen=True)
class Branch:
    """A sub-agent of a parallel agent, and the branch that it works on."""

    index: int
    name: str


@dataclass(frozen=True)
class EnterAll:
    """The agent enters all sub-agents at once; those that have ended return at once."""

    branches: tuple[Branch, ...]
    checkpoint: dict[str, Any] | None = None
    """The agent's checkpoint, logged before; `None` if they were entered before."""


@dataclass(frozen=True)
class End:
    """The agent ends."""

    iteration: int = 0
    """As of `Enter`."""
    is_logged: bool = True
    """As in ADK, an agent without sub-agents logs nothing, not even its end."""


def first_child(node: SequentialNode | LoopNode, run: AgentRun | None) -> Enter | End:
    """Return what a sequential or loop agent does when it is entered, or entered again.

    Args:
        node: The agent.
        run: Its run; `None` if it has not begun.
    """
    if not node.sub_agents:
        return End(is_logged=False)
    current, index = current_child([child.name for child in node.sub_agents], run)
    iteration = times_looped(run) if isinstance(node, LoopNode) else 0
    if _is_through(node, iteration):
        return End(iteration)
    return Enter(index, iteration, None if current is not None else _checkpoint(node, index, iteration))


def child_behind(node: SequentialNode | LoopNode, last: Enter, *, escalated: bool, stops: bool) -> Enter | End:
    """Return what a sequential or loop agent does once a sub-agent has ended.

    Args:
        node: The agent.
        last: As it entered that sub-agent.
        escalated: Whether an event of the sub-agent, or underneath it, escalated; that ends a loop.
        stops: As `stops_behind` says.
    """
    iteration = last.iteration
    if stops or (escalated and isinstance(node, LoopNode)):
        return End(iteration)
    index = last.index + 1
    if index == len(node.sub_agents):
        if isinstance(node, SequentialNode):
            return End(iteration)
        index, iteration = 0, iteration + 1
    if _is_through(node, iteration):
        return End(iteration)
    return Enter(index, iteration, _checkpoint(node, index, iteration))


def child_ahead(plan: Plan, node: SequentialNode | LoopNode, run: AgentRun | None) -> Enter | End:
    """Return what a sequential or loop agent does that is entered again, past a sub-agent that has ended."""
    step = first_child(node, run)
    if isinstance(step, End) or not step.resumes or run is None:
        return step
    child = run.last_child(node.sub_agents[step.index].name)
    if child is None or not child.ended:
        return step
    return child_behind(node, step, escalated=child.escalated, stops=stops_behind(plan, child))


def stops_behind(plan: Plan, run: AgentRun) -> bool:
    """Return whether the agents behind a sub-agent's run do not run: it asks, and nothing waits. ADK 2."""
    return plan.adk is not None and plan.adk.major >= 2 and not plan.resumable and run.asks


def all_branches(node: ParallelNode, branch: str | None, run: AgentRun | None) -> EnterAll | End:
    """Return what a parallel agent does when it is entered, or entered again.

    Args:
        node: The agent.
        branch: The branch that it works on itself.
        run: Its run; `None` if it has not begun.
    """
    if not node.sub_agents:
        return End(is_logged=False)
    prefix = f"{branch}." if branch else ""
    branches = (Branch(index, f"{prefix}{node.name}.{child.name}") for index, child in enumerate(node.sub_agents))
    return EnterAll(tuple(branches), {} if run is None or run.state is None else None)


def _is_through(node: SequentialNode | LoopNode, iteration: int) -> bool:
    return isinstance(node, LoopNode) and node.max_iterations is not None and iteration >= node.max_iterations


def _checkpoint(node: SequentialNode | LoopNode, index: int, iteration: int) -> dict[str, Any]:
    name = {"current_sub_agent": node.sub_agents[index].name}
    return name | {"times_looped": iteration} if isinstance(node, LoopNode) else name
