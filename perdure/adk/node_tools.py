"""Tools of google.adk 2 that run nodes: those that are nodes themselves, and those whose code calls `run_node`.

Which tools these are, and which agents they run, stands in the plan: found in the tools' code, as far as it names them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool

from perdure.adk import internals
from perdure.adk.graphs import agents_of, built, runs_node, values_in

__all__ = ["agents_run_by", "function_of_tool", "held_by_tools", "runs_nodes"]

_RUN_NODE = "run_node"
_MOST_FUNCTIONS = 200
"""Looked at for one tool."""
_NOT_THE_APPS = sys.stdlib_module_names | {"google", "perdure", "pydantic"}


def runs_nodes(tool: object) -> bool:
    """Return whether a tool of an agent's runs nodes: it is one, or its code calls `run_node`, or what that calls."""
    if runs_node(tool):
        return True
    return internals.MAJOR >= 2 and any(_RUN_NODE in _names(function.__code__) for function in _reached(tool))


def agents_run_by(tool: object) -> list[BaseAgent]:
    """Return the agents that such a tool runs, as google.adk builds them for that: those that its code names."""
    if not runs_nodes(tool):
        return []
    found = agents_of(getattr(tool, "node")) if runs_node(tool) else []  # noqa: B009 -- 2.x has it
    named = (value for function in _reached(tool) for value in _named(function))
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


def _reached(tool: object) -> Iterator[FunctionType]:
    """Yield a tool's function, and the app's functions that it, and these, name."""
    if isinstance(tool, AgentTool):
        return
    seen: set[FunctionType] = set()
    left: list[Any] = [function_of_tool(tool)]
    while left and len(seen) < _MOST_FUNCTIONS:
        function = left.pop()
        function = inspect.unwrap(getattr(function, "__func__", function)) if callable(function) else None
        if not isinstance(function, FunctionType) or function in seen or not _is_the_apps(function):
            continue
        seen.add(function)
        yield function
        left += [value for value in _named(function) if callable(value)]


def _is_the_apps(function: FunctionType) -> bool:
    return str(function.__module__).partition(".")[0] not in _NOT_THE_APPS


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the values of the globals, and the variables around it, that a function names."""
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # It has no value yet.
            continue


def _names(code: CodeType) -> set[str]:
    """Return the names in a function's code, and in the functions within it."""
    within = (one for one in code.co_consts if isinstance(one, CodeType))
    return {*code.co_names}.union(*map(_names, within))
