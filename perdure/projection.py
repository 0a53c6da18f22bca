"""The projection: one pure fold of the journal into everything that the code asks of a session.

Resume, continue-as-new, a lost workflow, the workers' copies and the tests all go through it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from google.genai.types import FunctionCall

from perdure.events import REQUEST_CONFIRMATION, USER, Event
from perdure.journal import (
    ActivityKept,
    AnswerAccepted,
    AnswerLogged,
    Entry,
    EventLogged,
    Failure,
    InvocationPinned,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    ModelCalled,
    PlanLoaded,
    ResumeAccepted,
    SessionCreated,
    SharedStateRead,
    TempStateSet,
    ToolKept,
    ToolOutput,
)
from perdure.messages import InvocationStatus, PendingCall
from perdure.plan import LlmNode, Plan

TEMP = "temp:"
SHARED = ("user:", "app:")


@dataclass
class Call:
    """A long-running function call."""

    pending: PendingCall
    responded: bool = False
    """Its tool has run: the response event is logged, or the tool returned nothing."""
    answer: Literal["open", "accepted", "logged"] = "open"


@dataclass
class Turn:
    """Something accepted that waits until its invocation may work."""

    kind: Literal["message", "answer", "resume"]
    invocation_id: str


@dataclass
class Invocation:
    """One invocation, from its accepted message on."""

    id: str
    message: Event
    """The user's event that started it."""
    status: InvocationStatus = "queued"
    agent: str | None = None
    plan: str | None = None
    failures: tuple[Failure, ...] = ()
    reason: str | None = None
    entries: list[EventLogged | ActivityKept] = field(default_factory=list["EventLogged | ActivityKept"])
    """What its agents did, in order: the source of a re-entry."""
    kept: dict[str, ToolOutput] = field(default_factory=dict[str, ToolOutput])
    """Results of tools that must not run again, by call id."""
    temp: dict[str, Any] = field(default_factory=dict[str, Any])
    answers: list[Event] = field(default_factory=list[Event])
    """Accepted answers that are not logged yet, in order of arrival."""


