"""Reads from a history which tools were started, and not only which returned. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from perdure.journal.entries import ToolOutput
from perdure.messages.session import DEADLINE_SUMMARY, ToolInput
from perdure.recovery.doubt_questions import Questions
from perdure.recovery.rebuilding import Rebuilder
from perdure.rules.in_doubt import NOT_STARTED

_KINDS = ("tool", "reconcile", "reminder")

_LOCAL = "core_local_activity"
"""Name of the marker in which Temporal's SDK records a local activity."""


class Starts:
    """Adds to a journal what it gained as activities of tools were scheduled, and what local ones returned."""

    def __init__(self, history: Sequence[HistoryEvent], journal: Rebuilder, questions: Questions) -> None:
        """Take the whole history, and who is to be told."""
        self._journal = journal
        self._questions = questions
        self._times = dict(_task_times(history))
        """Seconds since the epoch at which a workflow task began, by the id of its completion."""
        self._calls: dict[int, tuple[ToolInput, float]] = {}

    def scheduled(self, event: HistoryEvent) -> None:
        """Take in that an activity was scheduled: an at-most-once tool, or a reminder, which never starts twice."""
        attributes = event.activity_task_scheduled_event_attributes
        payloads = attributes.input.payloads
        data: Any = json.loads(payloads[0].data) if payloads and payloads[0].data else None
        if not isinstance(data, dict) or data.get("kind") not in _KINDS:  # pyright: ignore[reportUnknownMemberType] -- JSON
            return
        call = ToolInput.model_validate(data)
        if call.kind == "reminder":
            self._journal.reminded(call)
            return
        self._questions.scheduled(event.event_id, call)
        if call.kind == "reconcile":
            return
        time = self._times.get(attributes.workflow_task_completed_event_id, event.event_time.ToNanoseconds() / 1e9)
        self._calls[event.event_id] = call, time
        self._journal.tool_started(call, time)

    def time_of_task(self, completed: int) -> float:
        """Return when a workflow task began, by the id of its completion: what its code took for the time."""
        return self._times.get(completed, 0.0)

    def ended(self, event: HistoryEvent) -> None:
        """Take in that an activity ended without a result: it may never have started."""
        if event.HasField("activity_task_failed_event_attributes"):
            failed = event.activity_task_failed_event_attributes
            if failed.failure.application_failure_info.type in NOT_STARTED:
                self.not_started(failed.scheduled_event_id)
        elif event.HasField("activity_task_canceled_event_attributes"):
            canceled = event.activity_task_canceled_event_attributes
            self._questions.cancelled(canceled.scheduled_event_id)
            if not canceled.started_event_id:
                self.not_started(canceled.scheduled_event_id)

    def not_started(self, scheduled: int) -> None:
        """Take in that the function of a scheduled tool did not start, so that it may start later."""
        if scheduled in self._calls:
            self._journal.tool_not_started(*self._calls[scheduled])

    def recorded(self, event: HistoryEvent) -> None:
        """Take in a marker: what a local tool returned, and for which call."""
        marker = event.marker_recorded_event_attributes
        result = marker.details["result"].payloads if "result" in marker.details else ()
        if marker.marker_name != _LOCAL or not result:
            return
        try:
            output = ToolOutput.model_validate_json(result[0].data)
        except ValidationError:
            return
        if output.call is not None:
            self._journal.local_tool_returned(output.call, output, event.event_time.ToNanoseconds() / 1e9)


class DeadlineTimers:
    """Finds when the session saw that deadlines of open calls were past, and expires them in the journal then."""

    def __init__(self, journal: Rebuilder, starts: Starts) -> None:
        self._journal = journal
        self._starts = starts
        self._timers: set[int] = set()
        self._due: float | None = None

    def began(self, event_id: int) -> None:
        """Take in that the session waits for a deadline."""
        self._timers.add(event_id)

    def ended(self, event_id: int) -> None:
        """Take in that it does no more."""
        self._timers.discard(event_id)

    def task_completed(self, completed: int) -> None:
        """Take in a workflow task: unless it waited for one, the session looked for deadlines that were past."""
        if not self._timers:
            self._due = self._starts.time_of_task(completed)

    def expire(self) -> None:
        """Expire the calls as the session did: behind what the workflow task brought, before what came later."""
        due, self._due = self._due, None
        if due is not None:
            self._journal.expired(due)


def is_beside(event: HistoryEvent) -> bool:
    """Return whether an activity or a timer that begins here is none of an agent's: a deadline or a reminder."""
    if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
        return event.user_metadata.summary.data == json.dumps(DEADLINE_SUMMARY).encode()
    return event.activity_task_scheduled_event_attributes.activity_type.name.endswith(":reminder")


def _task_times(history: Sequence[HistoryEvent]) -> Iterator[tuple[int, float]]:
    began = {
        event.event_id: event.event_time.ToNanoseconds() / 1e9
        for event in history
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
    }
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            started = event.workflow_task_completed_event_attributes.started_event_id
            if started in began:
                yield event.event_id, began[started]
