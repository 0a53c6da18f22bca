"""Takes tools of google.adk's, and functions that `durable` has marked, into agents of Perdure's."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from perdure.agents.durable import durability_of
from perdure.agents.tools import FunctionTool

__all__ = ["taken"]

_ADK = "google.adk."
_TAKER = "perdure.adk.mixed"
"""The module that takes google.adk's tools; it is imported only where there is one."""


def taken(tool: object) -> object:
    """Return what an agent of Perdure's has as a tool: what is given, or what takes its place.

    Raises:
        DefinitionError: A tool of google.adk's works in google.adk's agents only.
        ValueError: It is no tool.
    """
    if isinstance(tool, FunctionTool):
        return tool
    if not inspect.isroutine(tool) and any(f"{cls.__module__}.".startswith(_ADK) for cls in type(tool).__mro__):
        native: Any = importlib.import_module(_TAKER).native_tool(tool)
        return native
    durability = durability_of(tool)
    if not callable(tool):
        raise ValueError(f"{tool!r} is no tool: give a function, a FunctionTool, or AgentTool(agent)")
    return durability.of(tool) if durability is not None else tool
