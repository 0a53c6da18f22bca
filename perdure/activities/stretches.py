"""Takes steps of an LLM agent behind its model call, in the same activity: `App.steps_per_activity`.

What has been done is kept before the next step begins, so that a worker's death costs the step that it was at, as
between activities. It ends with whatever is the workflow's to decide, after a number of steps, a time, or a size.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.kept_steps import KeptSteps
from perdure.activities.stretch_log import CallRun, StretchLog, read_by_others, writes
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import Entry
from perdure.journal.tool_output import RunTimes, ToolOutput
from perdure.messages.session import NOT_REGISTERED, ModelInput, ModelOutput, ToolInput
from perdure.messages.step_log import StepLog
from perdure.messages.stretches import BEGIN_WITHIN, FailedStep, Stretch, cut_off
from perdure.plan.contents import types
from perdure.rules.ids import derived_id
from perdure.rules.large_results import fit
from perdure.rules.step_retries import is_final, pause_behind
from perdure.steps.base import Place, Snapshot
from perdure.telemetry.step import behind

_Input = TypeVar("_Input", ModelInput, ToolInput)
_Output = TypeVar("_Output", ModelOutput, ToolOutput)

_MAX_BYTES = 100_000
"""No step begins behind so much that history does not hold."""

_MOST_HELD = 1_000_000
"""So many bytes a heartbeat has of what calls returned whose siblings are at work; Temporal takes two million."""

_MOST_ENTRIES = 3_000
"""In a longer journal each step is by itself: to fold it once more would take as long as some activities."""


class AsksModel(Protocol):
    """Asks an agent's model."""

    async def __call__(self, call: ModelInput, session: Snapshot, attempt: int) -> ModelOutput:
        """Ask it, for the n-th time. Raises `ApplicationError`, as the activity does."""
        ...


