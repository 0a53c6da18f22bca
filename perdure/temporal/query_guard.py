"""Keeps queries from changing runs: Temporal's core (SDK 1.35) can give a run another order for one.

- A session that is not in memory is replayed for a query. If an activity ends, a timer fires or a signal comes just
  then, or did so right before the run was closed, the core gives the workflow that, too, though no workflow task has
  begun that takes it. In the task that comes next the workflow is a step ahead: what it started for the query goes into
  history before the updates of that task, and in every later replay behind them. So such a step is refused, with the
  query, and the core drops the run (decision 009). Nearest to it: https://github.com/temporalio/sdk-rust/issues/390
- A query alone that has the workflow go on all the same is answered beside commands, which the core takes for malformed
  (its task, and the session, then wait until the process ends). So such a query is refused, too.
- A query that comes with a workflow task is answered while local activities of the task run, since
  https://github.com/temporalio/sdk-rust/pull/1442, and its answer ends the task. What a local activity returned is then
  taken up behind the updates of the next task, and in every later replay before them. So such a query is left without
  an answer, and the server sends it on when the task is over (decision 009).
"""

from __future__ import annotations

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

from perdure.temporal.collected_clients import keep_clients_out
from perdure.temporal.refused_queries import BETWEEN_STEPS

_QUERY_ALONE = "legacy_query"
"""The id that Temporal's core gives to a query which is a task of its own."""


class GuardedInstance(WorkflowInstance):
    """A run of a workflow in a worker, as Temporal's SDK made it, with a guard before each activation."""

    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance
        self._size = self._length = 0
        """How large the history was as the last workflow task began, and how many events the workflow has seen."""
        self._at_work: set[int] = set()
        """Local activities whose end the workflow has not seen."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Activate the workflow, unless no workflow task has begun that takes what it is shown."""
        if self._is_ahead(act):
            return _refused(act)
        completion = self._instance.activate(act)
        if _is_query_alone(act) and _has_commands(completion):
            return _refused(act)
        if self._at_work and any(job.HasField("query_workflow") for job in act.jobs):
            _leave_unanswered(completion)
        self._note(act, completion)
        return completion

    def _is_ahead(self, act: WorkflowActivation) -> bool:
        """Return whether the workflow is shown what no workflow task takes, or was so without being told apart.

        Each task begins with an event that says how large the history is with all that the task takes. And while local
        activities run a task is not over, so no query comes alone: what started them was taken for that query.
        """
        if self._at_work and _is_query_alone(act):
            return True
        if act.is_replaying or not 0 < act.history_size_bytes == self._size:
            return False
        # The length alone tells it, but where the server dropped a task whose only update was refused.
        return act.history_length > self._length or any(map(_is_from_history, act.jobs))

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


def _refused(act: WorkflowActivation) -> WorkflowActivationCompletion:
    """Return a completion by which the core refuses the query, and drops the run."""
    completion = WorkflowActivationCompletion(run_id=act.run_id)
    completion.failed.failure.message = BETWEEN_STEPS
    return completion


def _is_query_alone(act: WorkflowActivation) -> bool:
    return any(job.query_workflow.query_id == _QUERY_ALONE for job in act.jobs)


def _has_commands(completion: WorkflowActivationCompletion) -> bool:
    """Return whether the workflow did more than answer a query."""
    return any(not command.HasField("respond_to_query") for command in completion.successful.commands)


def _is_from_history(job: WorkflowActivationJob) -> bool:
    """Return whether a job is something that comes once in a task, as it begins.

    An activity that the workflow cancels may end in the task that cancels it.
    """
    if job.HasField("resolve_activity"):
        ended = job.resolve_activity
        return not ended.is_local and not ended.result.HasField("cancelled")
    return job.HasField("fire_timer") or job.HasField("signal_workflow")


def _leave_unanswered(completion: WorkflowActivationCompletion) -> None:
    kept = [command for command in completion.successful.commands if not command.HasField("respond_to_query")]
    del completion.successful.commands[:]
    completion.successful.commands.extend(kept)


class GuardedRunner(UnsandboxedWorkflowRunner):
    """Runs workflows without a sandbox, guarded: no code of users' runs in them, and Perdure's own needs none."""

    def __init__(self) -> None:
        """Have nothing but workflows' own code begin tasks in them."""
        super().__init__()
        keep_clients_out()

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a new run of a workflow."""
        return GuardedInstance(super().create_instance(det))
