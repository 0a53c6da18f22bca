"""Turns a bare event log into a journal: a past, and the last event as the trigger of a turn. Pure.

ADK's log says nothing of an invocation's status, nor of the plan. The status is inferred as SEMANTICS.md describes
ADK's logs; the plan, and with it the rest of the checks, comes when the session goes on (`checks.agent_of_import`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.errors import InvalidTrajectory, quoted
from perdure.journal.credential_questions import asking_call, credential_requests, is_credential_request
from perdure.journal.entries import (
    AnswerAccepted,
    AnswerLogged,
    Entry,
    EventLogged,
    EventRewound,
    Failure,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    MessageAccepted,
    ModelCalled,
    ResumeAccepted,
    SessionCreated,
    SharedStateRead,
    StateChanged,
    ToolKept,
    ToolOutput,
)
from perdure.journal.events import USER, Event
from perdure.journal.fold import apply_entry
from perdure.journal.live_events import live_events, live_indexes
from perdure.journal.projection import Invocation, Projection, stored_part
from perdure.journal.questions import confirmation_targets, is_confirmation_request, is_doubt_request
from perdure.journal.runs import is_failure, is_state
from perdure.journal.tasks import awaits_reply, find_open_task, is_reply
from perdure.journal.unusable_answers import is_refused
from perdure.rules.intake import is_state_event
from perdure.trajectories.checks import LogChecks, in_doubt, unanswered, waiting
from perdure.trajectories.given_logs import GivenLog

FreshId = Callable[[], str]
"""Draws an id that nobody has."""

CUT_OFF = "the imported log ends before the invocation does"

_STRUCTURED_ANSWER = "set_model_response"
"""ADK's tool by which a model with tools gives an answer that has a schema."""


@dataclass(frozen=True)
class Trajectory:
    """A journal that was made of an event log."""

    entries: tuple[Entry, ...]
    projection: Projection
    """The entries, folded."""


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
    log = completed(events, fresh)
    if resumable is None:
        resumable = is_resumable(log)
    builder = _Builder(dict(state or {}), resumable=resumable)
    live = set(live_indexes(log))
    last = {log[number].invocation_id: number for number in sorted(live)}
    agents = [log[number] for number in sorted(live, reverse=True) if log[number].author != USER]
    starters = {event.invocation_id: event.author for event in agents}
    for number, event in enumerate(log):
        where = f"event {number + 1}"
        if number not in live and not is_state_event(event):
            builder.show(event, where)
            continue
        starter, over = starters.get(event.invocation_id, ""), last.get(event.invocation_id) == number
        builder.add(event, where, starter, over=over)
    builder.settle_current()
    return Trajectory(tuple(builder.entries), builder.projection)


def to_journal(given: GivenLog, *, fresh: FreshId) -> tuple[Entry, ...]:
    """Return the journal with which the import of a log begins.

    Raises:
        InvalidTrajectory: The events are no log.
    """
    if given.entries is not None:
        return given.entries
    entries = read_log(given.events, state=given.state, fresh=fresh).entries
    if given.shared is None:
        return entries
    end = SharedStateRead(state=given.shared)
    LogChecks().count(end, "the shared state")
    return (*entries, end)


def completed(events: Iterable[Event], fresh: FreshId) -> list[Event]:
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
            asked = responses[0] if responses and event.is_users else ""
            current = asked or (current if current and not event.is_users else f"e-{fresh()}")
            event = event.model_copy(update={"invocation_id": current})
        current = event.invocation_id
        owners.update({call.id or "": current for call in event.get_function_calls()})
        log.append(event if event.id else event.model_copy(update={"id": fresh()}))
    return log


def is_resumable(log: list[Event]) -> bool | None:
    """Return whether a log is that of a resumable app; `None` if it does not show."""
    if any(is_state(event) for event in log):
        return True
    asked: dict[str | None, str] = {}
    for event in log:
        answered = event.get_function_responses() if event.is_users else []
        if any(asked.get(response.id, event.invocation_id) != event.invocation_id for response in answered):
            return False
        asked.update({call_id: event.invocation_id for call_id in event.long_running_tool_ids or ()})
    return None


