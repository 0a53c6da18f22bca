"""Tools of google.adk 2 that run nodes: those that are nodes themselves, and those whose code calls `run_node`.

Which tools these are, and which agents they run, stands in the plan: found in the tools' code, as far as it names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool

from perdure.adk import internals
from perdure.adk.graphs import RUN_NODE, agents_of, built, runs_node, values_in
from perdure.adk.named_values import Reached, reached

__all__ = ["agents_run_by", "code_of_tool", "function_of_tool", "held_by_tools", "runs_nodes"]


def runs_nodes(tool: object) -> bool:
    """Return whether a tool of an agent's runs nodes: it is one, or its code calls `run_node`, or what that calls."""
    if runs_node(tool):
        return True
    return internals.MAJOR >= 2 and any(RUN_NODE in function.names for function in _reached(tool))


def agents_run_by(tool: object) -> list[BaseAgent]:
    """Return the agents that such a tool runs, as google.adk builds them for that: those that its code names."""
    if not runs_nodes(tool):
        return []
    found = agents_of(getattr(tool, "node")) if runs_node(tool) else []  # noqa: B009 -- 2.x has it
    named = (value for function in _reached(tool) for value in function.values)
    for agent in values_in(list(named), BaseAgent):
        # One that is another's sub-agent has its place there.
        one = agent if agent.parent_agent is not None else built(agent)
        if all(one is not known for known in found):
            found.append(one)
    return found


def held_by_tools(agent: LlmAgent) -> list[BaseAgent]:
    """Return the agents that an agent's tools run as nodes."""
    # google.adk's type of a tool has a bare `Callable` in it.
    given = cast("list[object]", agent.tools)  # pyright: ignore[reportUnknownMemberType]
    return [one for tool in given for one in agents_run_by(tool)]


def function_of_tool(given: object) -> Any:
    """Return the code of a tool that its author may have written; a class of google.adk's has none."""
    if isinstance(given, FunctionTool):
        return given.func
    if isinstance(given, BaseTool):
        return type(given).run_async
    return given if callable(given) else None


def code_of_tool(given: object) -> Any:
    """Return the code of a tool as it is called: of an object, with that."""
    if isinstance(given, BaseTool) and not isinstance(given, FunctionTool):
        return given.run_async
    return function_of_tool(given)


def _reached(tool: object) -> Iterator[Reached]:
    """Yield a tool's function, and the app's functions that it, and these, name."""
    if not isinstance(tool, AgentTool):
        yield from reached(code_of_tool(tool))
