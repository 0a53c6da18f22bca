"""What a model may call: `FunctionTool`, `LongRunningFunctionTool`, `ToolContext`, and the built-in tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar, Literal

from google.genai import types
from temporalio.common import RetryPolicy

from perdure.agents.context import State, ToolActions, ToolContext
from perdure.agents.signature import (
    Signature,
    convert,
    declare,
    function_doc,
    function_name,
    is_async,
    read_signature,
)
from perdure.errors import DefinitionError
from perdure.plan import ToolOptions, ToolPlan

__all__ = [
    "FunctionTool",
    "LongRunningFunctionTool",
    "State",
    "ToolActions",
    "ToolContext",
    "as_tool",
    "exit_loop",
    "transfer_to_agent",
]

_LOCAL_TIMEOUT = timedelta(seconds=10)
_MAX_LOCAL_TIMEOUT = timedelta(minutes=1)

_PENDING_NOTE = (
    "NOTE: this tool starts something that takes long. Once it has answered that it is pending or has come to an "
    "intermediate state, do not call it again: its final result will follow."
)


class FunctionTool:
    """A function that a model may call, declared from its signature and docstring. ADK: `tools/function_tool.py`.

    Its calls run as activities, at least once each; as local activities with `local`, which suits quick tools.
    """

    kind: ClassVar[Literal["function", "long_running"]] = "function"

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        require_confirmation: bool | Callable[..., bool] = False,
        timeout: timedelta | None = None,
        heartbeat_timeout: timedelta | None = None,
        retry: RetryPolicy | None = None,
        local: bool = False,
    ) -> None:
        """Wrap a function.

        Args:
            func: Sync (it runs in a thread) or async (it runs on a loop of its own).
            require_confirmation: Whether a person must approve each call; or a function that takes the tool's
                arguments and says so.
            timeout: Time of one attempt. Default: 10 minutes; 10 s if `local`, and 1 minute at the most.
            heartbeat_timeout: How long a silent worker counts as alive. Default: 2.5 s.
            retry: How a call that raised is tried again. Default: 3 attempts, after 0.5 s and 1 s.
            local: Run in the worker that has the session, as a local activity: recorded and retried like any other,
                without a round trip, but the session takes nothing else meanwhile, a stop included.

        Raises:
            DefinitionError: A duration is not positive, the predicate is async, or `local` goes with a heartbeat or a
                timeout of more than a minute.
        """
        self.fn = func
        self.name = function_name(func)
        self.require_confirmation = require_confirmation
        where = f"tool {self.name!r}"
        self.local = local
        if local:
            timeout = _local_timeout(where, timeout, heartbeat_timeout)
        self.options = _options(where, timeout, heartbeat_timeout, retry)
        if callable(require_confirmation) and is_async(require_confirmation):
            raise DefinitionError(f"{where}: require_confirmation must be a plain function, not an async one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @cached_property
    def signature(self) -> Signature:
        """What the function takes. Raises `DefinitionError` if it cannot be declared."""
        return read_signature(self.fn, f"tool {self.name!r}")

    @cached_property
    def _predicate(self) -> Signature | None:
        if not callable(self.require_confirmation):
            return None
        return read_signature(self.require_confirmation, f"tool {self.name!r}, require_confirmation")

    @property
    def description(self) -> str:
        """What the model is told about the tool: the function's docstring."""
        return function_doc(self.fn)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_async(self.fn)

    @property
    def needs_context(self) -> bool:
        """Whether the function, or its confirmation predicate, takes a `ToolContext`."""
        return self.signature.context is not None or bool(self._predicate and self._predicate.context)

    @property
    def declaration(self) -> types.FunctionDeclaration:
        """What the model is told of the tool. Raises `DefinitionError` if it cannot be declared."""
        return declare(self.name, self.description, self.signature.parameters)

    def plan(self) -> ToolPlan:
        """Return the tool as a plan holds it.

        Raises:
            DefinitionError: It cannot be declared; the message names tool and parameter.
        """
        return ToolPlan(
            name=self.name,
            kind=self._plan_kind(),
            declaration=self.declaration,
            needs_context=self.needs_context,
            confirmation=self._confirmation(),
            options=self.options,
            local=self.local,
        )

    def bind(self, args: Mapping[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments for `fn`, made from what the model gave.

        Args that the function does not take are dropped, and the others converted by their annotations.

        Raises:
            InvalidArguments: A mandatory one is missing or one does not fit; its `result` is the tool's result.
        """
        values = convert(self.signature.parameters, args, self.name)
        if self.signature.context is not None:
            values[self.signature.context] = tool_context
        return values

    def requires_confirmation(self, args: Mapping[str, Any], tool_context: ToolContext) -> bool:
        """Return whether a person must approve this call; runs the predicate, if there is one.

        Raises:
            InvalidArguments: As for `bind`.
        """
        predicate, signature = self.require_confirmation, self._predicate
        if isinstance(predicate, bool) or signature is None:
            return bool(predicate)
        values = convert(self.signature.parameters, args, self.name)
        if not signature.accepts_any:
            taken = {parameter.name for parameter in signature.parameters}
            values = {name: value for name, value in values.items() if name in taken}
        if signature.context is not None:
            values[signature.context] = tool_context
        return bool(predicate(**values))

    def _plan_kind(self) -> Literal["function", "long_running", "transfer", "exit_loop"]:
        if self.fn is exit_loop:
            return "exit_loop"
        return "transfer" if self.fn is transfer_to_agent else self.kind

    def _confirmation(self) -> Literal["never", "always", "ask"]:
        if callable(self.require_confirmation):
            return "ask"
        return "always" if self.require_confirmation else "never"


class LongRunningFunctionTool(FunctionTool):
    """A tool whose result the user sends later. ADK: `tools/long_running_tool.py`.

    The function runs once and may return a first, pending value; then the agent waits for the user's answer.
    """

    kind: ClassVar[Literal["function", "long_running"]] = "long_running"

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        timeout: timedelta | None = None,
        heartbeat_timeout: timedelta | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Wrap a function; the arguments are those of `FunctionTool`."""
        super().__init__(func, timeout=timeout, heartbeat_timeout=heartbeat_timeout, retry=retry)

    @property
    def description(self) -> str:
        """The function's docstring, and a note that keeps the model from calling again."""
        return "\n\n".join(filter(None, (super().description, _PENDING_NOTE)))


def exit_loop(tool_context: ToolContext) -> None:
    """Leave the loop you are working in.

    Call this only if your instructions tell you to.
    """
    tool_context.actions.escalate = True
    tool_context.actions.skip_summarization = True


def transfer_to_agent(agent_name: str, tool_context: ToolContext) -> None:
    """Hand the conversation over to another agent that is better suited to answer.

    Args:
        agent_name: Name of that agent.
        tool_context: The call's context; the model does not see it.
    """
    tool_context.actions.transfer_to_agent = agent_name


def as_tool(tool: Callable[..., Any] | FunctionTool) -> FunctionTool:
    """Return a tool as it stands in an agent's `tools`: plain functions are wrapped."""
    return tool if isinstance(tool, FunctionTool) else FunctionTool(tool)


def _local_timeout(where: str, timeout: timedelta | None, heartbeat_timeout: timedelta | None) -> timedelta:
    if heartbeat_timeout is not None:
        raise DefinitionError(
            f"{where}: a local tool has no heartbeats; leave heartbeat_timeout out, or local, if it is to be heard of"
        )
    if timeout is not None and timeout > _MAX_LOCAL_TIMEOUT:
        raise DefinitionError(
            f"{where}: timeout is {timeout!r}, but a session takes nothing else while a local tool runs, so it may have"
            " 1 minute at the most; leave local out"
        )
    return _LOCAL_TIMEOUT if timeout is None else timeout


def _options(
    where: str, timeout: timedelta | None, heartbeat_timeout: timedelta | None, retry: RetryPolicy | None
) -> ToolOptions:
    for name, duration in (("timeout", timeout), ("heartbeat_timeout", heartbeat_timeout)):
        if duration is not None and duration <= timedelta(0):
            raise DefinitionError(f"{where}: {name} is {duration!r}; it must be longer than nothing")
    given: dict[str, Any] = {"timeout": timeout, "heartbeat_timeout": heartbeat_timeout}
    if retry is not None:
        given |= _retry_options(where, retry)
    return ToolOptions(**{name: value for name, value in given.items() if value is not None})


def _retry_options(where: str, retry: RetryPolicy) -> dict[str, Any]:
    # Temporal's own default.
    longest = retry.maximum_interval or retry.initial_interval * 100
    # Temporal would refuse these when the workflow schedules the call, and the workflow would try that for ever.
    if (
        retry.maximum_attempts < 0
        or retry.backoff_coefficient < 1
        or not timedelta(0) < retry.initial_interval <= longest
    ):
        raise DefinitionError(
            f"{where}: {retry!r} cannot be followed; attempts must be at least 0, backoff at least 1, the intervals "
            "longer than nothing, the first at most as long as the longest"
        )
    return {
        "max_attempts": retry.maximum_attempts,
        "initial_interval": retry.initial_interval,
        "backoff": retry.backoff_coefficient,
        "max_interval": longest,
        "non_retryable": tuple(retry.non_retryable_error_types or ()),
    }
