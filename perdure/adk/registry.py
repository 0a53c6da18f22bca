"""The code behind a google.adk app's plan: agents by their names."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.agent_tool import AgentTool

from perdure.adk.compile import compile_adk_app, walk
from perdure.agents.adk_app import AdkApp
from perdure.compiler.registry import NotRegistered
from perdure.errors import DefinitionError
from perdure.plan.nodes import LlmNode, Plan


def _by_name(root: BaseAgent) -> dict[str, BaseAgent]:
    return {agent.name: agent for agent in walk(root)}


class AdkRegistry:
    """Finds the agents of one google.adk app."""

    def __init__(self, app: AdkApp) -> None:
        """Compile an app.

        Raises:
            DefinitionError: Perdure cannot run it.
        """
        self.app = app
        self.plan: Plan = compile_adk_app(app)
        self._agents = _by_name(app.app.root_agent)

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
            inner._agents = _by_name(found.agent_tool(agent, tool).agent)
            found = inner
        return found

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
        return found

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

    def llm_agent(self, node: LlmNode) -> LlmAgent:
        """Return a plan's agent, with the plain values that the plan has pinned.

        Raises:
            NotRegistered: The app has no such agent here.
            DefinitionError: It has no model.
        """
        agent = self.llm_agent_named(node.name)
        pinned: dict[str, object] = {}
        if (
            isinstance(agent.instruction, str)
            and not node.dynamic_instruction
            and agent.instruction != node.instruction
        ):
            pinned["instruction"] = node.instruction
        if agent.description != node.description:
            pinned["description"] = node.description
        if isinstance(agent.model, str) and agent.model and agent.model != node.model:
            pinned["model"] = node.model
        return agent.model_copy(update=pinned) if pinned else agent
