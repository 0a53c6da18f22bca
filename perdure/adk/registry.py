"""The code behind a google.adk app's plan: agents by their names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from typing import cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.agent_tool import AgentTool

from perdure.adk.compile import compile_adk_app
from perdure.adk.graphs import is_copy, is_graph
from perdure.adk.pinning import pinned_trees
from perdure.adk.supported import mode_of
from perdure.adk.tools.delegation_tools import as_single_turn
from perdure.adk.trees import walk
from perdure.agents.adk_app import AdkApp
from perdure.compiler.registry import NotRegistered
from perdure.errors import DefinitionError
from perdure.plan.nodes import CustomNode, Plan

_MOST_PINNED = 100
"""Plans of earlier code, and scopes of theirs, whose agents are kept."""


def _by_name(root: BaseAgent) -> dict[str, BaseAgent]:
    return {agent.name: agent for agent in walk(root)}


class AdkRegistry:
    """Finds the agents of one google.adk app."""

    def __init__(self, app: AdkApp) -> None:
        """Compile an app.

        Raises:
            DefinitionError: Perdure cannot run it.
        """
        self.app: AdkApp = app
        self.plan: Plan = compile_adk_app(app)
        self._agents: dict[str, BaseAgent] = _by_name(app.app.root_agent)
        self._today: dict[str, BaseAgent] = self._agents
        self._pinned: OrderedDict[tuple[tuple[tuple[str, str], ...], str], AdkRegistry] = OrderedDict()
        self._tools: tuple[tuple[str, str], ...] = ()

    def within(self, tools: Sequence[tuple[str, str]]) -> AdkRegistry:
        """Return the registry of the agents that a tool runs.

        Args:
            tools: Agents and their tools around them, outermost first.

        Raises:
            NotRegistered: The app has no such tool here, or it runs no agent.
        """
        found = self
        for agent, tool in tools:
            inner = copy(found)
            inner._agents = inner._today = _by_name(found.agent_tool(agent, tool).agent)
            inner.plan = found.plan.scope(agent, tool) or found.plan
            inner._tools = (*found._tools, (agent, tool))
            found = inner
        return found

    def pinned(self, plan: Plan) -> AdkRegistry:
        """Return the registry of an invocation: today's code in the tree, and with the plain values, of its plan."""
        if plan.digest == self.plan.digest:
            return self
        key = (self._tools, plan.digest)
        if key not in self._pinned:
            found = copy(self)
            found.plan = plan
            found._agents = self._agents | {
                agent.name: agent for root in pinned_trees(plan.root, self._agents) for agent in walk(root)
            }
            self._pinned[key] = found
            if len(self._pinned) > _MOST_PINNED:
                self._pinned.popitem(last=False)
        return self._pinned[key]

    def runs_below(self, above: str, agent: BaseAgent) -> bool:
        """Return whether an agent is one of the plan's, and underneath another: not a copy that its code has made.

        google.adk itself makes copies of a graph's, and of those that a tool runs.
        """
        name, node = agent.name, self.plan.nodes.get(above)
        found = [one for one in (self._agents.get(name), self._today.get(name)) if one is not None]
        if isinstance(node, CustomNode) and node.tool is not None:
            # Tools may share an agent, which has one place in the tree.
            known = any(is_copy(agent, one) for one in found)
            return known and name in self.plan.nodes and name not in self.plan.path(above)
        if is_graph(self._agents.get(above)):
            known = any(is_copy(agent, one) for one in found)
        else:
            known = any(agent is one for one in found)
        return known and name != above and name in self.plan.nodes and above in self.plan.path(name)

    def agent_tool(self, agent: str, tool: str) -> AgentTool:
        """Return an agent's tool that runs another agent.

        Raises:
            NotRegistered: The app has no such tool here.
        """
        given = cast("list[object]", self.llm_agent_named(agent).tools)  # pyright: ignore[reportUnknownMemberType]
        for one in given:
            if isinstance(one, AgentTool) and one.name == tool:
                return one
        raise NotRegistered(
            f"app {self.app.name!r} in this worker: agent {agent!r} has no tool {tool!r} that runs an agent; deploy the"
            " code that has it"
        )

    def agent(self, name: str) -> BaseAgent:
        """Return an agent.

        Raises:
            NotRegistered: The app has no such agent here.
        """
        found = self._agents.get(name)
        if found is None:
            raise NotRegistered(
                f"app {self.app.name!r} in this worker: there is no agent {name!r}; deploy the code that has it"
            )
        return as_single_turn(found) if mode_of(found) == "single_turn" else found

    def llm_agent_named(self, name: str) -> LlmAgent:
        """Return an agent that has a model.

        Raises:
            NotRegistered: The app has no such agent here.
            DefinitionError: It has no model.
        """
        found = self.agent(name)
        if not isinstance(found, LlmAgent):
            raise DefinitionError(f"agent {name!r} has no model")
        return found
