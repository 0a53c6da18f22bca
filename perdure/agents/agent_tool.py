"""`AgentTool`: an agent as a tool of another agent's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, cast

from google.genai import types
from pydantic import BaseModel

from perdure.agents.custom import BaseAgent, walk
from perdure.agents.definitions import LlmAgent
from perdure.agents.structured import Structured, message_of_input
from perdure.agents.tools import FunctionTool
from perdure.errors import DefinitionError, InvalidArguments
from perdure.plan.nodes import ToolPlan

__all__ = ["AgentTool", "walk_all"]

_REQUEST = "request"


class AgentTool(FunctionTool):
    """Runs an agent as a tool: its model calls and tools are steps of the session's own. ADK: `tools/agent_tool.py`.

    The agent sees the tool's arguments as a user's message, and nothing else of the session but its state. What it
    writes into the state, and the artifacts that it saves, come with the tool's response; its last answer is the
    result, by its `output_schema` if it has one. What waits for a person in it waits in the session, and is answered
    like anything else, whether or not the app is resumable.
    """

    def __init__(
        self,
        agent: BaseAgent,
        skip_summarization: bool = False,
        *,
        on_failure: Literal["fail", "tell_model"] = "fail",
    ) -> None:
        """Wrap an agent. The tool has its name and description.

        Args:
            agent: The agent. It may be the tool of several agents, but have no agent above it among its own tools.
            skip_summarization: The tool's response ends the turn of the agent that called it.
            on_failure: What happens when the agent fails. `"fail"`: the invocation fails, and its resume goes on within
                the agent. `"tell_model"`: the model that called it is told, and goes on.

        Raises:
            DefinitionError: It is no agent of Perdure's, or `on_failure` is something else.
        """
        if not isinstance(cast("object", agent), BaseAgent):
            raise DefinitionError(f"AgentTool takes an agent of Perdure's, not {agent!r}")

        def run(request: str) -> None:
            """Stand for the agent, whose steps are the session's own."""

        run.__name__ = run.__qualname__ = agent.name
        super().__init__(run, on_failure=on_failure)
        self.agent = agent
        self.skip_summarization = skip_summarization

    @property
    def description(self) -> str:
        """The agent's description."""
        return self.agent.description

    @property
    def declaration(self) -> types.FunctionDeclaration:
        """The tool's declaration: the fields of the agent's `input_schema`, or a `request`."""
        schema = input_schema_of(self.agent)
        if schema is None:
            return super().declaration
        declared = Structured(schema, f"agent {self.agent.name!r}: input_schema").schema
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=declared)

    @cached_property
    def output(self) -> Structured | None:
        """The type of the agent's answer, if it has one."""
        return output_of(self.agent)

    def plan(self) -> ToolPlan:
        """Return the tool as a plan holds it, without the agent's node; raises as `FunctionTool.plan` does."""
        return super().plan().model_copy(update={"skip_summarization": self.skip_summarization})

    def message(self, args: Mapping[str, Any]) -> str:
        """Return what the agent is told: the arguments by its `input_schema`, or else the `request`. As in ADK.

        Raises:
            InvalidArguments: They do not fit; its `result` is the tool's result.
        """
        schema = input_schema_of(self.agent)
        if schema is not None:
            try:
                return message_of_input(schema, args)
            except InvalidArguments as error:
                raise InvalidArguments(
                    f"Invoking `{self.name}()` failed as its arguments have the wrong form: {error}\nCall it again with"
                    " values of the declared types."
                ) from error
        request = args.get(_REQUEST)
        return request if isinstance(request, str) else json.dumps(args, ensure_ascii=False, sort_keys=True)


def input_schema_of(agent: BaseAgent) -> type[BaseModel] | None:
    """Return what an agent is asked by: of a composite, what its first agent is. As in ADK."""
    if isinstance(agent, LlmAgent):
        return agent.input_schema
    return input_schema_of(agent.sub_agents[0]) if agent.sub_agents else None


def output_of(agent: BaseAgent) -> Structured | None:
    """Return what an agent answers by: of a composite, what its last agent does. As in ADK."""
    if isinstance(agent, LlmAgent):
        return agent.structured_output()
    return output_of(agent.sub_agents[-1]) if agent.sub_agents else None


def tool_agents(agent: BaseAgent) -> Iterator[BaseAgent]:
    """Yield the agents that the tools of an agent run."""
    for tool in agent.tools if isinstance(agent, LlmAgent) else ():
        if isinstance(tool, AgentTool):
            yield tool.agent


def walk_all(root: BaseAgent) -> list[BaseAgent]:
    """Return an agent, all underneath, and all that their tools run, each once."""
    found: list[BaseAgent] = []
    waiting = [root]
    while waiting:
        for agent in walk(waiting.pop()):
            if not any(agent is known for known in found):
                found.append(agent)
                waiting.extend(tool_agents(agent))
    return found
