"""Has callbacks and plugins' hooks say what is wrong with them: what fails of it says nothing of them by itself.

Notes what callbacks return that google.adk does not take. What they raise that is no error to google.adk, such as
`SystemExit`, becomes one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types

from perdure.adk import internals
from perdure.steps.raised import as_exception_of_task

__all__ = ["noted", "watched"]

_TAKEN: dict[str, type[Any]] = {
    "before_agent_callback": types.Content,
    "after_agent_callback": types.Content,
    "before_model_callback": LlmResponse,
    "after_model_callback": LlmResponse,
    "on_model_error_callback": LlmResponse,
    "before_tool_callback": dict,
    "after_tool_callback": dict,
    "on_tool_error_callback": dict,
}
"""By callback, what it may return but `None`."""

_noted: ContextVar[list[str] | None] = ContextVar("what callbacks returned", default=None)
"""Of the step that runs."""


def watched(agent: BaseAgent) -> BaseAgent:
    """Return a step's agent with callbacks that note, for this step, what they return that google.adk does not take."""
    _noted.set([])
    update: dict[str, object] = {}
    for field, taken in _TAKEN.items():
        given: Any = getattr(agent, field, None)
        if given:
            each = cast("list[Callable[..., Any]]", given if isinstance(given, list) else [given])
            update[field] = [_noting(agent.name, field, taken, one) for one in each]
    return agent.model_copy(update=update) if update else agent


def noted() -> str:
    """Return what the step's callbacks returned that google.adk does not take, as clauses; empty if nothing."""
    return "".join(f"; {clause}" for clause in _noted.get() or ())


def _noting(agent: str, field: str, taken: type[Any], callback: Callable[..., Any]) -> Callable[..., Any]:
    name = getattr(callback, "__name__", type(callback).__name__)

    def seen(returned: Any) -> Any:
        notes = _noted.get()
        if returned is not None and not isinstance(returned, taken) and notes is not None:
            notes.append(
                f"{field} {name!r} of agent {agent!r} returned a {type(returned).__name__}, where google.adk takes"
                f" {taken.__name__} or None"
            )
        return returned

    async def wait(returned: Any) -> Any:
        try:
            return seen(await returned)
        except BaseException as error:
            raise as_error(error)  # noqa: B904 -- it has its cause

    def as_error(raised: BaseException) -> Exception:
        error = as_exception_of_task(raised)
        if error is raised:
            return error
        told = RuntimeError(f"{field} {name!r} of agent {agent!r}: {error}")
        told.__cause__ = error.__cause__
        return told

    @functools.wraps(callback)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = callback(*args, **kwargs)
        except BaseException as error:
            raise as_error(error)  # noqa: B904 -- it has its cause
        return wait(returned) if inspect.isawaitable(returned) else seen(returned)

    return call


class _Contained:
    """A plugin, as those who call its hooks see it: google.adk names it, and its hook, where that raises an error."""

    def __init__(self, plugin: BasePlugin) -> None:
        self.name = plugin.name
        self._plugin = plugin

    def __getattr__(self, hook: str) -> Callable[..., Awaitable[Any]]:
        given: Callable[..., Awaitable[Any]] = getattr(self._plugin, hook)

        async def call(**kwargs: Any) -> Any:
            try:
                return await given(**kwargs)
            except BaseException as error:
                raise as_exception_of_task(error)  # noqa: B904 -- it has its cause

        return call


internals.route_plugins(_Contained)
