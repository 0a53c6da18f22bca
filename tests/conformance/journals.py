"""Journals as a session would have written them, made from the expected logs of scenarios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perdure.journal.entries import (
    AnswerAccepted,
    AnswerLogged,
    Entry,
    EventLogged,
    Failure,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    MessageAccepted,
    PlanLoaded,
    ResumeAccepted,
    SessionCreated,
    ToolKept,
    ToolOutput,
)
from perdure.journal.events import USER, Event
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Projection
from perdure.plan.nodes import Plan
from perdure.prove.scenario import Turn
from perdure.trajectories.run_names import name_runs
from tests.conformance.logs import expected_turns, plan_of
from tests.conformance.scenario import Scenario


@dataclass
class Recorded:
    """A journal and what stood in it at the end of each turn."""

    plan: Plan
    entries: list[Entry]
    turn_ends: list[int]
    """The journal's length at the end of each turn."""


def record(scenario: Scenario) -> Recorded:
    """Return the journal of a scenario in which everything went as expected."""
    plan = plan_of(scenario)
    recorded = Recorded(plan, [], [])
    projection = Projection()
    for entry in (SessionCreated(state=scenario.state), PlanLoaded(plan=plan)):
        recorded.entries.append(entry)
        apply_entry(projection, entry)
    turns = zip(scenario.turns, expected_turns(scenario), scenario.expect.turns, strict=True)
    for turn, events, items in turns:
        for entry in _turn(projection, plan, turn, events, failed={"failed": True} in items):
            recorded.entries.append(entry)
            apply_entry(projection, entry)
        recorded.turn_ends.append(len(recorded.entries))
    recorded.entries = with_runs(plan, recorded.entries)
    return recorded


def with_runs(plan: Plan, entries: Sequence[Entry]) -> list[Entry]:
    """Return a journal whose events name no runs with their names."""
    named = list(entries)
    for begun in entries:
        if isinstance(begun, InvocationStarted):
            mine = [(i, entry) for i, entry in enumerate(entries) if is_of(entry, begun.invocation_id)]
            names = name_runs(plan, begun.agent, [entry for _, entry in mine if isinstance(entry, EventLogged)])
            for (index, entry), name in zip(mine, names, strict=True):
                named[index] = entry.model_copy(update={"run": name})
    return named


def is_of(entry: Entry, invocation_id: str) -> bool:
    return isinstance(entry, EventLogged) and entry.event.invocation_id == invocation_id


def _turn(projection: Projection, plan: Plan, turn: Turn, events: list[Event], *, failed: bool) -> Iterator[Entry]:
    if not events:
        # Refused, or a resume of what is finished or waiting: nothing is accepted.
        return
    invocation_id = events[0].invocation_id
    if turn.resume:
        yield ResumeAccepted(invocation_id=invocation_id)
        yield InvocationResumed(invocation_id=invocation_id)
    else:
        yield from _accept(projection, plan, events.pop(0))
    for event in events:
        yield EventLogged(event=event)
    open_calls = projection.open_calls(invocation_id)
    for call in open_calls:
        if not projection.calls[call.id].responded and not failed:
            yield ToolKept(invocation_id=invocation_id, call_id=call.id, output=ToolOutput())
    if failed:
        failure = Failure(agent=plan.root.name, step="model", cause="as scripted")
        yield InvocationSettled(invocation_id=invocation_id, status="failed", failures=(failure,))
    else:
        waits = plan.resumable and open_calls
        yield InvocationSettled(invocation_id=invocation_id, status="waiting" if waits else "finished")


def _accept(projection: Projection, plan: Plan, event: Event) -> Iterator[Entry]:
    invocation_id = event.invocation_id
    accepted = event.model_copy(update={"timestamp": 0.0})
    if invocation_id in projection.invocations:
        yield AnswerAccepted(event=accepted)
        yield InvocationResumed(invocation_id=invocation_id)
        yield AnswerLogged(event_id=event.id, timestamp=event.timestamp)
        return
    agent = projection.starting_agent(plan)
    for response in event.get_function_responses():
        # Without resumability an answer starts an invocation of the agent that made the call.
        agent = projection.calls[response.id or ""].pending.agent
    yield MessageAccepted(event=accepted)
    yield InvocationStarted(invocation_id=invocation_id, agent=agent, plan=plan.digest, timestamp=event.timestamp)


def agent_events(events: list[Event], invocation_id: str) -> list[EventLogged]:
    """Return what an invocation's agents logged, as entries."""
    return [
        EventLogged(event=event) for event in events if event.invocation_id == invocation_id and event.author != USER
    ]
