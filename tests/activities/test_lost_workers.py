"""A session is taken from a worker that fell silent in an activity, and from no other."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.service import RPCError, RPCStatusCode, WorkflowService
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.activities.lost_workers import LostWorkers

pytestmark = pytest.mark.server


@activity.defn(name="second_attempt")
async def second_attempt(how: str) -> int:
    """Fail at first: with an error, or by a silence that one timeout or the other notices."""
    attempt = activity.info().attempt
    if attempt == 1 and how == "raises":
        raise ValueError("no")
    if attempt == 1:
        await asyncio.sleep(30)
    return attempt


@workflow.defn(name="once_more")
class OnceMore:
    """Runs the activity."""

    @workflow.run
    async def run(self, how: str) -> int:
        """Return which attempt came back."""
        return await workflow.execute_activity(
            second_attempt,
            how,
            start_to_close_timeout=timedelta(seconds=1 if how == "takes too long" else 60),
            heartbeat_timeout=timedelta(seconds=1) if how == "is silent" else None,
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=2),
        )


async def run(client: Client, queue: str, how: str) -> int:
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[OnceMore],
        activities=[second_attempt],
        interceptors=[LostWorkers(client)],
        workflow_runner=UnsandboxedWorkflowRunner(),
        graceful_shutdown_timeout=timedelta(0),
    )
    async with worker:
        return await client.execute_workflow(OnceMore.run, how, id=queue, task_queue=queue)


@pytest.mark.parametrize(("how", "resets"), [("is silent", 1), ("takes too long", 0), ("raises", 0)])
async def test_a_session_is_taken_from_a_worker_that_fell_silent(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, how: str, resets: int
) -> None:
    asked: list[str] = []
    reset = client.workflow_service.reset_sticky_task_queue

    async def counted(request: ResetStickyTaskQueueRequest, **options: Any) -> Any:
        asked.append(request.execution.workflow_id)
        return await reset(request, **options)

    monkeypatch.setattr(client.workflow_service, "reset_sticky_task_queue", counted)
    assert await run(client, app_name, how) == 2
    assert asked == [app_name] * resets


@pytest.mark.parametrize("error", [RPCError("no", RPCStatusCode.PERMISSION_DENIED, b""), RuntimeError("no")])
async def test_the_work_is_done_also_where_the_server_is_not_to_be_asked(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def refuse(self: WorkflowService, *args: object, **options: object) -> Any:
        raise error

    monkeypatch.setattr(type(client.workflow_service), "describe_workflow_execution", refuse)
    assert await run(client, app_name, "raises") == 2
