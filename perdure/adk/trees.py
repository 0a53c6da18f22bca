"""The tree of an app's agents: each below the agent whose sub-agent it is, else below one whose code or tool has it."""

from __future__ import annotations

from collections.abc import Iterator

from google.adk.agents.base_agent import BaseAgent

from perdure.adk.supported import held_by, sub_agents_of

__all__ = ["Tree", "walk"]


class Tree:
    """The agents underneath a root, each in one place."""

    def __init__(self, root: BaseAgent) -> None:
        """Look for them."""
        self._children: dict[int, list[BaseAgent]] = {}
        agents = list(walk(root))
        placed = {id(root)} | {id(child) for agent in agents for child in sub_agents_of(agent)}
        for agent in agents:
            held = [one for one in held_by(agent) if id(one) not in placed]
            placed.update(map(id, held))
            self._children[id(agent)] = [*sub_agents_of(agent), *held]

    def children_of(self, agent: BaseAgent) -> list[BaseAgent]:
        """Return what is below an agent of the tree."""
        return self._children[id(agent)]


def walk(root: BaseAgent) -> Iterator[BaseAgent]:
    """Yield an agent and all underneath it, each once, depth-first."""
    seen: set[int] = set()
    left = [root]
    while left:
        agent = left.pop()
        if id(agent) not in seen:
            seen.add(id(agent))
            yield agent
            left += [*sub_agents_of(agent), *held_by(agent)][::-1]
