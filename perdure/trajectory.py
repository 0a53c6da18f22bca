"""A bare event log becomes a journal: what lies in the past, and the last event as the trigger of a turn. Pure.

ADK's log says nothing of an invocation's status, nor of the plan. The status is inferred as SEMANTICS.md describes
ADK's logs; the plan, and with it the rest of the checks, comes when the session goes on (`imports.agent_of_import`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.genai import types

from perdure.doubts import is_doubt_request
from perdure.errors import InvalidTrajectory, RequestRefused
from perdure.events import USER, Event
from perdure.facts import stored_part
from perdure.imports import LogChecks, in_doubt, unanswered, waiting
from perdure.journal import (
    AnswerAccepted,
    AnswerLogged,
    Entry,
    EventLogged,
    Failure,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    ModelCalled,
    ResumeAccepted,
    SessionCreated,
    StateChanged,
    ToolKept,
    ToolOutput,
)
from perdure.messages import AnswerInput, MessageInput
from perdure.projection import Invocation, Projection
from perdure.requests import check_answer, check_message, is_state_event
from perdure.responses import is_confirmation_request

FreshId = Callable[[], str]
"""Draws an id that nobody has."""

_CUT_OFF = "the imported log ends before the invocation does"


@dataclass(frozen=True)
class Trajectory:
    """A journal that was made of an event log."""

    entries: tuple[Entry, ...]
    projection: Projection
    """The entries, folded."""


@dataclass(frozen=True)
class DrivenTrajectory(Trajectory):
    """A journal whose last entries set an invocation going."""

    invocation_id: str
    offset: int
    """Events in the log before those of the invocation's agents that are to come."""


def read_log(
    events: Iterable[Event], *, state: Mapping[str, Any] | None = None, resumable: bool | None = None, fresh: FreshId
) -> Trajectory:
    """Turn an event log into a journal in which nothing is at work.

    An invocation that has open long-running calls waits; one that came to its end has finished; any other has failed,
    so that it can be resumed.

    Args:
        events: The log. Events without an id or an invocation get one.
        state: The state that the log starts from.
        resumable: Whether the log is that of a resumable app. Default: as the log shows it, by checkpoints and ends, or
            by an answer that started an invocation of its own.
        fresh: Draws the ids.

    Raises:
        InvalidTrajectory: The events are no log.
    """
    log = _completed(events, fresh)
    if resumable is None:
        resumable = _is_resumable(log)
    builder = _Builder(dict(state or {}), resumable=resumable)
    last = {event.invocation_id: number for number, event in enumerate(log)}
    starters = {event.invocation_id: event.author for event in reversed(log) if event.author != USER}
    for number, event in enumerate(log):
        starter, over = starters.get(event.invocation_id, ""), last[event.invocation_id] == number
        builder.add(event, f"event {number + 1}", starter, over=over)
    builder.settle_current()
    return Trajectory(tuple(builder.entries), builder.projection)


def drive_log(
    events: Iterable[Event],
    *,
    state: Mapping[str, Any] | None = None,
    allow_pending_calls: bool,
    fresh: FreshId,
    now: float | None = None,
) -> DrivenTrajectory:
    """Turn an event log into a journal whose last event sets an invocation going.

    Args:
        events: The log; the last event is the trigger.
        state: The state that the log starts from.
        allow_pending_calls: Calls of the log that have no response may run.
        fresh: Draws the ids.
        now: Seconds since the epoch. Without it the open calls of the log have no deadlines.

    Raises:
        InvalidTrajectory: The events are no log, or the last one cannot drive a turn.
    """
    given = list(events)
    log = _completed(given, fresh)
    if not log:
        raise InvalidTrajectory("the log is empty; it needs at least a user's message, which starts an invocation")
    trigger = log[-1]
    resumable = _is_resumable(log)
    past = log[:-1] if trigger.author == USER else log
    read = read_log(past, state=state, resumable=resumable, fresh=fresh)
    if resumable is False and trigger.author == USER and not given[-1].invocation_id:
        trigger = trigger.model_copy(update={"invocation_id": f"e-{fresh()}"})
    mark = LogImported(allow_pending_calls=allow_pending_calls, timestamp=now, bare=True)
    return _Driver(read, trigger, len(log), resumable=resumable, mark=mark).drive()


