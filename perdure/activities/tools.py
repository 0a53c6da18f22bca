"""Runs an app's tools and functions by one dynamic activity, whose type is the tool's own name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from pydantic import RootModel, ValidationError
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.activities.attempts import handing_in_until, telling
from perdure.activities.claims import ClaimDesk
from perdure.activities.heartbeats import beating
from perdure.activities.journal_cache import JournalCache
from perdure.activities.payload_checks import MAX_LOCAL_BYTES, check_size, not_registered, step_log, told
from perdure.compiler.registry import NotRegistered
from perdure.errors import CredentialError, message_of
from perdure.journal.tool_output import LocalCall, RunTimes, ToolOutput
from perdure.logs import bound
from perdure.messages.kept_results import KEEP_RESULT, KeepResultInput
from perdure.messages.keys import SessionKey
from perdure.messages.rollout import Rollout
from perdure.messages.session import CodeInput, CodeOutput, JournalSlice, ToolInput
from perdure.messages.stretches import FailedStep
from perdure.rules.large_results import MAX_RESULT_BYTES
from perdure.steps.base import Place, Snapshot, StepOutput, StepRefused, Steps, ToolCall, ToolFailed
from perdure.steps.debug_lines import log_call, log_result
from perdure.steps.tool_results import ToolResults
from perdure.telemetry.step import tell

_SHORTEN_SECONDS = 30.0
"""How long to try to keep what is too large for the log beside others."""


class _AnyInput(RootModel[ToolInput | CodeInput]):
    """The activity's argument: a tool call, or a call of a function."""


def _says(left: StepOutput) -> bool:
    return bool(left.events or left.state) or left.returned is not None


def _is_final(error: StepRefused, attempt: int) -> bool:
    most = error.attempts if isinstance(error, ToolFailed) else 1
    return most is not None and attempt >= most


class _Timer:
    """When the function of a call was started."""

    def __init__(self, attempt: int, since: float | None = None) -> None:
        """Begin the n-th attempt of a call; `since`: when the first one began, if that is known."""
        self.started = time.time()
        self.attempt = attempt
        self._since = since

    def start(self) -> None:
        self.started = time.time()

    @property
    def times(self) -> RunTimes:
        """When the function ran; a first start that another attempt made is known by its schedule only."""
        scheduled = activity.info().scheduled_time.timestamp()
        first = self.started if self.attempt == 1 else self._since or scheduled
        return RunTimes(attempt=self.attempt, started=first, ended=time.time())


