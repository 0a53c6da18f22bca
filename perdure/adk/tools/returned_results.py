"""Keeps what a tool returned, so that it does not run again where a callback or a plugin behind it raised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk.events import actions_of, plain_state
from perdure.adk.session_service import StepSession
from perdure.adk.tools.agent_tools import restore
from perdure.agents.plain_values import NotPlain, to_plain
from perdure.journal.compact_json import payload_size
from perdure.journal.tool_output import ToolOutput

MAX_KEPT_BYTES = 200_000
"""What is kept travels in the error of the step, beside what that says."""

_Run = Callable[..., Awaitable[Any]]


class ToolRun:
    """The run of one call's tool within its step."""

    def __init__(self, call_id: str, kept: ToolOutput | None) -> None:
        """Begin; `kept` is what the tool returned in an earlier step, and is returned in its place."""
        self.call_id = call_id
        self.kept = kept

    async def run(self, tool: BaseTool, run_async: _Run, args: dict[str, Any], context: ToolContext) -> Any:
        """Run the tool, unless it has run."""
        if self.kept is not None:
            # In place: callbacks behind the tool are to see them.
            args.clear()
            args.update(self.kept.callback_args or {})
            restore(context, self.kept.actions)
            return self.kept.result
        result = await run_async(tool, args=args, tool_context=context)
        self.kept = _kept(result, args, context)
        return result


_running: ContextVar[ToolRun | None] = ContextVar("the tool's run of this step", default=None)


@contextmanager
def keeping(tool: BaseTool | None, call_id: str, kept: ToolOutput | None) -> Generator[ToolRun]:
    """Keep what a call's tool returns, or have it return what was kept.

    Args:
        tool: The tool; `None` if there is none of that name.
        call_id: The call.
        kept: What it returned in an earlier step.
    """
    run = ToolRun(call_id, kept)
    if tool is not None:
        _watch(type(tool))
    token = _running.set(run)
    try:
        yield run
    finally:
        _running.reset(token)


def is_watched(run_async: object) -> bool:
    """Return whether a tool's code was put in the place of another by this module."""
    return getattr(run_async, "_keeps_results", False)


def _watch(kind: type[BaseTool]) -> None:
    """Have a class of tools ask first whether the call that runs is to be kept.

    The class, not the tool or a copy: callbacks may ask which object they are given, and what it is.
    """
    run_async: _Run = kind.run_async
    if is_watched(run_async):
        return

    @wraps(run_async)
    async def watched(self: BaseTool, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        run = _running.get()
        if run is None or tool_context.function_call_id != run.call_id:
            return await run_async(self, args=args, tool_context=tool_context)
        # A class above this one may be watched, too.
        token = _running.set(None)
        try:
            return await run.run(self, run_async, args, tool_context)
        finally:
            _running.reset(token)

    setattr(watched, "_keeps_results", True)  # noqa: B010
    setattr(kind, "run_async", watched)  # noqa: B010


def _kept(result: object, args: dict[str, Any], context: ToolContext) -> ToolOutput | None:
    """Return what a tool returned, and set through its context; `None` if that cannot be kept, or it asks a person."""
    actions = context.actions
    if actions.requested_auth_configs or actions.requested_tool_confirmations:
        return None
    try:
        output = ToolOutput(result=to_plain(result), actions=actions_of(actions), callback_args=plain_state(args))
    except NotPlain:
        return None
    return output if payload_size(output) <= MAX_KEPT_BYTES else None


def written(step: StepSession) -> dict[str, Any]:
    """Return what a tool that failed had written into the state, for those beside it: JSON that is not too large."""
    try:
        state = step.written_past_deltas()
    except NotPlain:
        return {}
    return state if payload_size(ToolOutput(state=state)) <= MAX_KEPT_BYTES else {}
