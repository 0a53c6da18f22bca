"""What the journal tells of a custom agent's run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perdure.journal.entries import ActivityKept, Entry, EventLogged, FailureCaught, RunBegan, Within
from perdure.journal.events import Event
from perdure.journal.fold import fold_journal
from perdure.journal.projection import Projection
from perdure.journal.run_tree import build_runs
from perdure.journal.runs import AgentRun, is_state
from perdure.plan.nodes import Plan
from perdure.steps.base import Place, Snapshot

__all__ = ["Answer", "Key", "Past", "Places", "call_key", "is_own", "run_key", "within"]

Key = tuple[str, ...]
"""What an agent's code asks for: a sub-agent or a function with its arguments, and the how manieth since the last
checkpoint."""

Answer = AgentRun | ActivityKept | FailureCaught
"""What came of that: of a sub-agent its run, of a function its result or its failure."""


def run_key(agent: str, nth: int) -> Key:
    """Return the key of a sub-agent's n-th run."""
    return ("agent", agent, str(nth))


def call_key(name: str, arguments: str, nth: int) -> Key:
    """Return the key of the n-th call of a function with equal arguments."""
    return ("call", name, arguments, str(nth))


@dataclass(frozen=True)
class Past:
    """What the journal tells of a custom agent's run."""

    plan: Plan
    """The invocation's."""
    entries: Sequence[Entry]
    """Of the session's whole journal, which grows."""
    length: int
    """What there was of it as the step was scheduled."""
    run: AgentRun
    places: Places
    over: Mapping[Key, Answer]
    """What its code asked for since the last checkpoint and has come to an end."""
    caught: Sequence[FailureCaught]
    """What the journal tells of failures in the invocation, in order."""

    @classmethod
    def of(cls, at: Place, session: Snapshot) -> Past:
        """Look for the run in the session's journal."""
        projection = session.projection
        invocation = projection.invocations[at.invocation_id]
        plan = projection.plan_of(invocation)
        assert plan is not None, "an invocation at work has a plan"
        run = build_runs(plan, invocation.agent or plan.root.name, invocation.entries).runs[at.run]
        entries = (session.around or projection).entries
        caught = [entry for entry in invocation.entries if isinstance(entry, FailureCaught)]
        return cls(plan, entries, len(entries), run, Places(entries, at), dict(_over(run)), caught)

    def seen_with(self, length: int, at: Place, session: Snapshot) -> Projection:
        """Return what the code sees of the session with the first entries of its journal."""
        return session.projection if length >= self.length else fold_journal(self.entries[:length]).scope(at.scope)

    def number_of(self, failure: FailureCaught) -> int:
        """Return which of the invocation's entries of failures one is."""
        return next(number for number, entry in enumerate(self.caught) if entry is failure)


def _over(run: AgentRun) -> Iterator[tuple[Key, Answer]]:
    for child in run.children:
        if child.ended or child.failure is not None:
            yield run_key(child.agent, child.nth), child
    times: Counter[tuple[str, str]] = Counter()
    for kept in run.activities:
        called = (kept.name, kept.arguments or "")
        times[called] += 1
        yield call_key(*called, times[called]), kept


class Places:
    """Where in a session's journal a custom agent's run began, and where what it met since stands."""

    def __init__(self, entries: Sequence[Entry], at: Place) -> None:
        """Look through a session's whole journal."""
        self.begin = len(entries)
        """How many entries there were when the code was to run from its top: since its last checkpoint."""
        self.of_event: dict[str, int] = {}
        """How many there are up to an event, by its id."""
        self.of_end: dict[str, int] = {}
        """And up to the end of an agent run, by its path."""
        self.marks: list[Event] = []
        """Of a graph: what tells of nodes that ended without an event, in all of the invocation."""
        for length, entry in enumerate(entries, 1):
            self._take(within(entry, at.scope), at, length)

    def _take(self, entry: Entry | None, at: Place, length: int) -> None:
        match entry:
            case RunBegan(invocation_id=at.invocation_id, run=at.run):
                self.begin = length
            case EventLogged(hidden=True) if is_own(entry, at) and not is_state(entry.event):
                self.marks.append(entry.event)
            case EventLogged():
                self.of_event[entry.event.id] = length
                if entry.event.actions.end_of_agent:
                    self.of_end[entry.run] = length
                if is_own(entry, at) and is_state(entry.event):
                    self.begin = length
            case FailureCaught():
                self.of_end[entry.sub_run] = length
            case _:
                pass


def within(entry: Entry, scope: Sequence[str]) -> Entry | None:
    """Return a session's entry as the scope under some calls has it; `None` if it is none of that scope's."""
    for call_id in scope:
        if not isinstance(entry, Within) or entry.call_id != call_id:
            return None
        entry = entry.entry
    return entry


def is_own(entry: Entry | None, at: Place) -> bool:
    """Return whether an entry is an event of the agent's own."""
    return isinstance(entry, EventLogged) and (entry.event.invocation_id, entry.run) == (at.invocation_id, at.run)
