"""Runs an app's tools and functions by one dynamic activity, whose type is the tool's own name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pydantic import RootModel, ValidationError, validate_call
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.activities.claims import ClaimDesk
from perdure.activities.journal_cache import JournalCache
from perdure.activities.payload_checks import check_size, not_registered, told
from perdure.activities.results import ToolResults, handing_in_until
from perdure.activities.user_code import CodeRunner, telling
from perdure.agents.artifacts import SessionArtifacts
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from perdure.artifacts.service import ArtifactService
from perdure.compiler.registry import NotRegistered, Registry
from perdure.errors import ArtifactError, InvalidArguments
from perdure.journal.tool_output import LocalCall, RunTimes, ToolOutput
from perdure.logs import bound, get_logger
from perdure.messages.rollout import Rollout
from perdure.messages.session import CodeInput, CodeOutput, JournalSlice, ToolInput, split_workflow_id
from perdure.rules.in_doubt import Reconciled
from perdure.steps.plain_values import NotPlain, to_plain
from perdure.telemetry.step import tell

_log = get_logger("perdure.worker")


class _AnyInput(RootModel[ToolInput | CodeInput]):
    """The activity's argument: a tool call, or a call of a function."""


class ToolActivity:
    """The activity that runs the tools of one app, and the functions of `App(activities=[…])`."""

    def __init__(
        self,
        registry: Registry,
        journals: JournalCache,
        claims: ClaimDesk,
        code: CodeRunner,
        rollout: Rollout,
        results: ToolResults,
        artifacts: ArtifactService | None = None,
    ) -> None:
        self._registry = registry
        self._artifacts = artifacts
        self._results = results
        self._journals = journals
        self._claims = claims
        self._code = code
        self._rollout = rollout

    @activity.defn(dynamic=True)
    async def run(self, args: Sequence[RawValue]) -> ToolOutput | CodeOutput:
        """Run one tool call or function.

        Raises:
            ApplicationError: It raised (retried by its policy), is not registered here, or is a function that returned
                no JSON. What a tool returned does not fail it.
        """
        end = handing_in_until()
        info = activity.info()
        kind = info.activity_type
        try:
            call = activity.payload_converter().from_payload(args[0].payload, _AnyInput).root
        except (IndexError, ValidationError, RuntimeError) as error:
            raise ApplicationError(f"activity {kind!r} got no call of Perdure's", non_retryable=True) from error
        started = time.time()
        try:
            output = await self._call(call, end)
        except NotRegistered as error:
            raise not_registered(error, self._rollout) from error
        except Exception as error:
            # Where a call of a tool ran and failed, the session notes when.
            times = [] if isinstance(call, CodeInput) else [_times(started)]
            raise told(error, *times) from error.__cause__
        if isinstance(call, CodeInput) or isinstance(output, CodeOutput):
            check_size(output, f"the result of {kind!r}")
            return output
        if activity.info().is_local:
            output = output.model_copy(update={"call": _local_call(call)})
        return output

    async def _call(self, call: ToolInput | CodeInput, end: float) -> ToolOutput | CodeOutput:
        app, user, session = split_workflow_id(activity.info().workflow_id or "")
        if isinstance(call, CodeInput):
            tell("function", call.agent or "", call.name, invocation_id=call.invocation_id or "")
            names = {"invocation": call.invocation_id, "agent": call.agent, "tool": call.name}
            with bound(app=app, user=user, session=session, **names), telling("function"):
                return await self._function(call)
        tell("tool", call.agent, call.tool, invocation_id=call.invocation_id, call_id=call.function_call_id)
        names = {"invocation": call.invocation_id, "agent": call.agent, "tool": call.tool}
        with bound(app=app, user=user, session=session, **names), telling("tool"):
            return await self._tool(call, end)

    async def _tool(self, call: ToolInput, end: float) -> ToolOutput:
        tool = self._registry.tool(call.agent, call.tool)
        context = await self._context(call)
        if call.kind == "reconcile":
            return await self._reconcile(tool, call, context, end)
        if call.kind == "reminder":
            return await self._remind(tool, call, context)
        started = time.time()
        try:
            # In a thread: a type's own validators are code of the user's.
            kwargs = await self._code.run(tool.bind, call.args, context)
            if call.confirmation is None and await self._must_ask(tool, call, context):
                return ToolOutput(needs_confirmation=True)
        except InvalidArguments as error:
            return await self._results.bounded(call.tool, call.idempotency_key, ToolOutput(result=error.result), end)
        if tool.at_most_once:
            await self._claims.claim(call)
        result = await self._code.run(tool.fn, **kwargs)
        return await self._results.output(
            call.tool, call.idempotency_key, result, context, end=end, times=_times(started)
        )

    async def _remind(self, tool: FunctionTool, call: ToolInput, context: ToolContext) -> ToolOutput:
        reminder = tool.reminder if isinstance(tool, LongRunningFunctionTool) else None
        if reminder is None:
            raise NotRegistered(f"tool {call.tool!r} has no reminder here; deploy the code that has it")
        kwargs = await self._code.run(tool.bind_other, reminder, call.args, context)
        await self._code.run(reminder, **kwargs)
        try:
            context.check_artifacts_saved()
        except ArtifactError:
            # It has reminded: it is not to do so again.
            _log.warning("reminder saved no artifact", tool=call.tool, remedy="await save_artifact(…)")
        return ToolOutput()

    async def _reconcile(self, tool: FunctionTool, call: ToolInput, context: ToolContext, end: float) -> ToolOutput:
        if tool.reconcile is None:
            raise NotRegistered(f"tool {call.tool!r} has no reconcile function here; deploy the code that has it")
        kwargs = await self._code.run(tool.bind_other, tool.reconcile, call.args, context)
        found = await self._code.run(tool.reconcile, **kwargs)
        if found is None:
            return ToolOutput()
        if not isinstance(found, Reconciled):
            raise ApplicationError(
                f"reconcile of tool {call.tool!r} returned {type(found).__name__}; return Reconciled(…), or None if it"
                " cannot tell",
                type="DefinitionError",
                non_retryable=True,
            )
        happened = bool(found.happened)
        return await self._results.output(
            call.tool,
            call.idempotency_key,
            found.result,
            context,
            end=end,
            wrapped=lambda result: {"happened": happened, "result": result},
        )

    async def _must_ask(self, tool: FunctionTool, call: ToolInput, context: ToolContext) -> bool:
        if not callable(tool.require_confirmation):
            return tool.require_confirmation
        return await self._code.run(tool.requires_confirmation, call.args, context)

    async def _context(self, call: ToolInput) -> ToolContext:
        info = activity.info()
        workflow_id = info.workflow_id or ""
        state: dict[str, Any] = call.state or {}
        if call.length is not None:
            part = JournalSlice(offset=call.length)
            snapshot = await self._journals.at(workflow_id, info.workflow_run_id or "", part)
            state = snapshot.projection.visible_state(call.invocation_id)
        app_name, user_id, session_id = split_workflow_id(workflow_id)
        return ToolContext(
            state=state,
            function_call_id=call.function_call_id,
            invocation_id=call.invocation_id,
            agent_name=call.agent,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            idempotency_key=call.idempotency_key,
            tool_confirmation=call.confirmation,
            artifacts=SessionArtifacts(
                self._artifacts, app_name, user_id, session_id, wait=self._code.wait, key=_artifact_key(call)
            ),
        )

    async def _function(self, call: CodeInput) -> CodeOutput:
        info = activity.info()
        if call.journal is not None:
            self._journals.offer(info.workflow_id or "", info.workflow_run_id or "", call.journal)
        fn = self._registry.activity(call.name)
        # Arguments arrive as JSON; the function's annotations say what they were.
        checked = validate_call(config={"arbitrary_types_allowed": True})(fn)
        result = await self._code.run(checked, *call.args, **call.kwargs)
        return await self._code.run(_returned, call.name, result)


def _artifact_key(call: ToolInput) -> str:
    """Return the key of a run's saves: a tool's other functions, and its run after an approval, save anew."""
    return f"{call.idempotency_key}:{call.kind}{':confirmed' if call.confirmation is not None else ''}"


def _local_call(call: ToolInput) -> LocalCall:
    return LocalCall(
        invocation_id=call.invocation_id, call_id=call.function_call_id, confirmed=call.confirmation is not None
    )


def _times(started: float) -> RunTimes:
    """Return when the function ran; a first start that another attempt made is known by its schedule only."""
    info = activity.info()
    first = started if info.attempt == 1 else info.scheduled_time.timestamp()
    return RunTimes(attempt=info.attempt, started=first, ended=time.time())


def _returned(name: str, result: Any) -> CodeOutput:
    try:
        return CodeOutput(result=to_plain(result))
    except NotPlain as error:
        raise ApplicationError(
            f"{name} has run, but its result cannot be kept: {error}", type="NotJson", non_retryable=True
        ) from error
