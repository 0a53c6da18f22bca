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

_QUERY_ALONE = "legacy_query"
"""The id that Temporal's core gives to a query which is a task of its own."""

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
        self._size = self._length = 0
        """How large the history was as the last workflow task began, and how many events the workflow has seen."""
        self._at_work: set[int] = set()
        """Local activities whose end the workflow has not seen."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Let the workflow take a step, unless no workflow task has begun that takes it."""
        if self._is_ahead(act):
            completion = WorkflowActivationCompletion(run_id=act.run_id)
            completion.failed.failure.message = BETWEEN_STEPS
            return completion
        completion = self._instance.activate(act)
        if self._at_work and any(job.HasField("query_workflow") for job in act.jobs):
            _leave_unanswered(completion)
        self._note(act, completion)
        return completion

    def _is_ahead(self, act: WorkflowActivation) -> bool:
        """Return whether the workflow is shown what no workflow task has taken, or was so without being told apart.

        A task begins with an event that tells how large the history is with all that the task brings. And a task whose
        local activities are at work is not over, so no query would come alone.
        """
        if self._at_work and any(job.query_workflow.query_id == _QUERY_ALONE for job in act.jobs):
            return True
        grown = act.history_length > self._length
        return grown and not act.is_replaying and 0 < act.history_size_bytes == self._size

    def _note(self, act: WorkflowActivation, completion: WorkflowActivationCompletion) -> None:
        if act.history_size_bytes:
            self._size, self._length = act.history_size_bytes, act.history_length
        self._at_work -= {job.resolve_activity.seq for job in act.jobs if job.resolve_activity.is_local}
        self._at_work |= {
            command.schedule_local_activity.seq
            for command in completion.successful.commands
            if command.HasField("schedule_local_activity")
        }

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


def _leave_unanswered(completion: WorkflowActivationCompletion) -> None:
    kept = [command for command in completion.successful.commands if not command.HasField("respond_to_query")]
    del completion.successful.commands[:]
    completion.successful.commands.extend(kept)


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