@dataclass
class Projection:
    """A session, folded from its journal. `apply` is the only thing that changes it."""

    entries: list[Entry] = field(default_factory=list[Entry])
    events: list[Event] = field(default_factory=list[Event])
    """The event log: what readers see."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """Session state, `user:` and `app:` keys with their prefix; never a `temp:` key."""
    invocations: dict[str, Invocation] = field(default_factory=dict[str, Invocation])
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    """Long-running calls by id, answered ones too."""
    call_ids: set[str] = field(default_factory=set[str])
    """Ids of all function calls, so that no model can use one twice."""
    plans: dict[str, Plan] = field(default_factory=dict[str, Plan])
    newest_plan: str | None = None
    turns: list[Turn] = field(default_factory=list[Turn])
    """Who works next, in order of arrival."""
    requests: dict[str, str] = field(default_factory=dict[str, str])
    """Invocation ids by request id."""
    model_calls: Counter[str] = field(default_factory=Counter[str])
    """Model calls that came back, by agent."""
    blocked_calls: set[str] = field(default_factory=set[str])
    """Ids of imported calls that must not run, since nobody allowed it."""
    imported_shared: dict[str, Any] = field(default_factory=dict[str, Any])
    """`user:` and `app:` keys of an imported log, which the session shows where the server knows no such key."""
    imported_plan: str | None = None
    """Digest of the newest plan at an imported log's origin."""

    @classmethod
    def fold(cls, entries: Iterable[Entry]) -> Projection:
        """Return the projection of a whole journal."""
        projection = cls()
        for entry in entries:
            projection.apply(entry)
        return projection

    def apply(self, entry: Entry) -> None:  # noqa: C901 -- one case for each kind of entry
        """Fold one more entry in."""
        self.entries.append(entry)
        match entry:
            case SessionCreated():
                self.state.update(_stored(entry.state))
            case EventLogged():
                self._log(entry)
            case MessageAccepted() | AnswerAccepted():
                self._accept(entry)
            case AnswerLogged():
                self._log_answer(entry)
            case ResumeAccepted():
                self.turns.append(Turn("resume", entry.invocation_id))
                self.invocations[entry.invocation_id].status = "queued"
            case InvocationStarted():
                self._start(entry)
            case InvocationResumed():
                invocation = self.invocations[entry.invocation_id]
                invocation.status, invocation.failures, invocation.reason = "running", (), None
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
                self.model_calls[entry.agent] += 1
            case ToolKept():
                self._keep_tool(entry)
            case ActivityKept():
                self.invocations[entry.invocation_id].entries.append(entry)
            case LogImported():
                _take_over(self, entry)
            case InvocationPinned():
                invocation = self.invocations[entry.invocation_id]
                invocation.agent, invocation.plan = entry.agent, entry.plan
            case _:
                assert_never(entry)

    def _log(self, entry: EventLogged) -> None:
        event = entry.event
        invocation = self.invocations.get(event.invocation_id)
        if invocation is not None:
            invocation.entries.append(entry)
        if entry.hidden:
            return
        self._show(event)
        for response in event.get_function_responses():
            if response.id in self.calls:
                self.calls[response.id].responded = True
        for call in event.get_function_calls():
            self.call_ids.add(call.id or "")
            if call.id and event.long_running_tool_ids and call.id in event.long_running_tool_ids:
                self.calls[call.id] = _long_running(event, call)

    def _show(self, event: Event) -> None:
        self.events.append(event)
        self.state.update(event.actions.state_delta)

    def _accept(self, entry: MessageAccepted | AnswerAccepted) -> None:
        event = entry.event
        if entry.request_id:
            self.requests[entry.request_id] = event.invocation_id
        for response in event.get_function_responses():
            if response.id in self.calls:
                self.calls[response.id].answer = "accepted"
                # A person's answer lets the imported call run that it is about; answers in the import are data.
                self.blocked_calls.discard(_asked_about(self.calls[response.id].pending))
        if isinstance(entry, MessageAccepted):
            self.invocations[event.invocation_id] = Invocation(event.invocation_id, event)
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
                    self._answered(event)
                    self._show(event.model_copy(update={"timestamp": entry.timestamp}))
                    return

    def _start(self, entry: InvocationStarted) -> None:
        invocation = self.invocations[entry.invocation_id]
        # A log from elsewhere names no plan: the invocation takes the newest one when it goes on.
        invocation.status, invocation.agent, invocation.plan = "running", entry.agent, entry.plan or None
        self._drop_turns(entry.invocation_id)
        self._answered(invocation.message)
        self._show(invocation.message.model_copy(update={"timestamp": entry.timestamp}))

    def _answered(self, event: Event) -> None:
        for response in event.get_function_responses():
            if response.id in self.calls:
                self.calls[response.id].answer = "logged"

    def _settle(self, entry: InvocationSettled) -> None:
        invocation = self.invocations[entry.invocation_id]
        invocation.status = entry.status
        invocation.failures, invocation.reason = entry.failures, entry.reason
        if entry.status in ("stopped", "finished"):
            self._drop_turns(entry.invocation_id)
        if entry.status == "finished":
            invocation.entries.clear()
            invocation.kept.clear()
            invocation.temp.clear()

    def _keep_tool(self, entry: ToolKept) -> None:
        self.invocations[entry.invocation_id].kept[entry.call_id] = entry.output
        if entry.call_id in self.calls and not entry.output.result:
            self.calls[entry.call_id].responded = True

    def _drop_turns(self, invocation_id: str) -> None:
        self.turns = [turn for turn in self.turns if turn.invocation_id != invocation_id]

    # What the rest of the code asks.

    def plan_of(self, invocation: Invocation) -> Plan | None:
        """Return the plan that an invocation is pinned to, or will be; `None` before any plan is loaded."""
        digest = invocation.plan or self.newest_plan
        return self.plans.get(digest) if digest else None

    def is_resumable(self, invocation: Invocation) -> bool:
        """Return whether the invocation's app is resumable; before any plan is known, nothing is lost by a resume."""
        plan = self.plan_of(invocation)
        if plan is not None:
            return plan.resumable
        # Of an imported log: only where nothing pauses does an invocation finish with its calls open.
        return invocation.status != "finished" or not any(
            call.answer == "open" and call.pending.invocation_id == invocation.id for call in self.calls.values()
        )

    def open_calls(self, invocation_id: str | None = None) -> list[PendingCall]:
        """Return the long-running calls that the user has not answered, in log order, of one invocation or all."""
        return [
            call.pending
            for call in self.calls.values()
            if call.answer == "open"
            and (invocation_id is None or call.pending.invocation_id == invocation_id)
            and self.takes_answers(call.pending.invocation_id)
        ]

    def takes_answers(self, invocation_id: str) -> bool:
        """Return whether open calls of the invocation can be answered: not when a resumable one has finished."""
        invocation = self.invocations.get(invocation_id)
        return invocation is None or invocation.status != "finished" or not self.is_resumable(invocation)

    def loggable_answer(self, invocation: Invocation) -> Event | None:
        """Return the first accepted answer that may be logged: never before the response event of its own call."""
        for event in invocation.answers:
            calls = [self.calls[r.id] for r in event.get_function_responses() if r.id in self.calls]
            if all(call.responded for call in calls):
                return event
        return None

    def answer_to(self, call_id: str) -> dict[str, Any] | None:
        """Return the user's logged response to a call, if there is one."""
        for event in reversed(self.events):
            if event.author == USER:
                for response in event.get_function_responses():
                    if response.id == call_id:
                        return response.response or {}
        return None

    def event_of_call(self, call_id: str) -> Event | None:
        """Return the event that made a function call."""
        for event in reversed(self.events):
            if any(call.id == call_id for call in event.get_function_calls()):
                return event
        return None

    def visible_state(self, invocation_id: str) -> dict[str, Any]:
        """Return the state as an invocation's code sees it, `temp:` keys included."""
        invocation = self.invocations.get(invocation_id)
        return self.state | (invocation.temp if invocation else {})

    def starting_agent(self, plan: Plan, *, before: str | None = None) -> str:
        """Return the agent that a message runs: found by walking back through the log (SEMANTICS.md).

        Args:
            plan: The plan.
            before: An invocation; what the session did in it, and later, plays no part (R8).
        """
        first = next((i for i, event in enumerate(self.events) if event.invocation_id == before), len(self.events))
        for event in reversed(self.events[:first]):
            state_only = event.actions.agent_state is not None or event.actions.end_of_agent
            if event.author == USER or state_only or event.author not in plan.nodes:
                continue
            if event.author == plan.root.name or _keeps_messages(plan, event.author):
                return event.author
        return plan.root.name

    def agent_for(self, plan: Plan, invocation: Invocation) -> str:
        """Return the agent that starts an invocation: the one whose call it answers, or the one for a new message."""
        for response in invocation.message.get_function_responses():
            call = self.calls.get(response.id or "")
            if call is not None and call.pending.agent in plan.nodes:
                return call.pending.agent
        return self.starting_agent(plan, before=invocation.id)

    def shared_state(self) -> dict[str, Any]:
        """Return the `user:` and `app:` keys."""
        return {key: value for key, value in self.state.items() if key.startswith(SHARED)}


def _keeps_messages(plan: Plan, name: str) -> bool:
    """Return whether every agent from `name` up to the root is an LLM agent that may transfer to its parent."""
    nodes = (plan.nodes[step] for step in plan.path(name))
    return all(isinstance(node, LlmNode) and not node.disallow_transfer_to_parent for node in nodes)


def _long_running(event: Event, call: FunctionCall) -> Call:
    pending = PendingCall(
        id=call.id or "",
        name=call.name or "",
        args=call.args or {},
        agent=event.author,
        invocation_id=event.invocation_id,
        branch=event.branch,
        since=event.timestamp,
    )
    # A confirmation has no tool of its own whose response could be late.
    return Call(pending, responded=call.name == REQUEST_CONFIRMATION)


def _take_over(session: Projection, entry: LogImported) -> None:
    """Take no code and no permission from outside, and let nothing run by itself."""
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
    asked: Any = call.args.get("originalFunctionCall") if call.name == REQUEST_CONFIRMATION else None
    return str(asked.get("id", "")) if isinstance(asked, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- JSON


def _stored(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(TEMP)}


def split_state_delta(delta: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a state delta into what an event may log and the `temp:` keys."""
    return _stored(delta), {key: value for key, value in delta.items() if key.startswith(TEMP)}