class ToolActivity:
    """The activity that runs the tools of one app, and the functions of `App(activities=[…])`."""

    def __init__(
        self,
        steps: Steps,
        journals: JournalCache,
        claims: ClaimDesk,
        rollout: Rollout,
        results: ToolResults,
    ) -> None:
        self._steps = steps
        self._results = results
        self._journals = journals
        self._claims = claims
        self._rollout = rollout

    @activity.defn(dynamic=True)
    async def run(self, args: Sequence[RawValue]) -> ToolOutput | CodeOutput:
        """Run one tool call or function.

        Raises:
            ApplicationError: It raised (retried by its policy), is not registered here, or is a function that returned
                no JSON. What a tool returned does not fail it.
        """
        end = handing_in_until()
        kind = activity.info().activity_type
        try:
            call = activity.payload_converter().from_payload(args[0].payload, _AnyInput).root
        except (IndexError, ValidationError, RuntimeError) as error:
            raise ApplicationError(f"activity {kind!r} got no call of Perdure's", non_retryable=True) from error
        attempt = activity.info().attempt + (call.tried if isinstance(call, ToolInput) else 0)
        timer = _Timer(attempt)
        try:
            with beating():
                if isinstance(call, ToolInput):
                    at = _place(call.invocation_id, call.agent, call.branch, call.run, call.scope)
                    return await self._tool(at, call, await self._session(call), end, timer)
                output = await self._function(call)
        except Exception as error:
            times = [] if isinstance(call, CodeInput) else [timer.times]
            self._raise(error, times, attempt=attempt)
        check_size(output, f"the result of {kind!r}")
        return output

    def _raise(self, error: Exception, times: list[RunTimes], *, attempt: int) -> NoReturn:
        """Raise what the workflow is to hear of a failure; where a call of a tool ran, with when."""
        if isinstance(error, NotRegistered):
            raise not_registered(error, self._rollout) from error
        if isinstance(error, StepRefused):
            left = [step_log(error.left)] if isinstance(error, ToolFailed) and _says(error.left) else []
            raise ApplicationError(
                message_of(error), *left, *times, type=error.kind, non_retryable=_is_final(error, attempt)
            ) from error
        raise told(error, *times, non_retryable=isinstance(error, CredentialError)) from error.__cause__

    async def run_beside(
        self, at: Place, call: ToolInput, session: Snapshot, seconds: float, before: FailedStep | None
    ) -> ToolOutput:
        """Run a tool behind a model call, in the activity of that, within so many seconds; it may have failed before.

        Raises:
            ApplicationError: It raised, is not registered here, or has taken too long.
        """
        attempt = before.attempts + 1 if before is not None else 1
        since = before.times.started if before is not None and before.times is not None else None
        timer, limit = _Timer(attempt, since), asyncio.timeout(seconds)
        try:
            async with limit:
                reads = session if call.reads else None
                output = await self._tool(at, call, reads, time.monotonic() + seconds, timer)
            check_size(output, f"the result of {call.tool!r}")
        except Exception as error:
            if limit.expired():
                late = f"the tool has taken more than {seconds:g} s"
                raise ApplicationError(late, timer.times, type="TimeoutError") from error
            self._raise(error, [timer.times], attempt=attempt)
        return output

    async def shorten(self, at: Place, call: ToolInput, output: ToolOutput, length: int) -> ToolOutput:
        """Return an output with so many characters of its result; the whole is kept, if there is a place for it."""
        end = time.monotonic() + _SHORTEN_SECONDS
        return await self._results.shorten(at.key, call.tool, call.idempotency_key, output, length, end)

    async def _function(self, call: CodeInput) -> CodeOutput:
        info = activity.info()
        at = _place(call.invocation_id or "", call.agent or "", call.branch)
        tell("function", at.agent, call.name, invocation_id=at.invocation_id)
        names = {"invocation": call.invocation_id, "agent": call.agent, "tool": call.name}
        with bound(**asdict(at.key), **names), telling("function", activity.info().attempt):
            if call.journal is not None:
                self._journals.offer(info.workflow_id or "", info.workflow_run_id or "", call.journal)
            log_call({**{str(index): arg for index, arg in enumerate(call.args)}, **call.kwargs})
            result = await self._steps.run_function(at, call.name, call.args, call.kwargs)
            log_result(result)
            return CodeOutput(result=result)

    async def _tool(
        self, at: Place, call: ToolInput, session: Snapshot | None, end: float, timer: _Timer
    ) -> ToolOutput:
        tell("tool", at.agent, call.tool, invocation_id=at.invocation_id, call_id=call.function_call_id)
        names = {"invocation": at.invocation_id, "agent": at.agent, "tool": call.tool}
        with bound(**asdict(at.key), **names), telling("tool", timer.attempt):
            log_call(call.args)
            output = await self._step(at, call, session, end, timer)
            log_result(output)
        if activity.info().is_local:
            output = output.model_copy(update={"call": _local_call(call)})
        return output

    async def _step(
        self, at: Place, call: ToolInput, session: Snapshot | None, end: float, timer: _Timer
    ) -> ToolOutput:
        ran = False

        async def begin(at_most_once: bool) -> None:
            nonlocal ran
            if at_most_once:
                await self._claims.claim(call)
            timer.start()
            ran = True

        step = ToolCall(
            id=call.function_call_id,
            tool=call.tool,
            args=call.args,
            key=call.idempotency_key,
            state=await self._state(call, session),
            session=session,
            kind=call.kind,
            confirmation=call.confirmation,
            authorized=call.authorized,
            begin=begin,
            until=end,
            most_bytes=MAX_LOCAL_BYTES if activity.info().is_local else MAX_RESULT_BYTES,
        )
        if call.kind == "reconcile":
            return await self._steps.reconcile(at, step)
        if call.kind == "reminder":
            await self._steps.remind(at, step)
            return ToolOutput()
        output = await self._steps.run_tool(at, step)
        if step.session is not None:
            output = await self._results.bounded(at, step, output)
        return output.model_copy(update={"times": timer.times}) if ran and output.asks is None else output

    async def _session(self, call: ToolInput) -> Snapshot | None:
        if call.journal is None:
            return None
        info = activity.info()
        if not call.reads:
            self._journals.offer(info.workflow_id or "", info.workflow_run_id or "", call.journal)
            return None
        snapshot = await self._journals.at(info.workflow_id or "", info.workflow_run_id or "", call.journal)
        return snapshot.within(call.scope)

    async def _state(self, call: ToolInput, session: Snapshot | None) -> dict[str, Any]:
        if session is not None:
            return session.projection.visible_state(call.invocation_id)
        if call.length is None:
            return call.state or {}
        info = activity.info()
        part = JournalSlice(offset=call.length)
        snapshot = await self._journals.at(info.workflow_id or "", info.workflow_run_id or "", part)
        return snapshot.projection.visible_state(call.invocation_id)

    @activity.defn(name=KEEP_RESULT)
    async def keep_result(self, request: KeepResultInput) -> ToolOutput:
        """Keep a result that is too large together with those of other calls; returns what the model gets of it."""
        end = handing_in_until()
        key = SessionKey.parse(activity.info().workflow_id or "")
        with beating():
            return await self._results.shorten(
                key, request.tool, request.idempotency_key, request.output, request.length, end
            )


def _place(invocation_id: str, agent: str, branch: str | None, run: str = "", scope: tuple[str, ...] = ()) -> Place:
    key = SessionKey.parse(activity.info().workflow_id or "")
    return Place(key, invocation_id, agent, branch, run, scope)


def _local_call(call: ToolInput) -> LocalCall:
    return LocalCall(
        invocation_id=call.invocation_id, call_id=call.function_call_id, confirmed=call.confirmation is not None
    )
