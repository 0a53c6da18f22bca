"""Finds in a session's history where its steps raised: Temporal keeps the stack traces of activities that failed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowHandle

from perdure.errors import LogError
from perdure.messages.callbacks import CALLBACK_NAMES, CallbackInput
from perdure.messages.session import CodeInput, ModelInput, ToolInput
from perdure.recovery.decoding import decode
from perdure.recovery.history_payloads import Step, step_of
from perdure.rules.failures import failure_text
from perdure.tracebacks import Raised, folded
from perdure.views.explanation import RaisedStep, SessionExplanation

_PAGE = 200
_MOST_EVENTS = 3000
"""History events that are looked through, from the newest on: who asks waits for it."""

_LOCAL = "core_local_activity"
"""The marker of a local activity, as Temporal's core names it; its argument stands in no history."""


async def with_raised_steps(client: Client, explained: SessionExplanation) -> SessionExplanation:
    """Return an explanation with where its failures were raised, and what is being tried again.

    What lies further back than some thousand history events is not found. Nothing is looked for where nothing failed.

    Args:
        client: Any client of Perdure's converter; what is encrypted is told only to one that has the keys.
        explained: Of a session that exists.

    Raises:
        RPCError: The server is away.
    """
    wanted = [(one.id, failure) for one in explained.invocations for failure in (*one.failures, *one.dealt_with)]
    working = {one.id for one in explained.invocations if one.status == "running"}
    if not wanted and not working:
        return explained
    finder = _Finder(client, explained.key.workflow_id)
    found: list[RaisedStep] = []
    async for step in finder.find():
        again = step.next_attempt is not None and step.invocation_id in working
        matching = [one for one in wanted if step.is_of(*one)]
        wanted = [one for one in wanted if one not in matching]
        if again or matching:
            found.append(step)
        if not wanted and not finder.tried_again:
            break
    return explained.model_copy(update={"raised": tuple(found)})


class _Finder:
    def __init__(self, client: Client, workflow_id: str) -> None:
        self._client = client
        self._workflow_id = workflow_id
        self._by_event: dict[int, FailureProto] = {}
        """Failures whose activities are not known yet, by the event that scheduled each."""
        self.tried_again: dict[str, tuple[FailureProto, int]] = {}
        """Those of activities that are tried again and are not known yet, by the activity's id, with the attempt."""
        self._left = _MOST_EVENTS

    async def find(self) -> AsyncIterator[RaisedStep]:
        """Yield the steps that raised, newest first."""
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(self._workflow_id)
        description = await handle.describe()
        for pending in description.raw_description.pending_activities:
            if pending.HasField("last_failure"):
                self.tried_again[pending.activity_id] = (pending.last_failure, pending.attempt)
        run_id: str | None = description.run_id
        while run_id and self._left > 0:
            before = ""
            async for event in self._backwards(run_id):
                found = await self._look_at(event)
                if found is not None:
                    yield found
                if event.HasField("workflow_execution_started_event_attributes"):
                    before = event.workflow_execution_started_event_attributes.continued_execution_run_id
            self._by_event.clear()
            self.tried_again.clear()
            run_id = before

    async def _backwards(self, run_id: str) -> AsyncIterator[HistoryEvent]:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=self._workflow_id, run_id=run_id),
            maximum_page_size=_PAGE,
        )
        while self._left > 0:
            answer = await self._client.workflow_service.get_workflow_execution_history_reverse(request)
            for event in answer.history.events:
                self._left -= 1
                yield event
            if not answer.next_page_token:
                return
            request.next_page_token = answer.next_page_token

    async def _look_at(self, event: HistoryEvent) -> RaisedStep | None:
        if event.HasField("activity_task_failed_event_attributes"):
            failed = event.activity_task_failed_event_attributes
            self._by_event[failed.scheduled_event_id] = failed.failure
        elif event.HasField("activity_task_timed_out_event_attributes"):
            # Why the attempt before the last one failed, if it did, is its cause.
            late = event.activity_task_timed_out_event_attributes
            if late.failure.HasField("cause"):
                self._by_event[late.scheduled_event_id] = late.failure.cause
        elif event.HasField("activity_task_scheduled_event_attributes"):
            return await self._scheduled(event)
        elif event.HasField("marker_recorded_event_attributes"):
            return await self._local(event)
        return None

    async def _scheduled(self, event: HistoryEvent) -> RaisedStep | None:
        scheduled = event.activity_task_scheduled_event_attributes
        failure, attempt = self._by_event.pop(event.event_id, None), None
        if failure is None:
            failure, attempt = self.tried_again.pop(scheduled.activity_id, (None, None))
        if failure is None:
            return None
        await decode(scheduled, self._client.data_converter)
        try:
            call = step_of(scheduled.activity_type.name, scheduled.input)
        except (LogError, ValueError):
            # It is encrypted, and the keys are not here; or another version wrote it.
            return None
        if call is None:
            return None
        if attempt is not None and isinstance(call, ModelInput | ToolInput):
            attempt += call.tried
        return RaisedStep(
            step=_name(call),
            trace=await self._trace(failure),
            invocation_id=call.invocation_id,
            agent=call.agent,
            call_id=call.function_call_id if isinstance(call, ToolInput) else None,
            next_attempt=attempt,
        )

    async def _local(self, event: HistoryEvent) -> RaisedStep | None:
        marker = event.marker_recorded_event_attributes
        if marker.marker_name != _LOCAL or not marker.HasField("failure"):
            return None
        data = json.loads(marker.details["data"].payloads[0].data)
        return RaisedStep(step=data["activity_type"], trace=await self._trace(marker.failure))

    async def _trace(self, failure: FailureProto) -> str:
        await decode(failure, self._client.data_converter)
        chain: list[Raised] = []
        while True:
            chain.append(Raised(failure_text(failure), failure.stack_trace))
            if not failure.HasField("cause"):
                return folded(chain)
            failure = failure.cause


def _name(call: Step) -> str:
    match call:
        case ModelInput():
            return "model"
        case ToolInput():
            return call.tool
        case CodeInput():
            return call.name
        case CallbackInput():
            return CALLBACK_NAMES[call.which]
