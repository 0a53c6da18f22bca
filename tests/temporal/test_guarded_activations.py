"""Which activations of a run are refused, or answered in part; `tests/attacks/test_looks.py` has the real ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import WorkflowInstance
from temporalio.workflow import Info

from perdure.temporal.query_guard import GuardedInstance
from perdure.temporal.refused_queries import BETWEEN_STEPS


@dataclass
class Instance(WorkflowInstance):
    """A run that keeps what it is shown, answers queries, and starts the local activities that it is told to."""

    starts: list[int] = field(default_factory=list[int])
    seen: list[WorkflowActivation] = field(default_factory=list[WorkflowActivation])

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self.seen.append(act)
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        completion.successful.SetInParent()
        for job in act.jobs:
            if job.HasField("query_workflow"):
                completion.successful.commands.add().respond_to_query.query_id = job.query_workflow.query_id
        while self.starts:
            completion.successful.commands.add().schedule_local_activity.seq = self.starts.pop()
        return completion

    def get_serialization_context(self, command_info: object) -> SerializationContext | None:
        return None

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        return cast("StorageDriverStoreContext", None)

    def get_info(self) -> Info:
        return cast("Info", self)

    def get_thread_id(self) -> int | None:
        return 7


def act(size: int, length: int, *jobs: dict[str, Any], replays: bool = False) -> WorkflowActivation:
    return WorkflowActivation(
        run_id="run",
        is_replaying=replays,
        history_size_bytes=size,
        history_length=length,
        jobs=[WorkflowActivationJob(**job) for job in jobs],
    )


ENDED: dict[str, Any] = {"resolve_activity": {"seq": 1, "result": {"completed": {}}}}
LOCAL_ENDED: dict[str, Any] = {"resolve_activity": {"seq": 2, "is_local": True, "result": {"completed": {}}}}
CANCELLED: dict[str, Any] = {"resolve_activity": {"seq": 1, "result": {"cancelled": {}}}}
FIRED: dict[str, Any] = {"fire_timer": {"seq": 1}}
SIGNAL: dict[str, Any] = {"signal_workflow": {"signal_name": "function_response"}}
CANCEL: dict[str, Any] = {"cancel_workflow": {}}
UPDATE: dict[str, Any] = {"do_update": {"id": "u"}}
ALONE: dict[str, Any] = {"query_workflow": {"query_id": "legacy_query", "query_type": "events"}}
WITH_TASK: dict[str, Any] = {"query_workflow": {"query_id": "af1c", "query_type": "events"}}


@pytest.mark.parametrize("job", [ENDED, FIRED, SIGNAL, CANCEL, CANCELLED], ids=lambda job: next(iter(job)))
@pytest.mark.parametrize("replayed", [True, False])
def test_what_no_task_takes_is_not_shown_to_the_workflow(job: dict[str, Any], replayed: bool) -> None:
    """It brings more of history than the last task, and no task has begun since."""
    instance = Instance()
    guarded = GuardedInstance(instance)
    guarded.activate(act(700, 12, UPDATE, replays=replayed))
    refused = guarded.activate(act(700, 16, job))
    assert refused.failed.failure.message == BETWEEN_STEPS
    assert len(instance.seen) == 1


@pytest.mark.parametrize("job", [ENDED, FIRED, SIGNAL], ids=lambda job: next(iter(job)))
def test_behind_a_task_that_the_server_dropped_it_is_told_by_what_it_brings(job: dict[str, Any]) -> None:
    """A task whose only update was refused leaves no events: the next ones have the numbers that its own had."""
    guarded = GuardedInstance(Instance())
    guarded.activate(act(700, 12, UPDATE))
    assert guarded.activate(act(700, 12, job)).failed.failure.message == BETWEEN_STEPS


@pytest.mark.parametrize(
    "activation",
    [
        act(900, 16, ENDED),
        act(700, 16, ENDED, replays=True),
        act(700, 12, LOCAL_ENDED),
        act(700, 12, CANCELLED),
        act(700, 12, UPDATE),
        act(700, 12, ALONE, replays=True),
        act(700, 16, ALONE, replays=True),
        act(700, 12, WITH_TASK, replays=True),
        act(0, 16, {"remove_from_cache": {}}),
    ],
    ids=[
        "the next task",
        "a replay",
        "a local activity of the task",
        "an activity that the task cancels",
        "a task behind one that the server dropped",
        "a query",
        "a query that was sent with more events",
        "a query of the task",
        "the removal from memory",
    ],
)
def test_what_belongs_to_a_task_is_shown(activation: WorkflowActivation) -> None:
    instance = Instance()
    guarded = GuardedInstance(instance)
    guarded.activate(act(700, 12, UPDATE))
    assert guarded.activate(activation).HasField("successful")
    assert instance.seen[1:] == [activation]


def test_where_the_server_tells_no_sizes_nothing_is_refused() -> None:
    guarded = GuardedInstance(Instance())
    guarded.activate(act(0, 12, UPDATE))
    assert guarded.activate(act(0, 16, ENDED)).HasField("successful")


def test_a_query_of_a_task_waits_for_the_local_activities_of_the_task() -> None:
    """Its answer would end the task. Left without one, the server sends it on by itself when the task is over."""
    instance = Instance(starts=[2, 3])
    guarded = GuardedInstance(instance)
    guarded.activate(act(700, 12, ENDED))
    assert not guarded.activate(act(700, 12, WITH_TASK, replays=True)).successful.commands
    guarded.activate(act(700, 12, LOCAL_ENDED))
    assert not guarded.activate(act(700, 12, WITH_TASK, replays=True)).successful.commands
    guarded.activate(act(700, 12, {"resolve_activity": {"seq": 3, "is_local": True}}))
    answered = guarded.activate(act(700, 12, WITH_TASK, replays=True)).successful.commands
    assert [command.respond_to_query.query_id for command in answered] == ["af1c"]


def test_a_query_alone_while_local_activities_run_was_shown_what_a_task_takes() -> None:
    """It is refused, so that the core drops the run: that task is at work elsewhere."""
    guarded = GuardedInstance(Instance(starts=[2]))
    guarded.activate(act(700, 12, ENDED))
    assert guarded.activate(act(700, 12, ALONE, replays=True)).failed.failure.message == BETWEEN_STEPS


def test_the_rest_is_the_instance_s_own() -> None:
    instance = Instance()
    guarded = GuardedInstance(instance)
    assert guarded.get_info() is instance
    assert guarded.get_thread_id() == 7
    assert guarded.get_serialization_context(None) is guarded.get_external_store_context(None) is None


def test_a_query_alone_that_has_the_workflow_go_on_is_refused() -> None:
    """The core takes an answer beside commands for malformed, and would wait for another until the process ends."""
    guarded = GuardedInstance(Instance(starts=[2]))
    assert guarded.activate(act(700, 12, ALONE, replays=True)).failed.failure.message == BETWEEN_STEPS
    # With a task, commands are what the task is for.
    guarded = GuardedInstance(Instance(starts=[2]))
    assert guarded.activate(act(700, 12, UPDATE, WITH_TASK)).HasField("successful")
