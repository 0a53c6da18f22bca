"""Turns the last event of a bare log into the trigger of a turn, or refuses it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.errors import InvalidTrajectory, RequestRefused, quoted
from perdure.journal.credential_questions import is_credential_request
from perdure.journal.entries import (
    AnswerAccepted,
    Entry,
    Failure,
    InvocationSettled,
    LogImported,
    MessageAccepted,
    ResumeAccepted,
    SharedStateRead,
    ToolKept,
    ToolOutput,
)
from perdure.journal.events import Event
from perdure.journal.fold import fold_journal
from perdure.journal.live_events import live_indexes
from perdure.journal.projection import Invocation
from perdure.journal.questions import is_confirmation_request, is_doubt_request
from perdure.journal.tasks import is_reply
from perdure.messages.session import AnswerInput, MessageInput
from perdure.plan.contents import types
from perdure.rules.intake import check_answer, check_message, is_state_event
from perdure.trajectories.bare_log import CUT_OFF, FreshId, Trajectory, completed, is_resumable, read_log
from perdure.trajectories.checks import LogChecks, unanswered


@dataclass(frozen=True)
class TriggeredTrajectory(Trajectory):
    """A journal whose last entries set an invocation going."""

    invocation_id: str
    offset: int
    """Events in the log before those of the invocation's agents that are to come."""


def read_triggered_log(
    events: Iterable[Event],
    *,
    state: Mapping[str, Any] | None = None,
    allow_pending_calls: bool,
    fresh: FreshId,
    now: float | None = None,
    shared: Mapping[str, Any] | None = None,
    key_salt: str = "",
) -> TriggeredTrajectory:
    """Turn an event log into a journal whose last event sets an invocation going.

    Args:
        events: The log; the last event is the trigger.
        state: The state that the log starts from.
        allow_pending_calls: Calls of the log that have no response may run.
        fresh: Draws the ids.
        now: Seconds since the epoch. Without it the open calls of the log have no deadlines.
        shared: The `user:` and `app:` keys at its end, where the events do not give them.
        key_salt: What idempotency keys of calls that run from here on begin with.

    Raises:
        InvalidTrajectory: The events are no log, or the last one cannot drive a turn.
    """
    given = list(events)
    log = completed(given, fresh)
    live = [number for number in live_indexes(log) if not is_state_event(log[number])]
    if not live:
        raise InvalidTrajectory("the log is empty; it needs at least a user's message, which starts an invocation")
    # A rewind, a summary or a change of state behind it is no trigger.
    number = live[-1]
    trigger = log[number]
    resumable = is_resumable(log)
    is_last = number == len(log) - 1
    past = log[:-1] if trigger.is_users and is_last else log
    read = read_log(past, state=state, resumable=resumable, fresh=fresh)
    if resumable is False and trigger.is_users and is_last and not given[-1].invocation_id:
        trigger = trigger.model_copy(update={"invocation_id": f"e-{fresh()}"})
    mark = LogImported(allow_pending_calls=allow_pending_calls, timestamp=now, bare=True, key_salt=key_salt)
    end = [SharedStateRead(state=dict(shared))] if shared is not None else []
    reader = _TriggerReader(read, trigger, number + 1, resumable=resumable, end=end, mark=mark)
    return reader.read() if is_last else reader.go_on()


