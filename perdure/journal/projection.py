"""The projection: one pure fold of the journal into everything that the code asks of a session.

Resume, continue-as-new, a lost workflow, the workers' copies and the tests all go through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from google.genai import types

from perdure.journal.entries import (
    ActivityKept,
    AnswerAccepted,
    AnswerLogged,
    CallExpired,
    CallReminded,
    Entry,
    EventLogged,
    EventRewound,
    FailureCaught,
    InvocationPinned,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    ModelCalled,
    PlanLoaded,
    ResumeAccepted,
    RunBegan,
    SessionCreated,
    SharedStateRead,
    StateChanged,
    TempStateSet,
    ToolKept,
    ToolRan,
    ToolStarted,
)
from perdure.journal.events import QUESTIONS, REQUEST_CONFIRMATION, REQUEST_RECONCILE, Event
from perdure.journal.facts import SHARED, TEMP, SessionFacts, stored_part
from perdure.journal.interning import share_field_sets
from perdure.journal.invocations import Call, Invocation, Turn, restart_deadline, set_deadline
from perdure.journal.no_answers import is_refused
from perdure.journal.open_calls import PendingCall
from perdure.journal.questions import lets_run_again, target_of
from perdure.journal.tool_runs import add_run
from perdure.plan.nodes import Plan


class Projection(SessionFacts):
    """A session, folded from its journal. `apply` is the only thing that changes it."""

    @classmethod
    def fold(cls, entries: Iterable[Entry]) -> Projection:
        """Return the projection of a whole journal."""
        projection = cls()
        for entry in entries:
            projection.apply(entry)
        return projection

    def apply(self, entry: Entry) -> None:  # noqa: C901 -- one case for each kind of entry
        """Fold one more entry in."""
        share_field_sets(entry)
        self.entries.append(entry)
        match entry:
            case SessionCreated():
                self.state.update(stored_part(entry.state))
            case EventLogged():
                self._log(entry)
            case MessageAccepted() | AnswerAccepted():
                self._accept(entry)
            case AnswerLogged():
                self._log_answer(entry)
            case ResumeAccepted():
                self._resume(entry)
            case InvocationStarted():
                self._start(entry)
            case InvocationResumed():
                invocation = self.invocations[entry.invocation_id]
                invocation.status, invocation.failures, invocation.reason = "running", (), None
                invocation.at_limit = False
                self._drop_turns(entry.invocation_id)
            case InvocationSettled():
                self._settle(entry)
            case PlanLoaded():
                self.newest_plan = entry.digest or entry.plan.digest
                self.plans[self.newest_plan] = entry.plan
            case SharedStateRead():
                own = {key: value for key, value in self.state.items() if not key.startswith(SHARED)}
                self.state = own | entry.state
            case TempStateSet():
                self.invocations[entry.invocation_id].temp.update(entry.delta)
            case ModelCalled():
                self._count_call(entry)
            case ToolKept():
                self._keep_tool(entry)
            case ActivityKept() | FailureCaught() | RunBegan():
                self.invocations[entry.invocation_id].entries.append(entry)
            case ToolStarted():
                self.invocations[entry.invocation_id].started[entry.call_id] = entry
            case ToolRan():
                add_run(self.tool_runs, entry)
                if entry.outcome == "not_started":
                    _allow_start(self.invocations.values(), entry.call_id)
            case CallExpired():
                _expire(self, self.calls[entry.call_id])
            case CallReminded():
                self.calls[entry.call_id].remind_at = None
            case LogImported():
                _take_over(self, entry)
            case InvocationPinned():
                _pin(self, entry)
            case StateChanged():
                self._show(entry.event)
            case EventRewound():
                self.call_ids.update(call.id or "" for call in entry.event.get_function_calls())
                self._show(entry.event)
            case _:
                assert_never(entry)

    def _log(self, entry: EventLogged) -> None:
        event = entry.event
        invocation = self.invocations.get(event.invocation_id)
        if invocation is not None:
            invocation.entries.append(entry)
        if entry.hidden:
            return
        if invocation is not None and is_refused(event):
            invocation.refused.add(event.id)
        self._show(event)
        for response in event.get_function_responses():
            if response.id in self.calls:
                self.calls[response.id].responded = True
            if invocation is not None:
                invocation.started.pop(response.id or "", None)
        for call in event.get_function_calls():
            self.call_ids.add(call.id or "")
            if call.id and event.long_running_tool_ids and call.id in event.long_running_tool_ids:
                made = _long_running_call(event, call, self.plan_of(invocation) if invocation else None)
                self.calls[call.id] = made
                if made.expiry or made.remind_at:
                    self.timed[call.id] = made

    def _count_call(self, entry: ModelCalled) -> None:
        self.model_calls[entry.agent] += 1
        invocation = self.invocations.get(entry.invocation_id)
        if invocation is None:
            return
        invocation.model_calls[entry.agent] += 1
        run = (entry.agent, entry.branch, entry.run)
        asked = invocation.asked_again.pop(run, ())
        if entry.again is not None:
            invocation.asked_again[run] = (*asked, entry.again)

    def _show(self, event: Event) -> None:
        self.events.append(event)
        self.state.update(event.actions.state_delta)

    def _resume(self, entry: ResumeAccepted) -> None:
        invocation = self.invocations[entry.invocation_id]
        self.turns.append(Turn("resume", invocation.id))
        invocation.status, invocation.granted = "queued", entry.max_llm_calls
        invocation.model_calls.clear()
        if entry.request_id:
            self.requests[entry.request_id] = invocation.id

    def _accept(self, entry: MessageAccepted | AnswerAccepted) -> None:
        event = entry.event
        if entry.request_id:
            self.requests[entry.request_id] = event.invocation_id
        for response in event.get_function_responses():
            if response.id in self.calls:
                self.calls[response.id].answer = "accepted"
                self.timed.pop(response.id, None)
                # A person's answer lets the imported call run that it is about; answers in the import are data.
                self.blocked_calls.discard(_asked_about(self.calls[response.id].pending))
        if isinstance(entry, MessageAccepted):
            self.invocations[event.invocation_id] = Invocation(event.invocation_id, event, asked=entry.max_llm_calls)
            self.turns.append(Turn("message", event.invocation_id))
            return
        invocation = self.invocations[event.invocation_id]
        invocation.answers.append(event)
        if invocation.status in ("waiting", "failed"):
            self.turns.append(Turn("answer", event.invocation_id))
            invocation.status = "queued"

    def _log_answer(self, entry: AnswerLogged) -> None:
        for invocation in self.invocations.values():
            for event in invocation.answers:
                if event.id == entry.event_id:
                    invocation.answers.remove(event)
                    _mark_answered(self, event)
                    self._show(_at(event, entry.timestamp))
                    return

    def _start(self, entry: InvocationStarted) -> None:
        invocation = self.invocations[entry.invocation_id]
        # A log from elsewhere names no plan: the invocation takes the newest one when it goes on.
        invocation.status, invocation.agent, invocation.plan = "running", entry.agent, entry.plan or None
        self._drop_turns(entry.invocation_id)
        _mark_answered(self, invocation.message)
        self._show(_at(invocation.message, entry.timestamp))

    def _settle(self, entry: InvocationSettled) -> None:
        invocation = self.invocations[entry.invocation_id]
        invocation.status = entry.status
        invocation.failures, invocation.reason = entry.failures, entry.reason
        invocation.refused.clear()
        invocation.at_limit, invocation.settled = entry.at_limit, entry.timestamp
        if entry.status != "waiting":
            _forget_expired(self.calls.values(), entry.invocation_id)
        if entry.status in ("stopped", "finished"):
            self._drop_turns(entry.invocation_id)
        if entry.status == "finished":
            invocation.entries.clear()
            invocation.kept.clear()
            invocation.started.clear()
            invocation.temp.clear()

    def _keep_tool(self, entry: ToolKept) -> None:
        self.invocations[entry.invocation_id].kept[entry.call_id] = entry.output
        if entry.call_id in self.calls and not entry.output.result:
            self.calls[entry.call_id].responded = True

    def _drop_turns(self, invocation_id: str) -> None:
        self.turns = [turn for turn in self.turns if turn.invocation_id != invocation_id]


def _long_running_call(event: Event, call: types.FunctionCall, plan: Plan | None) -> Call:
    pending = PendingCall(
        id=call.id or "",
        name=call.name or "",
        args=call.args or {},
        agent=event.author,
        invocation_id=event.invocation_id,
        branch=event.branch,
        since=event.timestamp,
    )
    # A request of the framework has no tool of its own whose response could be late.
    made = Call(pending, responded=call.name in QUESTIONS)
    set_deadline(made, plan, event.timestamp)
    share_field_sets(made.pending)
    return made


def _at(event: Event, timestamp: float) -> Event:
    """Return an event as it is logged at a time."""
    logged = event.model_copy(update={"timestamp": timestamp})
    share_field_sets(logged)
    return logged


def _mark_answered(projection: Projection, event: Event) -> None:
    for response in event.get_function_responses():
        call = projection.calls.get(response.id or "")
        if call is None:
            continue
        call.answer = "logged"
        pending = call.pending
        if pending.name == REQUEST_RECONCILE and lets_run_again(response.response or {}):
            projection.invocations[pending.invocation_id].started.pop(target_of(pending.args), None)


def _expire(projection: Projection, call: Call) -> None:
    """Let a deadline fail the invocation: in its turn if it waits, at once if it is at work."""
    invocation = projection.invocations[call.pending.invocation_id]
    if invocation.status in ("running", "waiting", "queued"):
        call.expired = call.pending.deadline
    call.pending = call.pending.model_copy(update={"deadline": None})
    if invocation.status == "waiting":
        projection.turns.append(Turn("answer", invocation.id))
        invocation.status = "queued"


def _forget_expired(calls: Iterable[Call], invocation_id: str) -> None:
    """A resume opens the calls again whose deadline failed the invocation."""
    for call in calls:
        if call.pending.invocation_id == invocation_id:
            call.expired = None


def _allow_start(invocations: Iterable[Invocation], call_id: str) -> None:
    for invocation in invocations:
        invocation.started.pop(call_id, None)


def _pin(session: Projection, entry: InvocationPinned) -> None:
    """Give an imported invocation its plan, and its open calls the deadlines that they have in it."""
    invocation = session.invocations[entry.invocation_id]
    invocation.agent, invocation.plan = entry.agent, entry.plan
    if entry.timestamp is None:
        return
    for call in session.calls.values():
        pending = call.pending
        if pending.invocation_id == invocation.id and call.answer == "open" and pending.id not in session.timed:
            set_deadline(call, session.plans.get(entry.plan), entry.timestamp)
            if call.expiry or call.remind_at:
                session.timed[pending.id] = call


def _take_over(session: Projection, entry: LogImported) -> None:
    """Take no code and no permission from outside, and let nothing run by itself."""
    session.imported_at, session.imported_bare = entry.timestamp, entry.bare
    session.key_salt = entry.key_salt
    if entry.timestamp is not None:
        for call in session.timed.values():
            restart_deadline(call, entry.timestamp)
    session.blocked_calls = set[str]() if entry.allow_pending_calls else set(session.call_ids)
    if not entry.allow_pending_calls:
        # Readers do not see hidden events, but a re-entry does.
        logged = (item for invocation in session.invocations.values() for item in invocation.entries)
        hidden = (item.event for item in logged if isinstance(item, EventLogged) and item.hidden)
        session.blocked_calls.update(call.id or "" for event in hidden for call in event.get_function_calls())
    session.imported_plan, session.newest_plan = entry.plan_digest, None
    session.imported_shared = session.shared_state()
    session.plans.clear()
    session.turns.clear()
    for invocation in session.invocations.values():
        invocation.plan = None
        if invocation.status in ("running", "queued"):
            invocation.status, invocation.reason = "stopped", "it was at work when its log was taken"


def _asked_about(call: PendingCall) -> str:
    """Return the id of the call that a confirmation asks about; empty if this is none."""
    return target_of(call.args) if call.name == REQUEST_CONFIRMATION else ""


def split_state_delta(delta: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a state delta into what an event may log and the `temp:` keys."""
    return stored_part(delta), {key: value for key, value in delta.items() if key.startswith(TEMP)}
