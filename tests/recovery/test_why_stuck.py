"""Which failures of a workflow task tell that a session is stuck: what is given anew by itself does not, at first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import History, HistoryEvent, WorkflowTaskFailedEventAttributes
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseResponse

from perdure.recovery.stuck import why_stuck
from perdure.temporal.refused_queries import BETWEEN_STEPS

LATE = "[TMPRL1101] Potential deadlock detected: workflow didn't yield within 2 second(s)."


def client_of(message: str, attempt: int) -> Any:
    """Return a client whose server tells of one failed workflow task: the guard's race cannot be had at will."""
    failed = WorkflowTaskFailedEventAttributes(failure=Failure(message=message))
    event = HistoryEvent(
        event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, workflow_task_failed_event_attributes=failed
    )
    answer = GetWorkflowExecutionHistoryReverseResponse(history=History(events=[event]))

    async def history(_request: object) -> GetWorkflowExecutionHistoryReverseResponse:
        return answer

    async def describe() -> Any:
        task = SimpleNamespace(attempt=attempt)
        return SimpleNamespace(raw_description=SimpleNamespace(pending_workflow_task=task))

    def handle(_id: str) -> Any:
        return SimpleNamespace(describe=describe)

    return SimpleNamespace(
        namespace="default",
        workflow_service=SimpleNamespace(get_workflow_execution_history_reverse=history),
        data_converter=SimpleNamespace(payload_codec=None),
        get_workflow_handle=handle,
    )


@pytest.mark.parametrize(
    ("message", "attempt", "stuck"),
    [
        (BETWEEN_STEPS, 2, False),
        (BETWEEN_STEPS, 9, True),
        (LATE, 2, False),
        (LATE, 9, True),
        ("KeyError: 'x'", 2, True),
    ],
)
async def test_what_is_given_anew_is_not_taken_for_the_code_s_failure(message: str, attempt: int, stuck: bool) -> None:
    found = await why_stuck(client_of(message, attempt), "app/u/s")
    assert (found is not None) == stuck
