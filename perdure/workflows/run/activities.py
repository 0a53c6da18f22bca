"""Schedules activities, as no other module does: timeouts, retries, summaries, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

from perdure.errors import EffectFailed
from perdure.journal.entries import ToolOutput
from perdure.messages.callbacks import CALL_BACK, CALLBACK_NAMES, CallbackInput
from perdure.messages.kept_results import KEEP_RESULT, KeepResultInput
from perdure.messages.notices import NOTIFY, NotifyInput
from perdure.messages.session import (
    CALL_MODEL,
    KEEP_JOURNAL,
    LOAD_JOURNAL,
    LOAD_PLAN,
    CodeInput,
    CodeOutput,
    JournalPage,
    JournalSlice,
    LoadJournalInput,
    LoadPlanInput,
    LoadPlanOutput,
    ModelInput,
    ModelOutput,
    ToolInput,
    Trial,
)
from perdure.messages.shared_state import (
    SHARE_STATE,
    ShareStateInput,
)
from perdure.messages.step_log import StepLog
from perdure.messages.stretches import BEGIN_WITHIN, FailedStep
from perdure.plan.nodes import ToolOptions
from perdure.rules.step_retries import is_final, options_left, pause_behind
from perdure.temporal.any_worker import any_worker
from perdure.workflows.run.limits import RunLimits
from perdure.workflows.run.progress import RunProgress
from perdure.workflows.run.step_failures import cause_of, last_failure, rollout_of, step_failed
from perdure.workflows.run.task_budget import LocalPlaces, Outbox

_T = TypeVar("_T")

_LOCAL_PAUSE = timedelta(milliseconds=200)

_NO_TRIAL = Trial()

_ACTIVITY_EVENTS = 6
"""What an activity leaves in history, the next workflow task included."""

_LOCAL_EVENTS = 1

_AT_HAND = timedelta(seconds=2)
"""How long a plan at hand may take, where other local activities hold all of the worker's places."""

_STEPS_BEGIN_WITHIN = timedelta(seconds=2 * BEGIN_WITHIN)
"""Within which the steps of an activity begin that takes several: its worker may be busy."""

_OWN_HEARTBEAT = timedelta(seconds=5)
"""How long a worker may be silent while it loads a plan or writes shared state."""


class Witness(Protocol):
    """A listener that is told of each attempt of an activity."""

    def starting(self) -> None:
        """Take note that the activity is scheduled right after this."""
        ...

    def failed(self, error: FailureError) -> None:
        """Take note that it failed, was cancelled or never came back."""
        ...


