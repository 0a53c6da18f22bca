"""Reads a session's journal out of its workflow's history, without running any code of it. Pure.

History holds the journal's beginning (the input of the run), and what it gained as model calls and `run_activity` were
scheduled. What it gained afterwards is rebuilt from what history holds anyway: updates, signals, results of activities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.api.history.v1 import HistoryEvent

from perdure.errors import LogError, RequestRefused
from perdure.journal.entries import Entry, Failure, InvocationSettled, SessionCreated, StateChanged, ToolOutput
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.packing import unpack
from perdure.journal.projection import Invocation, Projection
from perdure.messages.callbacks import CALLBACK_NAMES, CallbackInput
from perdure.messages.large_requests import SEND_AHEAD
from perdure.messages.session import (
    RESPOND,
    RESUME,
    SEND_MESSAGE,
    STOP,
    AnswerInput,
    CodeInput,
    CodeOutput,
    InvocationInput,
    MessageInput,
    ModelInput,
    ModelOutput,
    SessionInput,
    ToolInput,
)
from perdure.messages.shared_state import CHANGE_STATE, StateChangeInput
from perdure.messages.step_log import StepLog
from perdure.recovery.doubt_questions import Questions
from perdure.recovery.history_payloads import (
    Step,
    kept_part,
    read_json,
    requests,
    start_of,
    step_key,
    steps,
    task_of,
    writes_of,
)
from perdure.recovery.rebuilding import Rebuilder
from perdure.recovery.rebuilt_entries import lost_steps, model_called, steps_before
from perdure.recovery.rebuilt_failures import keep_returned, tool_failed
from perdure.recovery.slices import Part, in_order
from perdure.recovery.starts import DeadlineTimers, Starts, is_beside
from perdure.rules.failures import failure_text
from perdure.rules.ids import derived_id
from perdure.rules.in_doubt import NOT_STARTED
from perdure.rules.intake import MAX_TOLD_SIGNALS, check_sent, check_signal, parse_signal, refused_signal
from perdure.rules.repeats import accept_resume

_CLOSED = (EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT)


def length_outside(history: Sequence[HistoryEvent]) -> int:
    """Return how many entries of the journal came in otherwise than in the input of the run: 0, or all it began with.

    `slices.read_archive` reads them; `salvage` takes them as `begun`.
    """
    if not history or not history[0].HasField("workflow_execution_started_event_attributes"):
        return 0
    start = start_of(history[0].workflow_execution_started_event_attributes.input)
    if start.carried is not None:
        return start.carried.length
    if not start.length or not start.journal or len(unpack(start.journal)) >= start.length:
        return 0
    return start.length


def salvage(history: Sequence[HistoryEvent], *, begun: Sequence[Entry] = (), goes_on: bool = True) -> list[Entry]:
    """Return the journal of a session, as far as the history of its newest run tells it.

    Nothing that a user sent is missing, and no result of a tool or function that completed. What was at work is
    *running* in it, so that a run that starts with the journal goes on.

    Args:
        history: All events of the run, payloads decoded.
        begun: The journal that the run began with, if it came in otherwise than in its input (`length_outside`); what
            lies behind that is read from the history.
        goes_on: What is running will go on at once, so what only waits may be left running: it is entered again, and
            logs what its agents logged last. Otherwise it is settled as waiting.

    Raises:
        LogError: It is no session's history, or it leaves out what was too large for it.
    """
    reader = _Reader(history, begun)
    reader.read_slices()
    reader.read_rest()
    reader.settle(goes_on=goes_on)
    return reader.projection.entries


def shared_writes(history: Sequence[HistoryEvent], *, begun: Sequence[Entry] = ()) -> set[str]:
    """Return the ids of events whose `user:` and `app:` keys a run is known to have shared; arguments as of `salvage`.

    A run takes over what an earlier one has shared, or what was shared for it.
    """
    start = start_of(history[0].workflow_execution_started_event_attributes.input)
    projection = fold_journal(_first_entries(history, start, begun))
    found = {event.id for event in projection.events}
    writes = dict(writes_of(history))
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            write = writes.get(event.activity_task_completed_event_attributes.scheduled_event_id)
            if write is not None:
                found.add(write.write_id)
    return found


class _Reader:
    """Reads a history: in one pass what stands in it as it was, in a second one the rest."""

    def __init__(self, history: Sequence[HistoryEvent], begun: Sequence[Entry]) -> None:
        if not history or not history[0].HasField("workflow_execution_started_event_attributes"):
            raise LogError("this is no history of a workflow: its first event does not say how it started")
        self._history = history
        started = history[0].workflow_execution_started_event_attributes
        start = start_of(started.input)
        self._seed = started.first_execution_run_id
        self._calls = dict(steps(history))
        """Steps of agents by the id of the event that scheduled them."""
        self.journal = Rebuilder(_first_entries(history, start, begun), self._seed, dict(writes_of(history)).values())
        self._questions = Questions(self.journal, self._seed)
        self._starts = Starts(history, self.journal, self._questions)
        self._deadlines = DeadlineTimers(self.journal, self._starts)
        self._lengths: dict[int, int] = {}
        """How long the journal was, at least, as they were scheduled."""
        self._told = 0
        """The workflow task up to which the slices tell everything, but for what came beside the last one."""
        self._failed: dict[tuple[str, ...], tuple[str, Failure]] = {}
        self._open: set[int] = set()
        """Activities and timers that have not ended."""
        self._stops: dict[int, InvocationInput] = {}
        self._requests = {event_id: (name, request) for event_id, name, request in requests(history)}
        """What updates asked for, by the event that says that they were accepted."""
        self._results = {
            event.workflow_execution_update_completed_event_attributes.accepted_event_id: event
            for event in history
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED
        }
        self._refused = 0
        """Signals of which an event tells that no slice has."""
        self._news = 0
        """The last event that a workflow task had, or has, to deal with."""
        self._dealt = True

    @property
    def projection(self) -> Projection:
        """The journal so far, folded."""
        return self.journal.projection

    def read_slices(self) -> None:
        """Read what stands in history as it was."""
        behind: list[Part] = []
        for event in self._history:
            call = self._calls.get(event.event_id)
            part = call.journal if call is not None else kept_part(event)
            if part is not None:
                new, behind = in_order([*behind, (part.offset, part.unpacked())], len(self.projection.entries))
                for entry in new:
                    apply_entry(self.projection, entry)
                self._told = max(self._told, task_of(event))
            self._lengths[event.event_id] = len(self.projection.entries)
        # What a run has cut for a step that it leaves to the next run, that one's input has.
        if behind and not self._history[-1].HasField("workflow_execution_continued_as_new_event_attributes"):
            raise LogError(
                f"the history leaves out entries {len(self.projection.entries)} to {behind[0][0]} of the journal"
            )

    def read_rest(self) -> None:
        """Rebuild what the journal gained that no slice tells."""
        task = 0
        for event in self._history:
            match event.event_type:
                case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                    task = event.event_id
                    if task >= self._told:
                        self._deadlines.task_completed(task)
                    if event.workflow_task_completed_event_attributes.started_event_id > self._news:
                        self._dealt = True
                case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                    self._update(event, fresh=task > self._told)
                case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                    attributes = event.workflow_execution_update_completed_event_attributes
                    stop = self._stops.pop(attributes.accepted_event_id, None)
                    if stop is not None and task > self._told:
                        self._stop_named(stop)
                case _:
                    self._deadlines.expire()
                    self._input(event)
        self._deadlines.expire()

    def _input(self, event: HistoryEvent) -> None:
        """Take in what a workflow task would be given."""
        time = event.event_time.ToNanoseconds() / 1e9
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED | EventType.EVENT_TYPE_TIMER_STARTED:
                self._began(event)
                return
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                self._completed(completed.scheduled_event_id, completed.result, time)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signal = event.workflow_execution_signaled_event_attributes
                self._signal(signal.signal_name, signal.input, time, event.event_id)
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                self._starts.recorded(event)
                return
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
                self._cancelled(event.event_id)
            case _ if not self._ended(event):
                return
            case _:
                pass
        self._news, self._dealt = event.event_id, False

    def _began(self, event: HistoryEvent) -> None:
        """Take in that an activity or a timer began."""
        if not is_beside(event):
            self._open.add(event.event_id)
        elif event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
            self._deadlines.began(event.event_id)
        self._starts.scheduled(event)
        if event.event_id in self._calls:
            self._failed.pop(step_key(self._calls[event.event_id]), None)

    def _ended(self, event: HistoryEvent) -> bool:
        """Take in an end of an activity without a result, or of a timer; returns whether it is one."""
        time = event.event_time.ToNanoseconds() / 1e9
        self._starts.ended(event)
        if event.HasField("activity_task_failed_event_attributes"):
            failed = event.activity_task_failed_event_attributes
            self._failure(failed.scheduled_event_id, failed.failure, time)
        elif event.HasField("activity_task_timed_out_event_attributes"):
            timed_out = event.activity_task_timed_out_event_attributes
            self._failure(timed_out.scheduled_event_id, timed_out.failure, time)
        elif event.HasField("activity_task_canceled_event_attributes"):
            self._open.discard(event.activity_task_canceled_event_attributes.scheduled_event_id)
        elif event.HasField("timer_fired_event_attributes"):
            self._open.discard(event.timer_fired_event_attributes.started_event_id)
            self._deadlines.ended(event.timer_fired_event_attributes.started_event_id)
        elif event.HasField("timer_canceled_event_attributes"):
            self._open.discard(event.timer_canceled_event_attributes.started_event_id)
            self._deadlines.ended(event.timer_canceled_event_attributes.started_event_id)
        else:
            return False
        return True

    def _cancelled(self, event_id: int) -> None:
        for invocation in list(self.projection.invocations.values()):
            if event_id > self._told and invocation.status in ("running", "waiting", "queued"):
                apply_entry(self.projection, _stopped(invocation, "the session's workflow was cancelled"))

    # What users sent.

    def _update(self, event: HistoryEvent, *, fresh: bool) -> None:
        update, data = self._requests[event.event_id]
        time = event.event_time.ToNanoseconds() / 1e9
        if update == STOP:
            self._stops[event.event_id] = InvocationInput.model_validate(data)
        if not fresh:
            return
        if update == SEND_MESSAGE:
            self.journal.message(MessageInput.model_validate(data), self._told_id(event), time)
        elif update == RESPOND:
            self._answer(AnswerInput.model_validate(data), self._told_id(event), time)
        elif update == CHANGE_STATE:
            self.journal.state_changed(StateChangeInput.model_validate(data), time)
        elif update == RESUME:
            accept_resume(self.projection, InvocationInput.model_validate(data))

    def _told_id(self, accepted: HistoryEvent) -> str:
        return _invocation_id(accepted, self._results.get(accepted.event_id), self._seed)

    def _signal(self, name: str, data: Payloads, time: float, event_id: int) -> None:
        if name == SEND_AHEAD:
            return
        try:
            check_signal(name, len(data.payloads))
            check_sent(data.payloads[0].data)
            answer = parse_signal(read_json(data))
        except (RequestRefused, LogError, ValueError, TypeError) as error:
            # The session refused it, too: it is malformed, or encrypted with a key that its workers do not have.
            refusal: Exception | None = error
        else:
            refusal = self._answer(answer, f"e-{derived_id(self._seed, 'signal', event_id)}", time)
        # The slices tell of those before them.
        if refusal is not None and event_id > self._told and self._refused < MAX_TOLD_SIGNALS:
            self._refused += 1
            event = refused_signal(name, refusal, len(self.projection.entries), time)
            apply_entry(self.projection, StateChanged(event=event))

    def _answer(self, answer: AnswerInput, invocation_id: str, time: float) -> RequestRefused | None:
        self._questions.answered(answer, time)
        return self.journal.answer(answer, invocation_id, time)

    # What activities returned.

    def _completed(self, scheduled: int, result: Payloads, time: float) -> None:
        self._open.discard(scheduled)
        call = self._calls.get(scheduled)
        if call is None:
            self._questions.returned(scheduled, result, time)
            return
        self._failed.pop(step_key(call), None)
        invocation = self.projection.invocations.get(call.invocation_id or "")
        if invocation is None or invocation.status == "finished":
            return
        data = read_json(result)
        scope = self.journal.within(call.scope)
        if scope is None:
            return
        if isinstance(call, ModelInput):
            output = ModelOutput.model_validate(data)
            call, before = steps_before(scope.projection, call, output)
            for entry in before:
                scope.take(entry)
            if output.is_answer:
                scope.model_answered(call, output, time)
        elif isinstance(call, ToolInput):
            output = ToolOutput.model_validate(data)
            self._questions.cancelled(scheduled)
            if output.times is None:
                # It asks for a confirmation, or the model's arguments do not fit.
                self._starts.not_started(scheduled)
            scope.tool_returned(call, output, time)
        elif isinstance(call, CallbackInput):
            scope.called_back(call, StepLog.model_validate(data), self._lengths[scheduled], time)
        else:
            scope.code_returned(call, CodeOutput.model_validate(data), self._lengths[scheduled])

    def _failure(self, scheduled: int, failure: FailureProto, time: float) -> None:
        self._open.discard(scheduled)
        call, in_doubt = self._calls.get(scheduled), self._questions.failed(scheduled, failure, time)
        if call is None or in_doubt:
            return
        if isinstance(call, ToolInput) and self._is_told(call, failure, time):
            return
        scope = self.journal.within(call.scope) if isinstance(call, ToolInput) else None
        if isinstance(call, ToolInput) and scope is not None:
            keep_returned(scope, call, failure)
        if (
            isinstance(call, ModelInput)
            and not call.scope
            and self.projection.model_calls[call.agent] <= call.call_index
        ):
            apply_entry(self.projection, model_called(call))
        scope = self.journal.within(call.scope) if isinstance(call, CallbackInput) and call.which == "run" else None
        if scope is not None and isinstance(call, CallbackInput) and call.invocation_id in scope.projection.invocations:
            scope.code_failed(call)
        self._failed[step_key(call)] = call.invocation_id or "", _failed(call, failure)

    def _is_told(self, call: ToolInput, failure: FailureProto, time: float) -> bool:
        """Return whether the model was to be told of a tool's failure, which is then taken in."""
        if call.scope or failure.application_failure_info.type in NOT_STARTED:
            return False
        return tool_failed(self.journal, call, failure_text(failure), time)

    # What became of the invocations.

    def settle(self, *, goes_on: bool) -> None:
        """Settle what no slice tells to be settled, where history leaves no doubt."""
        for stop in self._stops.values():
            self._stop_named(stop)
        self._tell_lost(self._history[-1])
        for invocation in list(self.projection.invocations.values()):
            if invocation.status not in ("running", "queued"):
                continue
            failures = tuple(failure for owner, failure in self._failed.values() if owner == invocation.id)
            if invocation.status == "queued" or not failures:
                self._questions.ask(invocation, self._history[-1].event_time.ToNanoseconds() / 1e9)
            if invocation.status != "running" or self._open:
                continue
            if failures:
                apply_entry(self.projection, _settled(invocation, "failed", failures))
            elif not goes_on and self._dealt and _waits(self.projection, invocation):
                apply_entry(self.projection, _settled(invocation, "waiting"))

    def _tell_lost(self, last: HistoryEvent) -> None:
        for call in [self._calls[scheduled] for scheduled in sorted(self._open & self._calls.keys())]:
            if last.event_type in _CLOSED and isinstance(call, ModelInput) and call.steps > 1:
                time = last.event_time.ToNanoseconds() / 1e9
                apply_entry(self.projection, lost_steps(call, len(self.projection.entries), time))

    def _stop_named(self, stop: InvocationInput) -> None:
        invocation = self.projection.invocations.get(stop.invocation_id)
        if invocation is not None and invocation.status in ("running", "waiting", "queued", "failed"):
            apply_entry(self.projection, _stopped(invocation, stop.reason))


