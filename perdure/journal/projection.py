"""The projection: everything that a session's journal says, as one value, and what the code asks of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.journal.entries import Entry, ScopeBegan
from perdure.journal.events import USER, Event
from perdure.journal.invocations import Call, Invocation, Turn
from perdure.journal.live_events import live_events
from perdure.journal.open_calls import PendingCall
from perdure.journal.tasks import OpenTask, find_open_task, is_reply, takes_reply
from perdure.journal.tool_runs import ToolRuns
from perdure.plan.nodes import LlmNode, Plan

TEMP = "temp:"
SHARED = ("user:", "app:")


def shared_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that other sessions see: `user:` and `app:`."""
    return {key: value for key, value in state.items() if key.startswith(SHARED)}


def stored_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without the `temp:` keys, which no log holds."""
    return {key: value for key, value in state.items() if not key.startswith(TEMP)}


def split_state_delta(delta: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a state delta into what an event may log and the `temp:` keys."""
    return stored_part(delta), {key: value for key, value in delta.items() if key.startswith(TEMP)}


def response_in(event: Event, call_id: str) -> dict[str, Any] | None:
    """Return the response to a call that an event holds, if it holds one."""
    for response in event.get_function_responses():
        if response.id == call_id:
            return response.response or {}
    return None


@dataclass
class Projection:
    """A session as its journal says it is. Only `perdure.journal.fold` changes it; everything else asks."""

    entries: list[Entry] = field(default_factory=list[Entry])
    events: list[Event] = field(default_factory=list[Event])
    """The event log: what readers see."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """Session state, `user:` and `app:` keys with their prefix; never a `temp:` key."""
    invocations: dict[str, Invocation] = field(default_factory=dict[str, Invocation])
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    """Long-running calls by id, answered ones too."""
    timed: dict[str, Call] = field(default_factory=dict[str, Call])
    """Those without an answer that were made with a deadline or a reminder."""
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
    tool_runs: dict[str, ToolRuns] = field(default_factory=dict[str, ToolRuns])
    """Runs of tools that came back, by call id."""
    blocked_calls: set[str] = field(default_factory=set[str])
    """Ids of imported calls that must not run, since nobody allowed it."""
    imported_shared: dict[str, Any] = field(default_factory=dict[str, Any])
    """`user:` and `app:` keys of an imported log, which the session shows where the server knows no such key."""
    imported_at: float | None = None
    """When an imported log was taken, in seconds since the epoch."""
    imported_bare: bool = False
    """An imported log was events only."""
    key_salt: str = ""
    """What idempotency keys begin with: of an imported log, so that no two imports of it have a key in common."""
    imported_plan: str | None = None
    """Digest of the newest plan at an imported log's origin."""
    scopes: dict[str, Projection] = field(default_factory=dict[str, "Projection"])
    """What agents did that tools ran, by the tool's call."""
    began: ScopeBegan | None = None
    """Of such an agent's projection: how it began."""
    tools: tuple[tuple[str, str], ...] = ()
    """The agents and tools around it, outermost first."""
    of_scopes: set[str] = field(default_factory=set[str])
    """Events of scopes underneath that readers see here, by id: what waits for an answer, and the answers."""

    def plan_of(self, invocation: Invocation) -> Plan | None:
        """Return the plan that an invocation is pinned to, or will be; `None` before any plan is loaded."""
        digest = invocation.plan or self.newest_plan
        return self.plans.get(digest) if digest else None

    def scope(self, calls: Sequence[str]) -> Projection:
        """Return the projection of an agent that tools run, by the calls around it, outermost first."""
        found = self
        for call in calls:
            found = found.scopes[call]
        return found

    @property
    def own_events(self) -> list[Event]:
        """The event log without what is shown of scopes underneath: what the agents see."""
        return [event for event in self.events if event.id not in self.of_scopes] if self.of_scopes else self.events

    def _waits_within(self, invocation: Invocation) -> bool:
        """Return whether an agent that a tool runs has not come to its end: it waits, whatever the app."""
        if invocation.status not in ("waiting", "running", "queued"):
            return False
        inner = (scope.invocations.get(invocation.id) for scope in self.scopes.values())
        return any(one is not None and one.status != "finished" for one in inner)

    def is_resumable(self, invocation: Invocation) -> bool:
        """Return whether the invocation's app is resumable; before any plan is known, nothing is lost by a resume."""
        plan = self.plan_of(invocation)
        if plan is not None:
            return plan.resumable or self._waits_within(invocation)
        # Of an imported log: only where nothing pauses does an invocation finish with its calls open.
        return invocation.status != "finished" or not any(
            call.answer == "open" and call.pending.invocation_id == invocation.id for call in self.calls.values()
        )

    def begins_again(self, invocation: Invocation) -> bool:
        """Return whether an answer to a call of an invocation that nothing pauses begins a turn under its id.

        So does ADK 2; before, and with Perdure's own agents, that turn is an invocation of its own.
        """
        plan = self.plan_of(invocation)
        over = invocation.status in ("finished", "failed", "stopped")
        return over and plan is not None and plan.adk is not None and plan.adk.major >= 2

    def open_calls(self, invocation_id: str | None = None) -> list[PendingCall]:
        """Return the long-running calls that the user has not answered, in log order, of one invocation or all."""
        return [
            call.pending
            for call in self.calls.values()
            if call.answer == "open"
            and (invocation_id is None or call.pending.invocation_id == invocation_id)
            and self.takes_answers(call.pending.invocation_id)
        ]

    def overdue(self, time: float) -> list[Call]:
        """Return the open calls whose deadline has passed by this time, in seconds since the epoch."""
        return [
            call
            for call in self.timed.values()
            if call.answer == "open"
            and call.pending.deadline is not None
            and call.pending.deadline <= time
            and self.takes_answers(call.pending.invocation_id)
        ]

    def takes_answers(self, invocation_id: str) -> bool:
        """Return whether open calls of the invocation can be answered: not when a resumable one has finished."""
        invocation = self.invocations.get(invocation_id)
        return invocation is None or invocation.status != "finished" or not self.is_resumable(invocation)

    def newest_answer(self, call_id: str) -> Event | None:
        """Return the event that answered a call last, logged or not."""
        sent = [
            invocation.message
            for invocation in self.invocations.values()
            if response_in(invocation.message, call_id) is not None
        ]
        return max(sent, key=lambda event: event.timestamp, default=None) or self._logged_answer(call_id)

    def loggable_answer(self, invocation: Invocation) -> Event | None:
        """Return the first accepted answer that may be logged: never before the response event of its own call.

        What the user says to the agent of a task, once that listens.
        """
        for event in invocation.answers:
            if is_reply(event) and not takes_reply(self.own_events, event.isolation_scope or ""):
                continue
            calls = [self.calls[r.id] for r in event.get_function_responses() if r.id in self.calls]
            if all(call.responded for call in calls):
                return event
        return None

    def open_task(self) -> OpenTask | None:
        """Return the task whose agent a message is for, if there is one; one that was stopped is over."""
        if self.plans and not any(plan.has_tasks for plan in self.plans.values()):
            return None
        task = find_open_task(live_events(self.own_events))
        invocation = self.invocations.get(task.invocation_id) if task is not None else None
        return task if invocation is not None and invocation.status not in ("finished", "stopped") else None

    def answer_to(self, call_id: str) -> dict[str, Any] | None:
        """Return the user's logged response to a call, if there is one."""
        event = self._logged_answer(call_id)
        return None if event is None else response_in(event, call_id)

    def _logged_answer(self, call_id: str) -> Event | None:
        said = (event for event in reversed(self.events) if event.author == USER)
        return next((event for event in said if response_in(event, call_id) is not None), None)

    def responses_to(self, call_id: str) -> list[dict[str, Any]]:
        """Return what the agents logged as a call's responses: two, where its tool ran once it was confirmed."""
        found: list[dict[str, Any]] = []
        for event in reversed(self.events):
            if not event.is_users:
                found += [one.response or {} for one in event.get_function_responses() if one.id == call_id]
            if any(call.id == call_id for call in event.get_function_calls()):
                # They stand behind it.
                break
        return found[::-1]

    def event_of_call(self, call_id: str) -> Event | None:
        """Return the event that made a function call."""
        for event in reversed(self.events):
            if any(call.id == call_id for call in event.get_function_calls()):
                return event
        return None

    def is_adk(self, invocation_id: str, plan: str | None = None) -> bool:
        """Return whether an invocation's agents are google.adk's; `plan` is its digest, where it does not name one."""
        pinned = self.plans.get(plan or self.invocations[invocation_id].plan or "")
        return pinned is not None and pinned.adk is not None

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
        events = self.own_events
        first = next((i for i, event in enumerate(events) if event.invocation_id == before), len(events))
        for event in reversed(live_events(events[:first])):
            state_only = event.actions.agent_state is not None or event.actions.end_of_agent
            if event.author == USER or state_only or event.author not in plan.nodes:
                continue
            name = plan.delegator(event.author)
            if name == plan.root.name or _keeps_messages(plan, name):
                return name
        return plan.root.name

    def agent_for(self, plan: Plan, invocation: Invocation) -> str:
        """Return the agent that starts an invocation: the one whose call it answers, or the one for a new message."""
        for response in invocation.message.get_function_responses():
            call = self.calls.get(response.id or "")
            if call is not None and call.pending.agent in plan.nodes:
                return plan.delegator(call.pending.agent)
        return self.starting_agent(plan, before=invocation.id)

    def shared_state(self) -> dict[str, Any]:
        """Return the `user:` and `app:` keys."""
        return shared_part(self.state)


def _keeps_messages(plan: Plan, name: str) -> bool:
    """Return whether every agent from `name` up to the root is an LLM agent that may transfer to its parent."""
    nodes = (plan.nodes[step] for step in plan.path(name))
    return all(isinstance(node, LlmNode) and not node.disallow_transfer_to_parent for node in nodes)