def _completed(events: Iterable[Event], fresh: FreshId) -> list[Event]:
    """Give each event an id and an invocation where it has none: a message starts one, what follows belongs to it."""
    log: list[Event] = []
    current = ""
    owners: dict[str, str] = {}
    for event in events:
        if is_state_event(event) and not event.invocation_id:
            event = event.model_copy(update={"invocation_id": f"p-{fresh()}"})
        if is_state_event(event):
            log.append(event if event.id else event.model_copy(update={"id": fresh()}))
            continue
        responses = [owners.get(response.id or "", "") for response in event.get_function_responses()]
        if not event.invocation_id:
            asked = responses[0] if responses and event.author == USER else ""
            current = asked or (current if current and event.author != USER else f"e-{fresh()}")
            event = event.model_copy(update={"invocation_id": current})
        current = event.invocation_id
        owners.update({call.id or "": current for call in event.get_function_calls()})
        log.append(event if event.id else event.model_copy(update={"id": fresh()}))
    return log


def _is_resumable(log: list[Event]) -> bool | None:
    """Return whether a log is that of a resumable app; `None` if it does not show."""
    if any(_is_state(event) for event in log):
        return True
    asked: dict[str | None, str] = {}
    for event in log:
        answered = event.get_function_responses() if event.author == USER else []
        if any(asked.get(response.id, event.invocation_id) != event.invocation_id for response in answered):
            return False
        asked.update({call_id: event.invocation_id for call_id in event.long_running_tool_ids or ()})
    return None


def _is_state(event: Event) -> bool:
    return event.actions.agent_state is not None or bool(event.actions.end_of_agent)


class _Builder:
    """Appends what a session would have written."""

    def __init__(self, state: dict[str, Any], *, resumable: bool | None) -> None:
        self.entries: list[Entry] = []
        self.projection = Projection()
        self._checks = LogChecks()
        self._resumable = resumable
        self._current: str | None = None
        self._over: set[str] = set()
        stored = stored_part(state)
        self.append(SessionCreated(state=stored))

    def append(self, *entries: Entry) -> None:
        for entry in entries:
            self.entries.append(entry)
            self.projection.apply(entry)

    def add(self, event: Event, where: str, starter: str, *, over: bool) -> None:
        """Add an event, with the agent that starts its invocation; `over` if it is the last one of it."""
        event = self._checks.check(event, where)
        if is_state_event(event) and not starter and event.invocation_id not in self.projection.invocations:
            self.append(StateChanged(event=event))
            return
        if event.author == USER or event.invocation_id != self._current:
            self.settle_current()
        if over:
            self._over.add(event.invocation_id)
        if event.author == USER:
            self._add_user(event, where, starter)
        else:
            self._add_agent(event, where)
        self._current = event.invocation_id

    def _add_user(self, event: Event, where: str, starter: str) -> None:
        invocation = self.projection.invocations.get(event.invocation_id)
        if invocation is None:
            started = InvocationStarted(
                invocation_id=event.invocation_id, agent=starter, plan="", timestamp=event.timestamp
            )
            self.append(MessageAccepted(event=event), started)
            return
        if not event.get_function_responses():
            raise InvalidTrajectory(
                f"{where} is a message in invocation {event.invocation_id!r}, which another one has started"
            )
        kept = [
            ToolKept(invocation_id=invocation.id, call_id=r.id or "", output=ToolOutput(result=r.response or {}))
            for r in event.get_function_responses()
            if r.id not in self.projection.calls
        ]
        self.append(
            *kept,
            AnswerAccepted(event=event),
            InvocationResumed(invocation_id=invocation.id),
            AnswerLogged(event_id=event.id, timestamp=event.timestamp),
        )

    def _add_agent(self, event: Event, where: str) -> None:
        invocation = self.projection.invocations.get(event.invocation_id)
        if invocation is None:
            raise InvalidTrajectory(
                f"{where} belongs to invocation {event.invocation_id!r}, which no message before it has started"
            )
        if invocation.status != "running":
            self.append(ResumeAccepted(invocation_id=invocation.id), InvocationResumed(invocation_id=invocation.id))
        if _is_model_answer(event):
            self.append(ModelCalled(agent=event.author))
        self.append(EventLogged(event=event))

    def settle_current(self) -> None:
        """Settle the invocation that the last event belonged to."""
        if self._current is None:
            return
        invocation = self.projection.invocations[self._current]
        self._current = None
        open_ = [call.id or "" for call in waiting(invocation) if self.projection.calls[call.id or ""].answer == "open"]
        paused = bool(open_) and not unanswered(invocation)
        for call_id in open_ if paused else ():
            # Their tools have run; one that returned nothing has no response in the log.
            if not self.projection.calls[call_id].responded:
                self.append(ToolKept(invocation_id=invocation.id, call_id=call_id, output=ToolOutput()))
        if paused and self._resumable is not False:
            self.append(InvocationSettled(invocation_id=invocation.id, status="waiting"))
        elif invocation.id in self._over and _has_ended(invocation, resumable=self._resumable):
            self.append(InvocationSettled(invocation_id=invocation.id, status="finished"))
        else:
            agent = next((e.event.author for e in reversed(invocation.entries) if isinstance(e, EventLogged)), "")
            failure = Failure(agent=agent or USER, step="import", cause=_CUT_OFF)
            self.append(InvocationSettled(invocation_id=invocation.id, status="failed", failures=(failure,)))


