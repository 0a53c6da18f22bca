"""Keeps a query from running tools: what is replayed for one may go on behind the last workflow task.

A session that is not in memory is replayed for a query. If an activity ends, a timer fires or a signal comes just then,
or did so right before the run was closed, Temporal's core gives the workflow that, too, though no workflow task has
begun that takes it. What the workflow then wants to start goes nowhere, but a local activity runs: and once more in
the task that takes the same step, or in a session that is closed. Such a query is refused (decision 120).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowQueryFailedError
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info

_R = TypeVar("_R")

_PAUSE = 0.1

BETWEEN_STEPS = "the session is about to take a step"
"""Why a query is refused that would have gone ahead of a workflow task; to be asked again, unless the run is closed."""


async def ask_again(query: Callable[[], Awaitable[_R]], seconds: float) -> _R:
    """Return what a query finds, asked for so many seconds while it is refused between two steps.

    Raises:
        WorkflowQueryFailedError: It is still refused, or fails.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return await query()
        except WorkflowQueryFailedError as error:
            if BETWEEN_STEPS not in str(error) or time.monotonic() >= until:
                raise
        await asyncio.sleep(_PAUSE)


class GuardedInstance(WorkflowInstance):
    """One run of a workflow in a worker, as Temporal's SDK made it."""

    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance
        self._task: tuple[int, int, int] | None = None
        """When the last workflow task had begun, and how large the history was."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Let the workflow take a step, unless that would run a tool for a query."""
        task = (act.timestamp.seconds, act.timestamp.nanos, act.history_size_bytes)
        is_ahead = task == self._task and act.history_size_bytes > 0 and not act.is_replaying
        self._task = task
        completion = self._instance.activate(act)
        if is_ahead and any(map(_is_from_history, act.jobs)) and _starts_local(completion):
            completion = WorkflowActivationCompletion()
            completion.failed.failure.message = BETWEEN_STEPS
        return completion

    def get_serialization_context(self, command_info: object) -> SerializationContext | None:
        """Return the instance's own."""
        return self._instance.get_serialization_context(command_info)  # pyright: ignore[reportArgumentType] -- private

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        """Return the instance's own."""
        return self._instance.get_external_store_context(command_info)  # pyright: ignore[reportArgumentType] -- private

    def get_info(self) -> Info:
        """Return the instance's own."""
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        """Return the instance's own."""
        return self._instance.get_thread_id()


def _is_from_history(job: WorkflowActivationJob) -> bool:
    """Return whether a job is something that only a new workflow task brings, or a reading ahead of it.

    An activity that the workflow cancels may end in the task that cancels it.
    """
    if job.HasField("resolve_activity"):
        ended = job.resolve_activity
        return not ended.is_local and not ended.result.HasField("cancelled")
    return job.HasField("fire_timer") or job.HasField("signal_workflow")


def _starts_local(completion: WorkflowActivationCompletion) -> bool:
    return any(command.HasField("schedule_local_activity") for command in completion.successful.commands)


class GuardedRunner(UnsandboxedWorkflowRunner):
    """Runs workflows as they are."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a new run of a workflow."""
        return GuardedInstance(super().create_instance(det))


class GuardedSandbox(SandboxedWorkflowRunner):
    """Runs workflows in Temporal's sandbox."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a new run of a workflow."""
        return GuardedInstance(super().create_instance(det))
