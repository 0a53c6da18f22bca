"""Notices toolsets that are down. google.adk passes them over: its agent runs on as if it never had their tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, cast

from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset

from perdure.errors import PerdureError, error_text
from perdure.steps.raised import as_exception_of_task

__all__ = ["ToolsetDown", "check", "watch"]

_LISTING = "get_tools_with_prefix"

_down: ContextVar[dict[str, Exception] | None] = ContextVar("toolsets that are down", default=None)
"""Of the step that runs: why a toolset, by its class, did not tell its tools."""


class ToolsetDown(PerdureError):
    """A toolset did not tell its tools. It is asked again, as a tool is tried again."""


def watch(agent: LlmAgent) -> None:
    """Have the toolsets of a step's agent note for this step why they do not tell their tools."""
    _down.set({})
    for tool in cast("list[object]", agent.tools):  # pyright: ignore[reportUnknownMemberType]
        if isinstance(tool, BaseToolset) and _LISTING not in vars(tool):
            vars(tool)[_LISTING] = _noting(type(tool).__name__, tool.get_tools_with_prefix)


def check(agent: str) -> None:
    """Check that each toolset that the step has asked told its tools.

    Raises:
        ToolsetDown: One did not; the message names it, and the agent.
    """
    for toolset, error in (_down.get() or {}).items():
        raise ToolsetDown(
            f"agent {agent!r}: toolset {toolset} does not tell its tools: {error_text(error)}; see that what it"
            " connects to runs, and resume the invocation or send the message again"
        ) from error


def _noting(name: str, listing: Callable[..., Awaitable[list[BaseTool]]]) -> Callable[..., Awaitable[list[BaseTool]]]:
    async def listed(*args: Any, **kwargs: Any) -> list[BaseTool]:
        down = _down.get()
        try:
            tools = await listing(*args, **kwargs)
        except BaseException as raised:
            error = as_exception_of_task(raised)
            if down is not None:
                down[name] = error
            raise error  # noqa: B904 -- it has its cause
        if down is not None:
            down.pop(name, None)
        return tools

    return listed