class Activities:
    """Runs activities for one session and knows how many are at work."""

    def __init__(self, trial: Trial | None = None, limits: RunLimits | None = None) -> None:
        """Make the activities of a session, or of what goes on beside its turns, which no limit holds back."""
        self._limits = limits
        self._trial = trial or _NO_TRIAL
        self._outbox = Outbox()
        self._places = LocalPlaces()
        self._steps = 0
        """Activities that were started, for a trial."""
        self.progress = RunProgress()
        """How many activities are at work, and whether the run takes more."""

    async def model(
        self,
        call: ModelInput,
        model: str,
        options: ToolOptions,
        witness: Witness | None = None,
        *,
        failed: FailedStep | None = None,
    ) -> ModelOutput:
        """Call an agent's model; attempts may have `failed` elsewhere.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        if failed is not None:
            options = await self._tried(failed, call.agent, "model", options, witness)
        if call.steps > 1:
            # Each step has its own time, and the last may begin late. And its own attempts: the activity counts those
            # of its first step, and hands over what it has kept where it is itself tried again.
            longest = max(options.timeout, ToolOptions().timeout)
            whole = options.timeout + longest + _STEPS_BEGIN_WITHIN
            options = options.model_copy(update={"timeout": whole, "max_attempts": 0})
        summary = f"{call.agent}: {model}" + (f", up to {call.steps} steps" if call.steps > 1 else "")
        output = await self._activity(CALL_MODEL, call, ModelOutput, call.agent, "model", options, summary, witness)
        self._places.model_returned(call.agent, call.branch)
        return output

    async def tool(
        self,
        call: ToolInput,
        options: ToolOptions,
        witness: Witness | None = None,
        *,
        local: bool = False,
        failed: FailedStep | None = None,
    ) -> ToolOutput:
        """Run a tool, or another function of it; as a local activity if `local`, and if there is a place for one.

        Attempts may have `failed` elsewhere.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        if failed is not None:
            options = await self._tried(failed, call.agent, call.tool, options, witness)
        name = call.tool if call.kind == "tool" else f"{call.tool}:{call.kind}"
        local = local and self._places.take(call.agent, call.branch)
        return await self._activity(
            name, call, ToolOutput, call.agent, call.tool, options, call.agent, witness, local=local
        )

    async def callback(self, call: CallbackInput, options: ToolOptions, witness: Witness | None = None) -> StepLog:
        """Run callbacks around a google.adk agent, or its code; those around a turn even if the run is to hand over.

        Raises:
            EffectFailed: One raised.
        """
        step, summary = CALLBACK_NAMES[call.which], f"{call.agent}: {call.which}"
        gated = call.which in ("before", "after", "run", "graph")
        # An agent that is entered again runs its code before anything else: each run would end with that.
        counts = call.which not in ("run", "graph")
        return await self._activity(
            CALL_BACK, call, StepLog, call.agent, step, options, summary, witness, gated=gated, counts=counts
        )

    async def keep_result(self, agent: str, request: KeepResultInput) -> ToolOutput:
        """Keep a result that is too large for the log; returns what the model gets instead.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        options = ToolOptions()
        return await self._activity(KEEP_RESULT, request, ToolOutput, agent, request.tool, options, f"{agent}: result")

    async def code(self, agent: str, call: CodeInput, options: ToolOptions, witness: Witness | None = None) -> Any:
        """Run a function that a custom agent gave to `run_activity`.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        return (await self._activity(call.name, call, CodeOutput, agent, call.name, options, agent, witness)).result

    def next_turn(self) -> None:
        """Take note that a turn begins; none is at work."""
        self._places.next_turn()

    async def load_plan(
        self, request: LoadPlanInput, *, shares: bool, slice_: Callable[[], AbstractContextManager[JournalSlice | None]]
    ) -> LoadPlanOutput:
        """Ask a worker for the app's plan; retried until there is an answer. `slice_` is what an activity carries.

        This worker, by a local activity, unless the newest plan `shares` state: to ask the workflows that hold it may
        need a place in this worker's cache, which the session would hold meanwhile.
        """
        with self._at_work(), _cancellable():
            if not shares:
                known = await self._plan_at_hand(request)
                if known is not None:
                    return known
            with slice_() as part:
                return await workflow.execute_activity(
                    LOAD_PLAN,
                    request.model_copy(update={"journal": part}),
                    result_type=LoadPlanOutput,
                    start_to_close_timeout=timedelta(seconds=30),
                    heartbeat_timeout=self._heartbeat(_OWN_HEARTBEAT),
                    retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200)),
                    summary="plan",
                )

    async def _plan_at_hand(self, request: LoadPlanInput) -> LoadPlanOutput | None:
        """Return what this worker knows without asking anybody; `None` if that is not enough."""
        try:
            with self.progress.loading_plan():
                known: LoadPlanOutput | None = await workflow.execute_local_activity(
                    LOAD_PLAN,
                    request,
                    result_type=cast("type", LoadPlanOutput | None),
                    schedule_to_close_timeout=_AT_HAND,
                    retry_policy=RetryPolicy(maximum_attempts=1),
                    summary="plan",
                )
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            return None
        return known

    async def share_state(self, agent: str, request: ShareStateInput) -> None:
        """Write `user:` and `app:` keys where other sessions find them; retried until it is done.

        Raises:
            EffectFailed: There would be too much of them.
        """
        with self._at_work():
            try:
                await asyncio.shield(
                    workflow.start_activity(
                        SHARE_STATE,
                        request,
                        start_to_close_timeout=timedelta(seconds=30),
                        heartbeat_timeout=self._heartbeat(_OWN_HEARTBEAT),
                        summary="shared state",
                    )
                )
            except ActivityError as error:
                raise EffectFailed(agent, "state", cause_of(error)) from error

    async def keep_journal(self, page: JournalPage, witness: Witness | None = None) -> None:
        """Write a part of the journal into the history, as soon as a workflow task has room for it.

        It stands there once the witness is told; the activity itself does nothing.
        """
        await self._outbox.take(page)
        if witness is not None:
            witness.starting()
        await workflow.execute_activity(
            KEEP_JOURNAL,
            page,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
            ),
            summary="journal",
        )

    async def _activity(
        self,
        name: str,
        arg: Any,
        result: type[_T],
        agent: str,
        step: str,
        options: ToolOptions,
        summary: str,
        witness: Witness | None = None,
        *,
        local: bool = False,
        gated: bool = True,
        counts: bool = True,
    ) -> _T:
        attempt = 0
        # Not where something is at work, which the run would await first.
        alone = local and self.progress.idle
        if alone and self._limits is not None and self._limits.begins_local():
            self.progress.drain()
        while True:
            if gated:
                await self._gate()
            await self._room(arg, gated=gated)
            if witness is not None:
                witness.starting()
            try:
                if local and attempt == 0:
                    return await self._local_attempt(name, arg, result, options, summary)
                return await self._attempt(name, arg, result, options, summary, again=attempt > 0, counts=counts)
            except FailureError as error:
                if witness is not None:
                    witness.failed(error)
                if is_cancelled_exception(error):
                    # Let a cancelled activity look like any other cancelled coroutine.
                    raise asyncio.CancelledError from error
                attempt += 1
                rollout = rollout_of(error)
                if rollout is None or attempt >= rollout.attempts:
                    raise step_failed(agent, step, error) from error
            with self._at_work():
                await asyncio.sleep(rollout.pause.total_seconds())

    async def _tried(
        self, failed: FailedStep, agent: str, step: str, options: ToolOptions, witness: Witness | None
    ) -> ToolOptions:
        """Wait until the next attempt of a step is due; returns the options of what attempts are left."""
        if is_final(failed, options):
            error = last_failure(failed)
            if witness is not None:
                witness.failed(error)
            raise step_failed(agent, step, error)
        with self._at_work():
            await asyncio.sleep(pause_behind(failed, options))
        return options_left(options, failed.attempts)

    async def _attempt(
        self, name: str, arg: Any, result: type[_T], options: ToolOptions, summary: str, *, again: bool, counts: bool
    ) -> _T:
        with self._at_work(counts=counts):
            # The worker that lacked the code keeps the session, so what is started again is for any other.
            with any_worker(wanted=again):
                started = workflow.start_activity(
                    name,
                    arg,
                    result_type=result,
                    start_to_close_timeout=options.timeout,
                    heartbeat_timeout=self._heartbeat(options.heartbeat_timeout),
                    retry_policy=_retry_policy(options),
                    # A stop waits for the activity's word, so that a tool that finished all the same is not run again.
                    cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                    summary=summary,
                )
            return await started

    async def _local_attempt(self, name: str, arg: Any, result: type[_T], options: ToolOptions, summary: str) -> _T:
        with self._at_work(_LOCAL_EVENTS), self.progress.running_local():
            return await workflow.execute_local_activity(
                name,
                arg,
                result_type=result,
                start_to_close_timeout=options.timeout,
                retry_policy=_retry_policy(options),
                # Longer pauses are timers, in which the session takes messages.
                local_retry_threshold=_LOCAL_PAUSE,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=summary,
            )

    def _heartbeat(self, timeout: timedelta) -> timedelta:
        dead_after = self._trial.dead_after
        return timeout if dead_after is None else min(timeout, timedelta(seconds=dead_after))

    async def _gate(self) -> None:
        if self.progress.may_start:
            return
        with self.progress.holding():
            # Unless a branch fails, for ever: the coroutine is re-entered in the next run.
            await workflow.wait_condition(lambda: self.progress.may_start)

    async def _room(self, arg: Any, *, gated: bool) -> None:
        """Wait until a workflow task has room for an activity's argument; the invocation is at work meanwhile."""
        with self.progress.preparing():
            waited = await self._outbox.take(arg)
        if waited and gated:
            await self._gate()

    @contextmanager
    def _at_work(self, events: int = _ACTIVITY_EVENTS, *, counts: bool = True) -> Generator[None]:
        self._steps += counts
        with self.progress.activity():
            if self._limits is not None and self._limits.begins(events):
                self.progress.drain()
            if self._trial.steps_per_run is not None and self._steps >= self._trial.steps_per_run:
                self.progress.drain()
            yield


async def notify(request: NotifyInput) -> None:
    """Have people told of something; returns when that is on its way, which does not wait for who is told."""
    await workflow.execute_activity(
        NOTIFY,
        request,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)),
        summary=request.happened,
    )


async def load_journal(request: LoadJournalInput) -> JournalPage:
    """Ask a worker for a part of the journal that the run before left; retried until there is an answer."""
    return await workflow.execute_activity(
        LOAD_JOURNAL,
        request,
        result_type=JournalPage,
        start_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=timedelta(seconds=20),
        retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)),
        summary="journal",
    )


def _retry_policy(options: ToolOptions) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=options.initial_interval,
        backoff_coefficient=options.backoff,
        maximum_interval=options.max_interval,
        maximum_attempts=options.max_attempts,
        # The failure of code that a worker lacks says itself that it is not to be retried.
        non_retryable_error_types=options.non_retryable,
    )


@contextmanager
def _cancellable() -> Generator[None]:
    """Let a cancelled activity look like any other cancelled coroutine."""
    try:
        yield
    except FailureError as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        raise
