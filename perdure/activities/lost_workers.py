"""Takes a session away from a worker that died, so that the next worker goes on with it at once.

A server offers a session's next workflow task, and every query, to the worker that has the session in memory, and to
others when that one has not taken it for the sticky timeout. Where an activity comes again because its worker fell
silent, that is mostly the worker of the session, too, and nobody is there to take it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, ResetStickyTaskQueueRequest
from temporalio.client import Client
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.heartbeats import beating
from perdure.logs import get_logger

__all__ = ["LostWorkers"]

_PATIENCE = timedelta(seconds=1)
"""Without it, the session waits for the sticky timeout, which is not much longer."""

_log = get_logger("perdure.worker")


class LostWorkers(Interceptor):
    """Gives the session of an activity to any worker, when it is run again since its worker fell silent."""

    def __init__(self, client: Client) -> None:
        """Make the interceptor, which asks and tells the server by a client."""
        self._client = client

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Look at each activity before it runs."""
        return _Retried(next, self._client)


class _Retried(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, client: Client) -> None:
        super().__init__(next)
        self._client = client

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        if info.attempt > 1 and not info.is_local and info.workflow_id is not None:
            # Before the work, which may ask the session for its journal.
            with beating():
                await _release(self._client, info)
        return await super().execute_activity(input)


async def _release(client: Client, info: activity.Info) -> None:
    run = WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "")
    service, namespace = client.workflow_service, client.namespace
    try:
        described = await service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(namespace=namespace, execution=run), timeout=_PATIENCE
        )
        pending = (item for item in described.pending_activities if item.activity_id == info.activity_id)
        # What raised an error, or took too long, has a worker that lives, and has the session in memory.
        kinds = [item.last_failure.timeout_failure_info.timeout_type for item in pending]
        if TimeoutType.TIMEOUT_TYPE_HEARTBEAT in kinds:
            await service.reset_sticky_task_queue(
                ResetStickyTaskQueueRequest(namespace=namespace, execution=run), timeout=_PATIENCE
            )
    except Exception as error:
        # The work does not depend on it.
        _log.debug("a session waits for the worker that had it", reason=type(error).__name__)