class _TriggerReader:
    """Appends the trigger to a log that was read."""

    def __init__(
        self,
        read: Trajectory,
        trigger: Event,
        number: int,
        *,
        resumable: bool | None,
        end: Sequence[Entry],
        mark: LogImported,
    ) -> None:
        self._entries = list(read.entries)
        self._past = read.projection
        self._trigger = trigger
        self._where = f"the last event ({number})"
        self._resumable = resumable
        self._end = end
        self._mark = mark

    def read(self) -> TriggeredTrajectory:
        """Return the whole journal.

        Raises:
            InvalidTrajectory: The trigger cannot drive a turn.
        """
        trigger = self._trigger
        if not trigger.is_users:
            added = self._agents_event()
        elif trigger.get_function_responses():
            added = self._answer()
        else:
            added = self._message()
        return self._triggered(added)

    def go_on(self) -> TriggeredTrajectory:
        """Return the whole journal, where what stands last is no trigger: what broke off goes on, if anything did.

        Raises:
            InvalidTrajectory: Calls would run that may not.
        """
        invocation = self._past.invocations[self._trigger.invocation_id]
        if invocation.status != "failed":
            return self._triggered([], invocation.id)
        self._check_allowed({call.id for call in unanswered(invocation)})
        return self._triggered([ResumeAccepted(invocation_id=invocation.id)])

    def _triggered(self, added: list[Entry], invocation_id: str = "") -> TriggeredTrajectory:
        entries = (*self._entries, *self._end, self._mark, *added)
        projection = fold_journal(entries)
        invocation_id = invocation_id or projection.turns[0].invocation_id
        return TriggeredTrajectory(entries, projection, invocation_id, len(projection.events))

    def _refuse(self, reason: str) -> InvalidTrajectory:
        return InvalidTrajectory(f"{self._where} cannot drive a turn: {reason}")

    def _message(self) -> list[Entry]:
        trigger = self._trigger
        content = trigger.content or types.Content(parts=[])
        try:
            check_message(MessageInput(content=content))
        except RequestRefused as error:
            raise self._refuse(str(error)) from error
        if is_reply(trigger) and trigger.invocation_id in self._past.invocations:
            return [AnswerAccepted(event=self._checked())]
        if trigger.invocation_id in self._past.invocations:
            raise self._refuse(
                f"a message starts an invocation of its own, and {quoted(trigger.invocation_id)} is one already"
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
        invocation = self._past.invocations.get(owners.pop())
        if invocation is None:
            raise self._refuse("the log rewound the call that it responds to")
        pending = {call.id for call in unanswered(invocation)}
        for response in responses:
            if response.id not in pending:
                raise self._refuse(f"the call {quoted(response.id)} has its response already")
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
        calling = self._past.event_of_call(calls[0].pending.id)
        # ADK 2 goes on in the invocation that asked, whatever the answer's own is.
        is_older = calling is None or calling.node_info is None
        if is_older and not self._resumable and event.invocation_id not in self._past.invocations:
            return [MessageAccepted(event=event)]
        if not self._past.is_resumable(invocation):
            raise self._refuse(
                f"invocation {quoted(invocation.id)} has finished; give the event an invocation id of its own"
            )
        self._check_allowed({call.id for call in unanswered(invocation)})
        return [AnswerAccepted(event=event.model_copy(update={"invocation_id": invocation.id}))]

    def _agents_event(self) -> list[Entry]:
        trigger = self._trigger
        invocation = self._past.invocations[trigger.invocation_id]
        resume: list[Entry] = [ResumeAccepted(invocation_id=invocation.id)]
        if is_confirmation_request(trigger):
            raise self._refuse("it asks a person to approve a call; append the answer")
        if is_credential_request(trigger):
            raise self._refuse("it asks a person for a credential; append the answer")
        if is_doubt_request(trigger):
            raise self._refuse("it asks a person what became of a call; append the answer")
        if calls := trigger.get_function_calls():
            self._check_allowed({call.id for call in calls})
            self._forget_pause(invocation)
            return resume
        if invocation.status == "waiting":
            names = ", ".join(f"{call.name} ({call.id})" for call in self._past.open_calls(invocation.id))
            raise self._refuse(f"invocation {quoted(invocation.id)} waits for an answer to {names}; append the answer")
        if invocation.status == "finished":
            raise self._refuse(f"invocation {quoted(invocation.id)} has finished; append a user's message")
        self._check_allowed({call.id for call in unanswered(invocation)})
        return resume

    def _forget_pause(self, invocation: Invocation) -> None:
        """Let the long-running tools of the trigger run: that they wait for an answer already was only inferred."""
        while isinstance(self._entries[-1], (ToolKept, InvocationSettled)):
            self._entries.pop()
        failure = Failure(agent=self._trigger.author, step="import", cause=CUT_OFF)
        self._entries.append(InvocationSettled(invocation_id=invocation.id, status="failed", failures=(failure,)))

    def _check_allowed(self, calls: set[str | None]) -> None:
        if calls and not self._mark.allow_pending_calls:
            named = ", ".join(sorted(call or "" for call in calls))
            raise self._refuse(f"calls without a response would run ({named}); pass allow_pending_calls if they may")