StepWatch = Callable[[ModelInput | ToolInput, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
"""Takes a step, by what it is given and the function that takes it."""

watching: ContextVar[StepWatch | None] = ContextVar("watches the steps of an activity", default=None)


class RunsTools(Protocol):
    """Runs tools, and makes what they return fit into the log."""

    async def run_beside(
        self, at: Place, call: ToolInput, session: Snapshot, seconds: float, before: FailedStep | None
    ) -> ToolOutput:
        """Run a tool within so many seconds; it may have failed before. Raises `ApplicationError`, as its activity."""
        ...

    async def shorten(self, at: Place, call: ToolInput, output: ToolOutput, length: int) -> ToolOutput:
        """Return an output with so many characters of its result."""
        ...


class Stretches:
    """Takes the steps of an agent, one behind the other."""

    def __init__(
        self,
        at: Place,
        ask: AsksModel,
        prepare: Callable[[ModelInput, Snapshot], None],
        tools: RunsTools,
        kept: KeptSteps,
    ) -> None:
        """Take them by what an activity has at hand; `prepare` does what a model call needs that is no step yet."""
        self._at = at
        self._ask = ask
        self._prepare = prepare
        self._tools = tools
        self._kept = kept
        self._goes_on = False
        """What the first step came to is kept, or was to be."""
        self._failed: dict[str | None, FailedStep] = {}
        """Steps that failed, by the tool's call; `None` is the model's."""
        self._held: list[Entry] = []
        """Of calls that have returned, and whose siblings are at work."""
        self._at_work: set[str] = set()
        """Calls whose tools run now, by id."""
        self._steps = 1
        self._took = ["model"]
        """What was done since the last step that is kept, by its name."""
        self._entries_kept = 0
        """Of what the stretch has added."""
        self._until = math.inf
        """When no step begins any more, by `time.monotonic`."""

    async def run(self, call: ModelInput, session: Snapshot, attempt: int) -> ModelOutput:
        """Ask the agent's model, and go on as long as there is nothing for the workflow to decide.

        Args:
            call: The model call with which it begins.
            session: The session as it was when the activity was scheduled.
            attempt: Which attempt of the call it is.

        Raises:
            ApplicationError: The first model call failed. What fails behind it is handed to the workflow.
        """
        first = await _watched(call, partial(self._ask, session=session, attempt=attempt))
        if not _may_go_on(call, first) or len(session.projection.entries) > _MOST_ENTRIES:
            return first
        info = activity.info()
        log = StretchLog(call, session.projection, f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}")
        log.answered(call, first, time.time())
        last = await self._go_on(log, session, call.steps)
        if not self._goes_on:
            return first
        done = Stretch(steps=self._steps, entries=log.entries, failed=tuple(self._failed.values()))
        return (last or ModelOutput()).model_copy(update={"before": done})

    async def _keep(self, log: StretchLog, ahead: ModelInput | Sequence[CallRun], session: Snapshot) -> None:
        """Return when all is kept that was done so far, and what comes then; or the activity is to end.

        Meanwhile what a model call needs is made of the log.
        """
        id = answer_id(ahead) if isinstance(ahead, ModelInput) else None
        entries = log.entries
        new, self._entries_kept = entries[self._entries_kept :], len(entries)
        took, self._took = tuple(self._took), []
        keeping = self._kept.keep(Stretch(steps=self._steps, took=took, entries=new, next_answer_id=id))
        await (asyncio.gather(keeping, self._prepared(ahead, session)) if isinstance(ahead, ModelInput) else keeping)

    async def _prepared(self, ahead: ModelInput, session: Snapshot) -> None:
        self._prepare(ahead, session)

    async def _go_on(self, log: StretchLog, session: Snapshot, most: int) -> ModelOutput | None:
        """Take further steps; returns an answer of the model that is the workflow's to log."""
        snapshot, self._until = Snapshot(log.projection, session.memo.beside()), time.monotonic() + BEGIN_WITHIN
        while self._steps < most and log.size <= _MAX_BYTES and not self._is_over():
            ahead = log.ahead()
            if not ahead:
                return None
            try:
                # From here on it may be shown, under these ids.
                self._goes_on = True
                await self._keep(log, ahead, snapshot)
                if self._is_over():
                    return None
                if isinstance(ahead, ModelInput):
                    answer = await self._ask_again(ahead, snapshot)
                    if answer is None or not _may_go_on(ahead, answer):
                        return answer
                    log.answered(ahead, answer, time.time())
                elif not await self._run_tools(log, ahead, snapshot):
                    return None
            except asyncio.CancelledError:
                if not _hands_over():
                    raise
                if isinstance(ahead, ModelInput) and not _is_stopped():
                    self._failed[None] = cut_off(answer_id(ahead))
                return None
        return None

    def _ends(self) -> bool:
        """Return whether nothing may begin: the activity or its worker ends, or nothing more can be kept."""
        return self._kept.ends.is_set() or activity.is_cancelled() or activity.is_worker_shutdown()

    def _is_over(self) -> bool:
        """Return whether no step may begin: for the same reasons, or since its time is over."""
        return self._ends() or time.monotonic() >= self._until

    async def _ask_again(self, call: ModelInput, session: Snapshot) -> ModelOutput | None:
        try:
            with behind():
                answer = await _watched(call, partial(self._ask, session=session, attempt=1))
        except ApplicationError as error:
            self._fail(error, None, 1, answer_id(call))
            return None
        self._steps += 1
        self._took.append("model")
        return answer

    async def _run_tools(self, log: StretchLog, runs: Sequence[CallRun], session: Snapshot) -> bool:
        """Run the tools of an answer's calls; returns whether the workflow need decide nothing."""
        tasks: dict[str, asyncio.Task[ToolOutput]] = {}
        self._held = []
        with suppress(asyncio.CancelledError):
            # A stop cancels what runs, yet what finishes all the same must not be lost.
            for group in log.begun_together(runs):
                if tasks and (self._is_over() or not _may_go_on_behind(tasks.values())):
                    # What begins behind it, and sees what of it, the workflow knows.
                    break
                for run in group:
                    one = self._run_one(log, run, session, tasks, is_only=len(runs) == 1)
                    tasks[run.id] = asyncio.create_task(one)
                await asyncio.gather(*tasks.values(), return_exceptions=True)
        outputs: dict[str, ToolOutput] = {}
        for call_id, task in tasks.items():
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, ApplicationError):
                raise error
            if error is None and not task.cancelled():
                outputs[call_id] = task.result()
        self._steps += len(outputs)
        self._took += [run.tool.name for run in runs if run.id in outputs]
        with suppress(asyncio.CancelledError):
            # As they are, their workflow can log them, too.
            await self._fit(log, runs, outputs)
        usual = log.returned(runs, outputs, time.time())
        if activity.is_cancelled() and not _hands_over() and not outputs:
            raise asyncio.CancelledError
        return usual and not activity.is_cancelled()

    async def _run_one(
        self,
        log: StretchLog,
        run: CallRun,
        session: Snapshot,
        tasks: Mapping[str, asyncio.Task[ToolOutput]],
        *,
        is_only: bool,
    ) -> ToolOutput:
        """Run a call's tool, again if it fails while others are at work; what comes of it is kept at once beside them.

        Raises:
            ApplicationError: It failed, and is not tried again, or it is the workflow that does so.
        """
        options, failed = run.tool.options, None
        while True:
            self._at_work.add(run.id)
            try:
                output = log.settled(run, await self._run_tool(run, session, failed))
            except ApplicationError as error:
                self._at_work.discard(run.id)
                failed = self._fail(error, run.id, failed.attempts + 1 if failed is not None else 1)
                others = [tasks[id] for id in self._at_work]
                if others:
                    await self._keep_for_now()
                pause = pause_behind(failed, options) if failed is not None else 0.0
                if failed is None or is_final(failed, options) or time.monotonic() + pause >= self._until:
                    raise
                if others:
                    await asyncio.wait(others, timeout=pause)
                if not self._at_work or self._is_over():
                    raise
                continue
            finally:
                self._at_work.discard(run.id)
            self._failed.pop(run.id, None)
            new = [] if is_only else log.kept(run.id, output)
            if new and sum(map(payload_size, (*self._held, *new))) <= _MOST_HELD:
                self._held.extend(new)
                await self._keep_for_now()
            return output

    async def _keep_for_now(self) -> None:
        """Keep what has come of some calls of an answer, until all of it is logged."""
        held = Stretch(steps=self._steps, entries=tuple(self._held), failed=tuple(self._failed.values()))
        await self._kept.keep_for_now(held)

    async def _run_tool(self, run: CallRun, session: Snapshot, before: FailedStep | None) -> ToolOutput:
        seconds = run.tool.options.timeout.total_seconds()
        with behind():
            take = partial(self._tools.run_beside, self._at, session=session, seconds=seconds, before=before)
            return await _watched(run.request, take)

    async def _fit(self, log: StretchLog, runs: Sequence[CallRun], outputs: dict[str, ToolOutput]) -> None:
        """Shorten the largest outputs, in place, until one event takes them all."""
        requests = {run.id: run.request for run in runs}

        async def shorten(call: types.FunctionCall, output: ToolOutput, length: int) -> ToolOutput:
            return await self._tools.shorten(self._at, requests[call.id or ""], output, length)

        def keep(_call_id: str, _output: ToolOutput) -> None:
            """Leave it to the log, which is told of all of them."""

        calls, times = [run.call for run in runs if run.id in outputs], {id: out.times for id, out in outputs.items()}
        await fit(calls, outputs, frozenset(), log.blank, shorten, keep)
        outputs.update({id: output.model_copy(update={"times": times[id]}) for id, output in outputs.items()})

    def _fail(
        self, error: ApplicationError, call_id: str | None, attempts: int, answer_id: str | None = None
    ) -> FailedStep | None:
        if error.type == NOT_REGISTERED:
            # Another worker may have the code: the workflow looks for one.
            self._failed.pop(call_id, None)
            return None
        pause = error.next_retry_delay
        failed = self._failed[call_id] = FailedStep(
            call_id=call_id,
            attempts=attempts,
            answer_id=answer_id,
            error_type=error.type,
            message=error.message,
            left=next((detail for detail in error.details if isinstance(detail, StepLog)), None),
            times=next((detail for detail in error.details if isinstance(detail, RunTimes)), None),
            non_retryable=error.non_retryable,
            pause=pause.total_seconds() if pause is not None else None,
        )
        return failed


def answer_id(call: ModelInput) -> str:
    """Return the id of the event of a model call's answer where it is streamed: the same in each attempt of it."""
    # The workflow would draw an id, but only when the answer is complete; one that is proposed it takes.
    info = activity.info()
    return call.answer_id or derived_id(info.workflow_run_id or "", "answer", info.activity_id, call.call_index)


def _is_stopped() -> bool:
    """Return whether the activity is cancelled since its workflow, or an operator, wants it to end."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def _hands_over() -> bool:
    """Return whether a cancelled activity is to give what it has: it is to end, or its worker does."""
    details = activity.cancellation_details()
    return details is not None and (details.cancel_requested or details.worker_shutdown)


def _may_go_on_behind(ended: Collection[asyncio.Task[ToolOutput]]) -> bool:
    """Return whether calls that have ended are kept, and say nothing to the calls that begin behind them."""
    if any(task.cancelled() or task.exception() is not None for task in ended):
        return False
    outputs = [task.result() for task in ended]
    return sum(map(payload_size, outputs)) <= _MAX_BYTES and not any(map(writes, outputs))


async def _watched(call: _Input, take: Callable[[_Input], Awaitable[_Output]]) -> _Output:
    watch = watching.get()
    return await (watch(call, take) if watch is not None else take(call))


def _may_go_on(call: ModelInput, output: ModelOutput) -> bool:
    """Return whether steps may be taken behind a model's answer: it calls, ends nothing, concerns nobody else."""
    ends = output.step is not None and (output.step.ended or len(output.step.events) != 1)
    answer = output.answer
    return bool(answer.get_function_calls()) and not ends and not read_by_others(call, answer.actions.state_delta)