def _is_model_answer(event: Event) -> bool:
    is_question = is_confirmation_request(event) or is_doubt_request(event)
    if _is_state(event) or event.get_function_responses() or is_question:
        return False
    return bool(event.parts) or event.error_code is not None or event.finish_reason is not None


def _has_ended(invocation: Invocation, *, resumable: bool | None) -> bool:
    """Return whether an invocation's log is whole: all that was started has ended, or the last word is final."""
    events = [entry.event for entry in invocation.entries if isinstance(entry, EventLogged)]
    if not events or unanswered(invocation) or in_doubt(invocation):
        return False
    if not resumable:
        return events[-1].is_final_response()
    open_: list[str] = [events[0].author]
    for event in events:
        if event.branch != events[0].branch:
            continue
        author = event.author
        if event.actions.end_of_agent:
            if author in open_:
                del open_[len(open_) - 1 - open_[::-1].index(author) :]
        elif not open_:
            # An end counts only until its author logs again.
            open_ = [author]
        if event.actions.transfer_to_agent is not None:
            open_.append(event.actions.transfer_to_agent)
    return not open_


class _Driver:
    """Appends the trigger to a log that was read."""

    def __init__(
        self, read: Trajectory, trigger: Event, number: int, *, resumable: bool | None, mark: LogImported
    ) -> None:
        self._entries = list(read.entries)
        self._past = read.projection
        self._trigger = trigger
        self._where = f"the last event ({number})"
        self._resumable = resumable
        self._mark = mark

    def drive(self) -> DrivenTrajectory:
        """Return the whole journal.

        Raises:
            InvalidTrajectory: The trigger cannot drive a turn.
        """
        trigger = self._trigger
        if trigger.author != USER:
            added = self._agents_event()
        elif trigger.get_function_responses():
            added = self._answer()
        else:
            added = self._message()
        entries = (*self._entries, self._mark, *added)
        projection = Projection.fold(entries)
        invocation_id = projection.turns[0].invocation_id
        return DrivenTrajectory(entries, projection, invocation_id, len(projection.events))

    def _refuse(self, reason: str) -> InvalidTrajectory:
        return InvalidTrajectory(f"{self._where} cannot drive a turn: {reason}")

    def _message(self) -> list[Entry]:
        trigger = self._trigger
        content = trigger.content or types.Content(parts=[])
        try:
            check_message(MessageInput(content=content))
        except RequestRefused as error:
            raise self._refuse(str(error)) from error
        if trigger.invocation_id in self._past.invocations:
            raise self._refuse(
                f"a message starts an invocation of its own, and {trigger.invocation_id!r} is one already"
            )
        return [MessageAccepted(event=self._checked())]

    def _checked(self) -> Event:
        """Return the user's event, checked against the whole log before it."""
        checks = LogChecks()
        for event in self._past.events:
            checks.check(event, "an event")
        return checks.check(self._trigger, self._where)

    def _answer(self) -> list[Entry]:
        event = self._checked()
        responses = event.get_function_responses()
        if any(response.id in self._past.calls for response in responses):
            return self._long_running_answer(event)
        owners = {self._owner(response.id or "") for response in responses}
        if len(owners) > 1:
            raise self._refuse("its responses belong to several invocations")
        invocation = self._past.invocations[owners.pop()]
        pending = {call.id for call in unanswered(invocation)}
        for response in responses:
            if response.id not in pending:
                raise self._refuse(f"the call {response.id!r} has its response already")
        self._check_allowed(pending - {response.id for response in responses})
        # The agent logs the response as its tool's; the tool does not run.
        kept: list[Entry] = [
            ToolKept(invocation_id=invocation.id, call_id=r.id or "", output=ToolOutput(result=r.response or {}))
            for r in responses
        ]
        return [*kept, ResumeAccepted(invocation_id=invocation.id)]

    def _owner(self, call_id: str) -> str:
        event = self._past.event_of_call(call_id)
        return event.invocation_id if event is not None else ""

    def _long_running_answer(self, event: Event) -> list[Entry]:
        content = event.content or types.Content()
        try:
            calls = check_answer(self._past, AnswerInput(content=content))
        except RequestRefused as error:
            raise self._refuse(str(error)) from error
        invocation = self._past.invocations[calls[0].pending.invocation_id]
        if not self._resumable and event.invocation_id not in self._past.invocations:
            return [MessageAccepted(event=event)]
        if not self._past.is_resumable(invocation):
            raise self._refuse(f"invocation {invocation.id!r} has finished; give the event an invocation id of its own")
        self._check_allowed({call.id for call in unanswered(invocation)})
        return [AnswerAccepted(event=event.model_copy(update={"invocation_id": invocation.id}))]

    def _agents_event(self) -> list[Entry]:
        trigger = self._trigger
        invocation = self._past.invocations[trigger.invocation_id]
        resume: list[Entry] = [ResumeAccepted(invocation_id=invocation.id)]
        if is_confirmation_request(trigger):
            raise self._refuse("it asks a person to approve a call; append the answer")
        if is_doubt_request(trigger):
            raise self._refuse("it asks a person what became of a call; append the answer")
        if calls := trigger.get_function_calls():
            self._check_allowed({call.id for call in calls})
            self._forget_pause(invocation)
            return resume
        if invocation.status == "waiting":
            names = ", ".join(f"{call.name} ({call.id})" for call in self._past.open_calls(invocation.id))
            raise self._refuse(f"invocation {invocation.id!r} waits for an answer to {names}; append the answer")
        if invocation.status == "finished":
            raise self._refuse(f"invocation {invocation.id!r} has finished; append a user's message")
        if not _is_state(trigger) and trigger.is_final_response():
            raise self._refuse(f"it is the final text of agent {trigger.author!r}; append a user's message")
        self._check_allowed({call.id for call in unanswered(invocation)})
        return resume

    def _forget_pause(self, invocation: Invocation) -> None:
        """Let the long-running tools of the trigger run: that they wait for an answer already was only inferred."""
        while isinstance(self._entries[-1], (ToolKept, InvocationSettled)):
            self._entries.pop()
        failure = Failure(agent=self._trigger.author, step="import", cause=_CUT_OFF)
        self._entries.append(InvocationSettled(invocation_id=invocation.id, status="failed", failures=(failure,)))

    def _check_allowed(self, calls: set[str | None]) -> None:
        if calls and not self._mark.allow_pending_calls:
            named = ", ".join(sorted(call or "" for call in calls))
            raise self._refuse(f"calls without a response would run ({named}); pass allow_pending_calls if they may")
