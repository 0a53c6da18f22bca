"""`FunctionTool`, `LongRunningFunctionTool`, and the built-in tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar, Literal

from google.genai import types

from perdure.agents.context import State, ToolActions, ToolContext
from perdure.agents.deadlines import check_reminder, plan_expiry
from perdure.agents.expiry import OnExpiry
from perdure.agents.retries import RetryPolicy
from perdure.agents.signature import (
    Interest,
    Signature,
    convert,
    declare,
    function_doc,
    function_name,
    is_async,
    read_interest,
    read_signature,
    schema_of,
)
from perdure.errors import DefinitionError
from perdure.plan.nodes import ToolOptions, ToolPlan

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


_DEFAULT_OPTIONS = ToolOptions()


class FunctionTool:
    """A function that a model may call, declared from its signature and docstring. ADK: `tools/function_tool.py`.

    Its calls run as activities, at least once each, or at most once; as local activities with `local`, which suits
    quick tools.
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
        at_most_once: bool = False,
        reconcile: Callable[..., Any] | None = None,
        local: bool = False,
        on_failure: Literal["fail", "tell_model"] = "fail",
    ) -> None:
        """Wrap a function.

        Args:
            func: Sync (it runs in a thread) or async (it runs on a loop of its own).
            require_confirmation: Whether a person must approve each call; or a function that takes the tool's
                arguments and says so.
            timeout: Time of one attempt. Default: 10 minutes; 10 s if `local`, and 1 minute at the most.
            heartbeat_timeout: How long a silent worker counts as alive; a stop reaches the tool within 0.6 of it.
                Default: 3.5 s, or as the worker says.
            retry: How a call that raised is tried again. Default: 3 attempts, after 0.5 s and 1 s; one `at_most_once`.
            at_most_once: Never start a call a second time without a person's word. One that was cut off, or raised, is
                *in doubt*: a person is asked what became of it, by a long-running call of `perdure_reconcile`.
            reconcile: Asked first about a call in doubt: a function that takes of the tool's arguments those that it
                wants, by name, and a `ToolContext` if it likes. It returns a `Reconciled`, or `None` if it cannot tell.
                It may run several times.
            local: Run in the worker that has the session, as a local activity: recorded and retried like any other,
                without a round trip, but the session takes nothing else meanwhile, a stop included.
            on_failure: What happens when the last attempt has failed. `"fail"`: the invocation fails, and its resume
                runs the tool again. `"tell_model"`: the model is told, and the run goes on; a call `at_most_once` is
                in doubt first.

        Raises:
            DefinitionError: A duration is not positive, the predicate is async, an `at_most_once` tool has retries or
                is `local`, another one has a `reconcile`, `local` goes with a heartbeat or a timeout of more than a
                minute, or `on_failure` is something else.
        """
        self.fn = func
        self.name = function_name(func)
        self.require_confirmation = require_confirmation
        where = f"tool {self.name!r}"
        self.local = local
        if local:
            timeout = _local_timeout(where, timeout, heartbeat_timeout)
        self.options = activity_options(where, timeout, retry, heartbeat_timeout=heartbeat_timeout)
        self.at_most_once = at_most_once
        if on_failure not in ("fail", "tell_model"):
            raise DefinitionError(f"{where}: on_failure is {on_failure!r}; it is 'fail' or 'tell_model'")
        self.on_failure: Literal["fail", "tell_model"] = on_failure
        self.reconcile = reconcile
        self._check_once(where, retry)
        if callable(require_confirmation) and is_async(require_confirmation):
            raise DefinitionError(f"{where}: require_confirmation must be a plain function, not an async one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    def _check_once(self, where: str, retry: RetryPolicy | None) -> None:
        if not self.at_most_once:
            if self.reconcile is not None:
                raise DefinitionError(f"{where}: reconcile is for a tool that runs at most once; set at_most_once=True")
            return
        if retry is not None and retry.maximum_attempts != 1:
            raise DefinitionError(
                f"{where}: at_most_once allows one attempt, and its retry policy has {retry.maximum_attempts} (0 is "
                "without limit); leave retry out, or set maximum_attempts=1"
            )
        if self.local:
            # The attempt of a local activity stands in no history until it is over.
            raise DefinitionError(f"{where}: a local tool runs at least once; leave out local, or at_most_once")
        self.options = self.options.model_copy(update={"max_attempts": 1})

    @cached_property
    def signature(self) -> Signature:
        """The function's signature. Raises `DefinitionError` if it cannot be declared."""
        return read_signature(self.fn, f"tool {self.name!r}")

    @cached_property
    def _predicate(self) -> Interest | None:
        predicate = self.require_confirmation
        return self._interest_of(predicate, "require_confirmation") if callable(predicate) else None

    @property
    def description(self) -> str:
        """The tool's description for the model: the function's docstring."""
        return function_doc(self.fn)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_async(self.fn)

    @property
    def needs_context(self) -> bool:
        """Whether the function, or another one that is run for it, takes a `ToolContext`."""
        others = (self._predicate, *map(self._interest_of, self._others()))
        return self.signature.context is not None or any(other and other.context for other in others)

    @property
    def binding_may_run_users_code(self) -> bool:
        """Whether `bind` may run code of the user's, which may take time."""
        own = type(self).bind is not FunctionTool.bind or "bind" in vars(self)
        return own or self.signature.may_run_users_code

    def _others(self) -> tuple[Callable[..., Any], ...]:
        """Return the functions that run beside the tool's own."""
        return (self.reconcile,) if self.reconcile is not None else ()

    def _interest_of(self, function: Callable[..., Any], name: str | None = None) -> Interest:
        return read_interest(function, f"tool {self.name!r}, {name or function_name(function)}", self.signature)

    @property
    def declaration(self) -> types.FunctionDeclaration:
        """The tool's declaration for the model. Raises `DefinitionError` if it cannot be declared."""
        return declare(self.name, self.description, self.signature.arguments)

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
            at_most_once=self.at_most_once,
            reconcile=self.reconcile is not None,
            local=self.local,
            on_failure=self.on_failure,
        )

    def bind(self, args: Mapping[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments for `fn`, made from the model's arguments.

        Args that the function does not take are dropped, and the others converted by their annotations; defaults are
        filled in.

        Raises:
            InvalidArguments: A mandatory one is missing or one does not fit; its `result` is the tool's result.
        """
        values = convert(self.signature, args, self.name)
        if self.signature.context is not None:
            values[self.signature.context] = tool_context
        return values

    def requires_confirmation(self, args: Mapping[str, Any], tool_context: ToolContext) -> bool:
        """Return whether a person must approve this call; runs the predicate, if there is one.

        Raises:
            InvalidArguments: As for `bind`.
        """
        predicate, interest = self.require_confirmation, self._predicate
        if isinstance(predicate, bool) or interest is None:
            return bool(predicate)
        return bool(predicate(**interest.of(convert(self.signature, args, self.name), tool_context)))

    def bind_other(
        self, function: Callable[..., Any], args: Mapping[str, Any], tool_context: ToolContext
    ) -> dict[str, Any]:
        """Return the keyword arguments for a function beside the tool's own: those of the tool that it takes.

        Raises:
            InvalidArguments: As for `bind`.
        """
        return self._interest_of(function).of(convert(self.signature, args, self.name), tool_context)

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
        expires_in: timedelta | None = None,
        on_expiry: OnExpiry | None = None,
        remind_in: timedelta | None = None,
        reminder: Callable[..., Any] | None = None,
        response: Any = None,
        on_failure: Literal["fail", "tell_model"] = "fail",
    ) -> None:
        """Wrap a function; the arguments not listed here are those of `FunctionTool`.

        Args:
            func: The function.
            timeout: As for `FunctionTool`.
            heartbeat_timeout: As for `FunctionTool`.
            retry: As for `FunctionTool`.
            expires_in: Time from the call to the deadline of its answer; the app must be resumable. Default: none.
            on_expiry: What happens at the deadline: `AnswerWith`, `AnswerError` or `FailInvocation`. Default: an
                `AnswerError` that says that nobody answered.
            remind_in: Time from the call to its reminder, if the call is still open then.
            response: The type of the answer: a pydantic model, a TypedDict, `bool`, `Literal[…]`. Forms ask for its
                fields; the session takes other answers, too. Default: any JSON.
            reminder: The function to be run then, once, as an activity: it takes of the tool's arguments those that it
                wants, by name, and a `ToolContext` if it likes. If it fails, that is logged, and nothing else happens.
            on_failure: As for `FunctionTool`; told of a failure, the model waits for no person.

        Raises:
            DefinitionError: A duration is not positive, the reminder is not before the deadline, one of two that belong
                together is missing, the value of `AnswerWith` is no JSON, or `response` has no JSON schema.
        """
        super().__init__(func, timeout=timeout, heartbeat_timeout=heartbeat_timeout, retry=retry, on_failure=on_failure)
        self.reminder = reminder
        self._remind_in = remind_in
        self._response_schema = None if response is None else schema_of(response, f"tool {self.name!r}")
        self._expiry = plan_expiry(f"tool {self.name!r}", expires_in, on_expiry)
        check_reminder(f"tool {self.name!r}", expires_in, remind_in, reminder)

    def plan(self) -> ToolPlan:
        """Return the tool as a plan holds it; raises as `FunctionTool.plan` does."""
        declared = {"expiry": self._expiry, "remind_in": self._remind_in, "response_schema": self._response_schema}
        return super().plan().model_copy(update=declared)

    def _others(self) -> tuple[Callable[..., Any], ...]:
        return (self.reminder,) if self.reminder is not None else ()

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


def activity_options(
    where: str,
    timeout: timedelta | None,
    retry: RetryPolicy | None,
    *,
    heartbeat_timeout: timedelta | None = None,
    default: ToolOptions = _DEFAULT_OPTIONS,
) -> ToolOptions:
    """Return how an activity runs: as given, and else as by default.

    Raises:
        DefinitionError: Temporal would refuse it.
    """
    for name, duration in (("timeout", timeout), ("heartbeat_timeout", heartbeat_timeout)):
        if duration is not None and duration <= timedelta(0):
            raise DefinitionError(f"{where}: {name} is {duration!r}; it must be longer than nothing")
    given: dict[str, Any] = {"timeout": timeout, "heartbeat_timeout": heartbeat_timeout}
    if retry is not None:
        given |= _retry_options(where, retry)
    return default.model_copy(update={name: value for name, value in given.items() if value is not None})


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
