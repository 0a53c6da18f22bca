"""`durable`: gives a tool what Perdure has beside google.adk, whoever's the tool and the agent are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Literal, TypeVar

from perdure.agents.expiry import OnExpiry
from perdure.agents.retries import RetryPolicy
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool
from perdure.errors import DefinitionError
from perdure.plan.nodes import ToolPlan

__all__ = ["Durability", "durability_of", "durable", "marked"]

T = TypeVar("T")

_MARK = "_perdure_durability"
_LONG_RUNNING = frozenset({"expires_in", "on_expiry", "response"})
_OURS = "perdure.adk.mixed"
"""Makes google.adk's tools; imported only for a tool of Perdure's, which google.adk does not take."""


@dataclass(frozen=True)
class Durability:
    """What `durable` was given."""

    options: Mapping[str, Any]
    made: FunctionTool | None = None
    """A tool of Perdure's own that has it all."""

    def of(self, function: Callable[..., Any]) -> FunctionTool:
        """Return a tool of Perdure's own for a function, with what was given.

        Raises:
            DefinitionError: As for `FunctionTool` and `LongRunningFunctionTool`.
        """
        kind = FunctionTool if _LONG_RUNNING.isdisjoint(self.options) else LongRunningFunctionTool
        return kind(function, **self.options)

    def plan(self) -> ToolPlan:
        """Return a plan's tool whose options are those that were given; it has nobody's name."""
        return (self.made or self.of(_stand_in)).plan()

    @property
    def retries(self) -> bool:
        """Whether it was said how often a call that raised is tried again."""
        return "retry" in self.options or self.made is not None


def _stand_in() -> None:
    """Stand for a tool whose options are looked at."""


def durable(
    tool: T,
    *,
    at_most_once: bool = False,
    timeout: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    retry: RetryPolicy | None = None,
    local: bool = False,
    on_failure: Literal["fail", "tell_model"] = "fail",
    expires_in: timedelta | None = None,
    on_expiry: OnExpiry | None = None,
    response: Any = None,
) -> T:
    """Return a tool with what Perdure has beside google.adk; what was given stays as it is.

    It works in agents of either kind. google.adk, without Perdure, runs it as any tool of its own.

    Args:
        tool: A function, a tool of google.adk's, or one of Perdure's that is to stand in a google.adk agent: that
            becomes one of google.adk's, with what it was made with.
        at_most_once: As for `FunctionTool`.
        timeout: As for `FunctionTool`.
        heartbeat_timeout: As for `FunctionTool`.
        retry: As for `FunctionTool`. Without it a tool of a google.adk agent that raises is not tried again, as in ADK.
        local: As for `FunctionTool`.
        on_failure: As for `FunctionTool`.
        expires_in: Of a long-running tool, as for `LongRunningFunctionTool`.
        on_expiry: As for `LongRunningFunctionTool`.
        response: As for `LongRunningFunctionTool`.

    Raises:
        DefinitionError: What is given does not go together, as for those; `tool` is no tool, or a toolset.
    """
    given: dict[str, Any] = {
        "at_most_once": at_most_once or None,
        "timeout": timeout,
        "heartbeat_timeout": heartbeat_timeout,
        "retry": retry,
        "local": local or None,
        "on_failure": on_failure if on_failure != "fail" else None,
        "expires_in": expires_in,
        "on_expiry": on_expiry,
        "response": response,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if isinstance(tool, FunctionTool):
        if options:
            raise DefinitionError(f"durable: tool {tool.name!r} takes {', '.join(options)} itself, where it is made")
        made: T = importlib.import_module(_OURS).adk_tool(tool)
        return made
    _check(tool, options)
    return marked(tool, Durability(options))


def marked(tool: T, durability: Durability) -> T:
    """Return a copy of a function or tool that has a mark."""
    copied: Any = _copied(tool)
    # A method has no attributes but those of its function.
    function: Any = getattr(copied, "__func__") if isinstance(tool, MethodType) else copied  # noqa: B009
    setattr(function, _MARK, durability)
    return copied


def _copied(tool: object) -> object:
    """Return something of its own to be marked, that is called as the tool is.

    Raises:
        DefinitionError: There is none.
    """
    if isinstance(tool, FunctionType):
        return _clone(tool)
    if isinstance(tool, MethodType) and isinstance(tool.__func__, FunctionType):
        return MethodType(_clone(tool.__func__), tool.__self__)
    if isinstance(tool, (MethodType, BuiltinFunctionType, type)):
        raise DefinitionError(f"durable: {tool!r} cannot be marked; give it a function that calls that")
    return copy(tool)


def durability_of(tool: object) -> Durability | None:
    """Return what `durable` gave a tool, or the function that it was made of."""
    found = getattr(tool, _MARK, None) or getattr(getattr(tool, "func", None), _MARK, None)
    return found if isinstance(found, Durability) else None


def _check(tool: object, options: dict[str, Any]) -> None:
    name = getattr(tool, "name", None) or getattr(tool, "__name__", type(tool).__name__)
    if not callable(tool) and not callable(getattr(tool, "run_async", None)):
        raise DefinitionError(
            f"durable: {name!r} is a {type(tool).__name__}; give it a function or a tool, and of a toolset its tools"
        )
    once = _LONG_RUNNING & options.keys() and {"at_most_once", "local"} & options.keys()
    if once:
        raise DefinitionError(f"tool {name!r}: a long-running tool takes neither at_most_once nor local")

    try:
        Durability(options).plan()
    except DefinitionError as error:
        raise DefinitionError(str(error).replace(_stand_in.__name__, str(name))) from error


def _clone(function: FunctionType) -> Any:
    """Return another function of the same code, so that its mark is not the first one's."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    for name in ("__doc__", "__annotations__", "__module__", "__qualname__"):
        setattr(made, name, getattr(function, name))
    return made
