"""The one module that schedules activities: timeouts, retries, summaries, and what becomes of their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception

from perdure.errors import PerdureError
from perdure.journal import ToolOutput
from perdure.messages import (
    CALL_MODEL,
    LOAD_PLAN,
    SHARE_STATE,
    CodeInput,
    CodeOutput,
    LoadPlanInput,
    LoadPlanOutput,
    ModelInput,
    ModelOutput,
    ShareStateInput,
    ToolInput,
    Trial,
)
from perdure.plan import ToolOptions

_T = TypeVar("_T")

NOT_REGISTERED = "NotRegistered"
"""Error type of an activity whose worker lacks the code: another worker, or a later deployment, may have it."""

_ROLLOUT_PAUSE = timedelta(seconds=10)
_ROLLOUT_ATTEMPTS = 30

_MODEL_OPTIONS = ToolOptions(max_attempts=10, heartbeat_timeout=timedelta(seconds=5))
"""A model call retries what its provider may answer later, for some ten minutes."""


_OWN_HEARTBEAT = timedelta(seconds=5)
"""How long a worker may be silent while it loads a plan or writes shared state."""


class EffectFailed(PerdureError):
    """An activity failed for good.

    Attributes:
        agent: The agent that needed it.
        step: `model`, or the tool's or function's name.
        cause: The error's own text.
        beside: Failures of sibling branches, which this one stands for.
    """

    def __init__(self, agent: str, step: str, cause: str) -> None:
        super().__init__(f"agent {agent!r} failed in step {step!r}: {cause}")
        self.beside: list[EffectFailed] = []
        self.agent = agent
        self.step = step
        self.cause = cause


class Effects:
    """Runs activities for one session and knows how many are at work."""

    def __init__(self, trial: Trial | None = None) -> None:
        self._trial = trial or Trial()
        self.scheduled = 0
        """Activities that were ever started."""
        self.busy = 0
        """Activities at work, those of the running invocation."""
        self.draining = False
        """The run is about to continue as new: what runs is awaited, nothing new is scheduled."""
        self.urgent = False
        """A branch has failed: its siblings are not held back."""
        self.held = 0
        """Activities that are held back."""

    async def model(self, call: ModelInput, model: str) -> ModelOutput:
        """Call an agent's model.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        return await self._activity(
            CALL_MODEL, call, ModelOutput, call.agent, "model", _MODEL_OPTIONS, f"{call.agent}: {model}"
        )

    async def tool(self, call: ToolInput, options: ToolOptions) -> ToolOutput:
        """Run a tool.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        return await self._activity(call.tool, call, ToolOutput, call.agent, call.tool, options, call.agent)

    async def code(self, agent: str, call: CodeInput, options: ToolOptions) -> Any:
        """Run a function that a custom agent gave to `run_activity`.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        return (await self._activity(call.name, call, CodeOutput, agent, call.name, options, agent)).result

    async def load_plan(self, request: LoadPlanInput) -> LoadPlanOutput:
        """Ask a worker for the app's plan; retried until there is an answer.

        Not a local activity: it asks the workflows that hold shared state, which may need this worker's cache.
        """
        with self._at_work(), _cancellable():
            return await workflow.execute_activity(
                LOAD_PLAN,
                request,
                result_type=LoadPlanOutput,
                start_to_close_timeout=timedelta(seconds=30),
                heartbeat_timeout=self._heartbeat(_OWN_HEARTBEAT),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200)),
                summary="plan",
            )

    async def share_state(self, request: ShareStateInput) -> None:
        """Write `user:` and `app:` keys where other sessions find them; retried until it is done."""
        with self._at_work():
            await asyncio.shield(
                workflow.start_activity(
                    SHARE_STATE,
                    request,
                    start_to_close_timeout=timedelta(seconds=30),
                    heartbeat_timeout=self._heartbeat(_OWN_HEARTBEAT),
                    summary="shared state",
                )
            )

    async def _activity(
        self, name: str, arg: Any, result: type[_T], agent: str, step: str, options: ToolOptions, summary: str
    ) -> _T:
        attempt = 0
        while True:
            await self._gate()
            try:
                return await self._attempt(name, arg, result, options, summary)
            except ActivityError as error:
                attempt += 1
                if _error_type(error) != NOT_REGISTERED or attempt == _ROLLOUT_ATTEMPTS:
                    raise EffectFailed(agent, step, _cause(error)) from error
            with self._at_work():
                await asyncio.sleep(_ROLLOUT_PAUSE.total_seconds())

    async def _attempt(self, name: str, arg: Any, result: type[_T], options: ToolOptions, summary: str) -> _T:
        with self._at_work(), _cancellable():
            return await workflow.execute_activity(
                name,
                arg,
                result_type=result,
                start_to_close_timeout=options.timeout,
                heartbeat_timeout=self._heartbeat(options.heartbeat_timeout),
                retry_policy=RetryPolicy(
                    initial_interval=options.initial_interval,
                    backoff_coefficient=options.backoff,
                    maximum_interval=options.max_interval,
                    maximum_attempts=options.max_attempts,
                    non_retryable_error_types=[NOT_REGISTERED, *options.non_retryable],
                ),
                # A stop waits for the activity's word, so that a tool that finished all the same is not run again.
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=summary,
            )

    def _heartbeat(self, timeout: timedelta) -> timedelta:
        dead_after = self._trial.dead_after
        return timeout if dead_after is None else min(timeout, timedelta(seconds=dead_after))

    async def _gate(self) -> None:
        if not self.draining or self.urgent:
            return
        self.held += 1
        try:
            # Unless a branch fails, for ever: the coroutine is re-entered in the next run.
            await workflow.wait_condition(lambda: self.urgent)
        finally:
            self.held -= 1

    @contextmanager
    def _at_work(self) -> Generator[None]:
        self.scheduled += 1
        self.busy += 1
        if self._trial.steps_per_run is not None and self.scheduled >= self._trial.steps_per_run:
            self.draining = True
        try:
            yield
        finally:
            self.busy -= 1


@contextmanager
def _cancellable() -> Generator[None]:
    """Let a cancelled activity look like any other cancelled coroutine."""
    try:
        yield
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        raise


def _error_type(error: ActivityError) -> str | None:
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def _cause(error: ActivityError) -> str:
    cause = error.cause
    if isinstance(cause, ApplicationError):
        # Perdure's own errors are sentences; anything else is known by its type.
        return cause.message if cause.type in _SENTENCES else f"{cause.type}: {cause.message}"
    if isinstance(cause, TimeoutError):
        kind = cause.type.name.lower().replace("_", "-") if cause.type else "unknown"
        return f"timed out ({kind} timeout)"
    return str(cause or error)


_SENTENCES = frozenset({NOT_REGISTERED, "ModelError", "DefinitionError", "PayloadTooLarge", "NotJson"})
