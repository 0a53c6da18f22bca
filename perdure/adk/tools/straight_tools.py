"""Which tools run through without waiting: google.adk comes to their end before it begins the next call."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from google.adk.agents.llm_agent import LlmAgent
from google.adk.plugins.base_plugin import BasePlugin

from perdure.adk.node_tools import code_of_tool
from perdure.adk.tools.returned_results import is_watched

_CALLBACKS = ("before_tool_callback", "after_tool_callback", "on_tool_error_callback")
_WAITS = frozenset({"GET_AWAITABLE", "GET_ANEXT", "YIELD_VALUE"})
"""What code does that gives up its turn on the loop, by its bytecode."""


def runs_through(agent: LlmAgent, tool: object, plugins: Iterable[type[BasePlugin]]) -> bool:
    """Return whether nothing waits that runs for a call of a tool: its own code, callbacks around it, plugins."""
    code = code_of_tool(tool)
    around = [each for name in _CALLBACKS for each in _each(getattr(agent, name, None))]
    hooks = [getattr(plugin, name) for plugin in plugins for name in _CALLBACKS]
    return code is not None and not any(map(_may_wait, [code, *around, *hooks]))


def _each(given: Any) -> list[Callable[..., Any]]:
    return cast("list[Callable[..., Any]]", given if isinstance(given, list) else [given] if given else [])


def _may_wait(function: Any) -> bool:
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    while is_watched(function):
        function = inspect.unwrap(function, stop=lambda one: not is_watched(one))
    if not inspect.isroutine(function):
        function = type(function).__call__
    if not inspect.iscoroutinefunction(function):
        return inspect.isasyncgenfunction(function)
    code = getattr(function, "__code__", None)
    return code is None or any(step.opname in _WAITS for step in dis.get_instructions(code))
