"""Tool calls and functions: binds what a model gave, runs the user's code, and makes an output of what it returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from pydantic import validate_call

from perdure.agents.agent_tool import AgentTool
from perdure.agents.artifacts import SessionArtifacts
from perdure.agents.plain_values import NotPlain, to_plain
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from perdure.artifacts.service import ArtifactService
from perdure.compiler.registry import NotRegistered, Registry
from perdure.errors import ArtifactError, InvalidArguments
from perdure.journal.tool_output import ToolOutput
from perdure.logs import get_logger
from perdure.plan.nodes import SET_MODEL_RESPONSE
from perdure.rules.in_doubt import Reconciled
from perdure.steps.agent_tools import AgentToolCalls
from perdure.steps.base import Place, StepRefused, ToolCall
from perdure.steps.structured_answers import AnswerCalls
from perdure.steps.tool_results import ToolResults
from perdure.steps.user_code import CodeRunner

_log = get_logger("perdure.worker")


class ToolCalls:
    """Runs the tools of one app, and the functions of `App(activities=[…])`."""

    def __init__(
        self, registry: Registry, code: CodeRunner, results: ToolResults, artifacts: ArtifactService | None
    ) -> None:
        self._registry = registry
        self._code = code
        self._results = results
        self._artifacts = artifacts
        self._agents = AgentToolCalls(code)
        self._answers = AnswerCalls(registry, code)

    async def run(self, at: Place, call: ToolCall) -> ToolOutput:
        """Run a tool's function, as `Steps.run_tool` says."""
        if call.tool == SET_MODEL_RESPONSE and (answered := await self._answers.run(at, call)) is not None:
            return await self._results.bounded(at, call, answered)
        tool = self._registry.tool(at.agent, call.tool)
        if isinstance(tool, AgentTool):
            return await self._results.bounded(at, call, await self._agents.run(at, call, tool))
        context = self._context(at, call)
        try:
            kwargs = await self._bind(tool, call, context)
            if call.confirmation is None and await self._must_ask(tool, call, context):
                return ToolOutput(needs_confirmation=True)
        except InvalidArguments as error:
            return await self._results.bounded(at, call, ToolOutput(result=error.result))
        await call.begin(tool.at_most_once)
        result = await self._code.run(tool.fn, **kwargs)
        return await self._results.output(at, call, result, context)

    async def remind(self, at: Place, call: ToolCall) -> None:
        """Run a long-running tool's reminder, as `Steps.remind` says."""
        tool = self._registry.tool(at.agent, call.tool)
        reminder = tool.reminder if isinstance(tool, LongRunningFunctionTool) else None
        if reminder is None:
            raise NotRegistered(f"tool {call.tool!r} has no reminder here; deploy the code that has it")
        context = self._context(at, call)
        kwargs = await self._code.run(tool.bind_other, reminder, call.args, context)
        await self._code.run(reminder, **kwargs)
        try:
            context.check_artifacts_saved()
        except ArtifactError:
            # It has reminded: it is not to do so again.
            _log.warning("reminder saved no artifact", tool=call.tool, remedy="await save_artifact(…)")

    async def reconcile(self, at: Place, call: ToolCall) -> ToolOutput:
        """Ask a tool's `reconcile` function what became of a call, as `Steps.reconcile` says."""
        tool = self._registry.tool(at.agent, call.tool)
        if tool.reconcile is None:
            raise NotRegistered(f"tool {call.tool!r} has no reconcile function here; deploy the code that has it")
        context = self._context(at, call)
        kwargs = await self._code.run(tool.bind_other, tool.reconcile, call.args, context)
        found = await self._code.run(tool.reconcile, **kwargs)
        if found is None:
            return ToolOutput()
        if not isinstance(found, Reconciled):
            raise StepRefused(
                "DefinitionError",
                f"reconcile of tool {call.tool!r} returned {type(found).__name__}; return Reconciled(…), or None if it"
                " cannot tell",
            )
        happened = bool(found.happened)

        def wrapped(result: Any) -> dict[str, Any]:
            return {"happened": happened, "result": result}

        return await self._results.output(at, call, found.result, context, wrapped=wrapped)

    async def function(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a function of `App(activities=[…])`, as `Steps.run_function` says."""
        fn = self._registry.activity(name)
        # Arguments arrive as JSON; the function's annotations say what they were.
        checked = validate_call(config={"arbitrary_types_allowed": True})(fn)
        result = await self._code.run(checked, *args, **kwargs)
        return await self._code.run(_plain, name, result)

    async def _bind(self, tool: FunctionTool, call: ToolCall, context: ToolContext) -> dict[str, Any]:
        if not tool.binding_may_run_users_code:
            return tool.bind(call.args, context)
        # In a thread: a type's own validators are code of the user's.
        return await self._code.run(tool.bind, call.args, context)

    async def _must_ask(self, tool: FunctionTool, call: ToolCall, context: ToolContext) -> bool:
        if not callable(tool.require_confirmation):
            return tool.require_confirmation
        return await self._code.run(tool.requires_confirmation, call.args, context)

    def _context(self, at: Place, call: ToolCall) -> ToolContext:
        return ToolContext(
            state=call.state,
            function_call_id=call.id,
            invocation_id=at.invocation_id,
            agent_name=at.agent,
            app_name=at.key.app,
            user_id=at.key.user,
            session_id=at.key.session,
            idempotency_key=call.key,
            tool_confirmation=call.confirmation,
            artifacts=SessionArtifacts(
                self._artifacts, *astuple(at.key), wait=self._code.wait, key=_artifact_key(call)
            ),
        )


def _artifact_key(call: ToolCall) -> str:
    """Return the key of a run's saves: a tool's other functions, and its run after an approval, save anew."""
    return f"{call.key}:{call.kind}{':confirmed' if call.confirmation is not None else ''}"


def _plain(name: str, result: Any) -> Any:
    try:
        return to_plain(result)
    except NotPlain as error:
        raise StepRefused("NotJson", f"{name} has run, but its result cannot be kept: {error}") from error