class _Builder:
    """Appends what a session would have written."""

    def __init__(self, state: dict[str, Any], *, resumable: bool | None) -> None:
        self.entries: list[Entry] = []
        self.projection = Projection()
        self._checks = LogChecks()
        self._resumable = resumable
        self._current: str | None = None
        self._over: set[str] = set()
        created = SessionCreated(state=stored_part(state))
        self._checks.count(created, "the state that the log starts from")
        self.append(created)

    def append(self, *entries: Entry) -> None:
        for entry in entries:
            self.entries.append(entry)
            apply_entry(self.projection, entry)

    def show(self, event: Event, where: str) -> None:
        """Add an event that a later one rewound."""
        self.append(EventRewound(event=self._checks.check(event, where)))

    def add(self, event: Event, where: str, starter: str, *, over: bool) -> None:
        """Add an event, with the agent that starts its invocation; `over` if it is the last one of it."""
        event = self._checks.check(event, where)
        if is_state_event(event) and not starter and event.invocation_id not in self.projection.invocations:
            self.append(StateChanged(event=event))
            return
        if event.actions.rewind_before_invocation_id:
            raise InvalidTrajectory(
                f"{where} is a rewind in invocation {quoted(event.invocation_id)}, which has events; give it an"
                " invocation id of its own"
            )
        if event.is_users or event.invocation_id != self._current:
            self.settle_current()
        if over:
            self._over.add(event.invocation_id)
        if event.is_users:
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
        if not event.get_function_responses() and not is_reply(event):
            raise InvalidTrajectory(
                f"{where} is a message in invocation {quoted(event.invocation_id)}, which another one has started"
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
                f"{where} belongs to invocation {quoted(event.invocation_id)}, which no message before it has started"
            )
        if invocation.status != "running":
            self.append(ResumeAccepted(invocation_id=invocation.id), InvocationResumed(invocation_id=invocation.id))
        if _is_model_answer(event) and not _follows_from_tool(event, invocation):
            self.append(ModelCalled(agent=event.author, invocation_id=event.invocation_id))
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
        if (paused and self._resumable is not False) or self._listens(invocation):
            self.append(InvocationSettled(invocation_id=invocation.id, status="waiting"))
        elif invocation.id in self._over and _has_ended(invocation, resumable=self._resumable):
            self.append(InvocationSettled(invocation_id=invocation.id, status="finished"))
        else:
            agent = next((e.event.author for e in reversed(invocation.entries) if isinstance(e, EventLogged)), "")
            failure = Failure(agent=agent or USER, step="import", cause=CUT_OFF)
            self.append(InvocationSettled(invocation_id=invocation.id, status="failed", failures=(failure,)))

    def _listens(self, invocation: Invocation) -> bool:
        """Return whether an agent waits for the user's next message, for the task that it does."""
        task = find_open_task(live_events(self.projection.events))
        if task is None or task.invocation_id != invocation.id:
            return False
        return awaits_reply(self.projection.events, task.scope, task.agent)


def _asks_for_credential(events: Sequence[Event]) -> bool:
    """Return whether the last responses need credentials for which nobody was asked yet."""
    needed = set(events[-1].actions.requested_auth_configs)
    asked = {asking_call(request) for request in credential_requests(events)}
    return bool(needed) and not needed & asked


def _is_model_answer(event: Event) -> bool:
    is_question = is_confirmation_request(event) or is_credential_request(event) or is_doubt_request(event)
    if is_state(event) or event.get_function_responses() or is_question:
        return False
    return bool(event.parts) or event.error_code is not None or event.finish_reason is not None


def _follows_from_tool(event: Event, invocation: Invocation) -> bool:
    """Return whether google.adk's agent says what one of its tools has left, without asking its model.

    It tells of a tool that failed, or repeats the answer that its model gave by calling `set_model_response`.
    """
    own = [
        entry.event
        for entry in invocation.entries
        if isinstance(entry, EventLogged) and (entry.event.author, entry.event.branch) == (event.author, event.branch)
    ]
    if is_failure(event):
        open_ = {call.id for call in unanswered(invocation)}
        return any(call.id in open_ for before in own for call in before.get_function_calls())
    responses = own[-1].get_function_responses() if own else []
    return any(
        response.name == _STRUCTURED_ANSWER and _is_json_of(event.text or "", response.response)
        for response in responses
    )


def _is_json_of(text: str, response: Mapping[str, Any] | None) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return value in (response, (response or {}).get("result"))


def _has_ended(invocation: Invocation, *, resumable: bool | None) -> bool:
    """Return whether an invocation's log is whole: all that was started has ended, or the last word is final."""
    events = [entry.event for entry in invocation.entries if isinstance(entry, EventLogged)]
    if not events or unanswered(invocation) or in_doubt(invocation):
        return False
    if is_failure(events[-1]) or is_refused(events[-1]):
        return False
    if set(events[-1].actions.requested_tool_confirmations) - set(confirmation_targets(events).values()):
        # It was cut off before a person was asked.
        return False
    if _asks_for_credential(events):
        return False
    if not resumable:
        return events[-1].is_final_response()
    return not _open_agents(events)


def _open_agents(events: Sequence[Event]) -> list[str]:
    """Return the agents that have begun by a transfer, or first of all, and have not ended; the innermost last."""
    open_: list[str] = [events[0].author]
    handed_over = ""
    for event in events:
        if event.branch != events[0].branch:
            continue
        author = event.author
        if event.actions.end_of_agent:
            if author in open_:
                above = open_[len(open_) - open_[::-1].index(author) :]
                del open_[len(open_) - 1 - len(above) :]
                # In ADK 2 it stands in front of the work of the agent to which control is handed over.
                open_ += [name for name in above if name == handed_over and event.node_info is not None]
        elif not open_:
            # An end counts only until its author logs again.
            open_ = [author]
        if author == handed_over:
            handed_over = ""
        if event.actions.transfer_to_agent is not None:
            handed_over = event.actions.transfer_to_agent
            open_.append(handed_over)
    return open_