def _invocation_id(accepted: HistoryEvent, completed: HistoryEvent | None, seed: str) -> str:
    """Return the invocation that an update was told of, or a fresh id if it was not told yet."""
    if completed is not None:
        outcome = completed.workflow_execution_update_completed_event_attributes.outcome
        if outcome.HasField("success"):
            return str(read_json(outcome.success)["invocation"]["id"])
    return f"e-{derived_id(seed, 'update', accepted.event_id)}"


def _stopped(invocation: Invocation, reason: str | None) -> InvocationSettled:
    return InvocationSettled(invocation_id=invocation.id, status="stopped", reason=reason)


def _settled(
    invocation: Invocation, status: Literal["waiting", "failed"], failures: tuple[Failure, ...] = ()
) -> InvocationSettled:
    return InvocationSettled(invocation_id=invocation.id, status=status, failures=failures)


def _waits(projection: Projection, invocation: Invocation) -> bool:
    is_open = bool(projection.open_calls(invocation.id)) and not invocation.answers
    return is_open and projection.is_resumable(invocation)


def _failed(call: Step, failure: FailureProto) -> Failure:
    match call:
        case ModelInput():
            step = "model"
        case ToolInput():
            step = call.tool
        case CallbackInput():
            step = CALLBACK_NAMES[call.which]
        case CodeInput():
            step = call.name
    return Failure(agent=call.agent or "?", step=step, cause=failure_text(failure))


def _first_entries(history: Sequence[HistoryEvent], start: SessionInput, begun: Sequence[Entry]) -> Sequence[Entry]:
    outside = length_outside(history)
    if not outside:
        return unpack(start.journal) if start.journal else (SessionCreated(state=start.state),)
    if len(begun) < outside:
        raise LogError(f"the run was to begin with {outside} journal entries, of which only {len(begun)} were found")
    return [*begun[:outside], *start.stopped]
