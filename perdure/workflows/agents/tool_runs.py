"""Runs a tool once, as an activity, and journals its start and end."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, RetryState, is_cancelled_exception

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import ToolRan, ToolStarted
from perdure.journal.projection import Projection
from perdure.journal.tool_output import RunTimes, ToolOutput
from perdure.messages.session import ToolInput
from perdure.messages.stretches import FailedStep
from perdure.plan.nodes import ToolPlan
from perdure.rules.failures import MAX_CAUSE
from perdure.rules.in_doubt import LOST_START, NOT_STARTED
from perdure.workflows.agents.scope import Scope
from perdure.workflows.run.activities import Witness
from perdure.workflows.run.step_failures import cause_of, error_type

_INLINE_STATE_BYTES = 4096
"""Up to this size a tool's input carries the session's state; beyond, only the length of the journal."""

_LOCAL_STATE_BYTES = 64_000
"""The same for a local tool, whose input stands in no history; with more state it runs as a normal activity."""

_ROOM_BYTES = 200_000
"""Beside more a slice of the journal might not fit into the payload."""


async def run_tool(scope: Scope, tool: ToolPlan, call: ToolInput, failed: FailedStep | None = None) -> ToolOutput:
    """Run a tool, and journal when it started and ended; attempts may have `failed` elsewhere.

    Raises:
        EffectFailed: It failed, and retrying did not help.
    """
    if failed is not None:
        call = call.model_copy(update={"tried": failed.attempts})
    since = failed.times.started if failed is not None and failed.times is not None else None
    witness = _Journalist(scope, tool, call, since)
    # A local tool cannot ask for the state: its session is busy with it.
    local = tool.local and call.length is None
    call = with_journal(scope, call, local=local)
    with scope.slice_under_way(None if local else call.journal) as witness.sent:
        output = await scope.activities.tool(call, tool.options, witness, local=local, failed=failed)
    witness.returned(output)
    return output.model_copy(update={"times": None, "call": None})


def with_journal(scope: Scope, call: ToolInput, *, local: bool = False) -> ToolInput:
    """Return a call with what it carries of the journal, which is then on its way."""
    if local:
        return call.model_copy(update={"journal": scope.whole()}) if call.reads else call
    if not call.reads and payload_size(call) > _ROOM_BYTES:
        return call
    return call.model_copy(update={"journal": scope.slice()})


def state_for(projection: Projection, invocation_id: str, tool: ToolPlan) -> tuple[dict[str, Any] | None, int | None]:
    """Return the session's state for a tool that takes a context, or the length of the journal to fold it from."""
    if not tool.needs_context:
        return None, None
    state = projection.visible_state(invocation_id)
    # A repr is no JSON, but it is as long, and takes any value.
    if len(repr(state)) <= (_LOCAL_STATE_BYTES if tool.local else _INLINE_STATE_BYTES):
        return state, None
    return None, len(projection.entries)


class _Journalist:
    """Journals the attempts of one call."""

    def __init__(self, scope: Scope, tool: ToolPlan, call: ToolInput, first: float | None = None) -> None:
        """Journal a call; `first`: when it began first, if that was elsewhere."""
        self._scope = scope
        self._first = first
        self._tool = tool
        self._call = call
        self._since = 0.0
        self.sent: Witness
        """Told, too, that the activity is scheduled, since it may carry a slice of the journal."""

    def starting(self) -> None:
        """Note that the tool is started: before, since afterwards it may be too late."""
        self.sent.starting()
        self._since = workflow.time()
        if self._tool.at_most_once:
            self._scope.log.append(
                ToolStarted(
                    invocation_id=self._call.invocation_id,
                    call_id=self._call.function_call_id,
                    agent=self._call.agent,
                    tool=self._call.tool,
                    idempotency_key=self._call.idempotency_key,
                    timestamp=self._since,
                )
            )

    def returned(self, output: ToolOutput) -> None:
        """Note that the tool returned."""
        if output.times is not None:
            self._append(output.times)
        else:
            # It asks for a confirmation first, or the model's arguments do not fit.
            self._not_started()

    def failed(self, error: FailureError) -> None:
        """Note how it ended instead."""
        stopped = is_cancelled_exception(error)
        if error_type(error) in NOT_STARTED or (stopped and _never_started(error)):
            self._not_started()
            return
        times = _times(error) or RunTimes(attempt=self._attempts(error), started=self._since, ended=workflow.time())
        cause = None if stopped else cause_of(error)[:MAX_CAUSE]
        outcome = "lost" if error_type(error) == LOST_START else "stopped" if stopped else "failed"
        self._append(times, outcome=outcome, cause=cause)

    def _attempts(self, error: FailureError) -> int:
        """Return how many attempts were made at least: what did not come back could not count them."""
        exhausted = isinstance(error, ActivityError) and error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
        return max(self._tool.options.max_attempts, 1) if exhausted else 1 + self._call.tried

    def _not_started(self) -> None:
        if self._tool.at_most_once:
            self._append(RunTimes(started=self._since, ended=workflow.time()), outcome="not_started")

    def _append(self, times: RunTimes, **fields: Any) -> None:
        call = self._call
        caller = self._scope.projection.event_of_call(call.function_call_id)
        elsewhere = caller is None or caller.invocation_id != call.invocation_id
        self._scope.log.append(
            ToolRan(
                call_id=call.function_call_id,
                key_salt=call.key_salt,
                invocation_id=call.invocation_id if elsewhere else None,
                attempts=times.attempt,
                started=round(self._first or times.started, 3),
                ended=round(times.ended, 3),
                **fields,
            )
        )


def _never_started(error: FailureError) -> bool:
    """Return whether the server says that no worker took the activity; of a local one it knows no event at all."""
    return isinstance(error, ActivityError) and bool(error.scheduled_event_id) and not error.started_event_id


def _times(error: FailureError) -> RunTimes | None:
    """Return what the activity itself said of its times, as the last detail of its error."""
    cause = error.cause if isinstance(error, ActivityError) else error
    if not isinstance(cause, ApplicationError) or not cause.details:
        return None
    try:
        return RunTimes.model_validate(cause.details[-1])
    except ValidationError:
        return None
