"""What a run of a scenario left behind, and how two runs differ."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.events import USER, Event
from perdure.facts import stored_part
from perdure.journal import ActivityKept, Entry, EventLogged, InvocationSettled, ModelCalled, ToolKept
from perdure.plan import Plan
from perdure.projection import Projection
from perdure.prove.ledger import Step
from perdure.prove.normal_form import Item, Names, diff, fixed_order, normalize_event

Key = tuple[str, str]
"""A tool and the idempotency key of one of its calls."""


@dataclass(frozen=True)
class Place:
    """Where a call stands in a log, told without its id: the n-th of its agent on its branch."""

    author: str
    branch: str | None
    name: str
    ordinal: int


@dataclass
class Outcome:
    """What a run left behind."""

    turns: list[list[Event]] = field(default_factory=list[list[Event]])
    """The events that each turn appended."""
    failed: list[bool] = field(default_factory=list[bool])
    """Whether each turn failed or was refused."""
    turn_ends: list[int] = field(default_factory=list[int])
    """The journal's length at the end of each turn."""
    answered: list[tuple[Place, ...]] = field(default_factory=list[tuple[Place, ...]])
    """The calls that each turn answered."""
    journal: list[Entry] = field(default_factory=list[Entry])
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: list[Step] = field(default_factory=list[Step])
    notes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    problems: list[str] = field(default_factory=list[str])
    """What went wrong beside the log: a turn that could not be taken, a time-out."""
    runs: int = 1
    """Runs of the session's workflow."""
    workflow_tasks: int = 0

    @property
    def events(self) -> list[Event]:
        """The whole log."""
        return [event for turn in self.turns for event in turn]


@dataclass(frozen=True)
class Repeated:
    """A tool whose body ran again, since the kill fell between its start and its completion."""

    tool: str
    key: str
    """The idempotency key, which every run of the call got."""
    times: int


Check = Callable[[Outcome], list[str]]
"""Says what else is wrong with an outcome, such as that it is not what the scenario expects."""


def places(events: Iterable[Event]) -> dict[str, Place]:
    """Return where each call of a log stands, by call id."""
    counts: Counter[tuple[str, str | None, str]] = Counter()
    found: dict[str, Place] = {}
    for event in events:
        if event.author == USER:
            continue
        for call in event.get_function_calls():
            where = (event.author, event.branch, call.name or "")
            counts[where] += 1
            found[call.id or ""] = Place(*where, counts[where])
    return found


def authors_of(plan: Plan) -> list[str]:
    """Return who may write events, in the order that `per_author` goes by."""
    return [USER, *plan.nodes]


def normalized(events: Iterable[Event], authors: Sequence[str] | None) -> tuple[list[Item], Names]:
    """Return a log in normal form, and the names of its ids."""
    items = [normalize_event(event) for event in events]
    names = Names()
    if authors is not None:
        items = fixed_order(items, authors)
    return [names.rename(item) for item in items], names


def differences(
    reference: Outcome, outcome: Outcome, authors: Sequence[str] | None, done: Counter[Key] | None = None
) -> list[str]:
    """Return how an outcome differs from the uninterrupted run's, as lines; empty if it does not.

    Args:
        reference: The uninterrupted run.
        outcome: Another run of the scenario.
        authors: For `per_author`: who may write events; else `None`.
        done: Tool runs, model calls and functions of the reference that the run did not have to do again.
    """
    lines = list(outcome.problems)
    wanted, wanted_names = normalized(reference.events, authors)
    got, got_names = normalized(outcome.events, authors)
    lines += _section("log", wanted, got)
    lines += _section("final state", [stored_part(reference.state)], [stored_part(outcome.state)])
    missing = effects(reference.steps)
    missing.subtract(done or Counter())
    expected = _renamed(+missing, wanted_names)
    actual = _renamed(effects(outcome.steps), got_names)
    for effect in sorted({*expected, *actual}):
        if expected[effect] != actual[effect]:
            lines.append(f"{effect} ran {actual[effect]} times, expected {expected[effect]}")
    return lines


def effects(steps: Iterable[Step]) -> Counter[Key]:
    """Return what ran how often, repeated attempts not counted: tools by call, models by agent, functions by name."""
    seen: set[tuple[str, str]] = set()
    counts: Counter[Key] = Counter()
    for step in steps:
        if step.kind == "other" or step.asked or (step.name, step.activity) in seen:
            continue
        seen.add((step.name, step.activity))
        counts[_effect(step)] += 1
    return counts


def _effect(step: Step) -> Key:
    match step.kind:
        case "tool":
            return f"tool {step.name}", step.key or ""
        case "model":
            return f"model of {step.agent}", ""
        case _:
            return f"function {step.name}", ""


def _renamed(counts: Counter[Key], names: Names) -> Counter[str]:
    renamed: Counter[str] = Counter()
    for (what, key), count in counts.items():
        renamed[f"{what} ({names.key(key)})" if key else what] += count
    return renamed


def repeats(steps: Sequence[Step], *, killed: bool) -> tuple[list[Repeated], list[str]]:
    """Return the calls whose tool ran again, and what is wrong about that.

    A second attempt is right where the first one failed, or died with its process.
    """
    attempts: dict[str, list[Step]] = {}
    for step in steps:
        if step.kind == "tool" and not step.asked:
            attempts.setdefault(f"{step.name}@{step.activity}", []).append(step)
    repeated: list[Repeated] = []
    problems: list[str] = []
    for tries in attempts.values():
        again = 0
        for before, after in itertools.pairwise(tries):
            if before.process != after.process and killed:
                again += 1
            elif before.error is None:
                problems.append(f"tool {after.name} ran again without a reason, key {after.key}")
        if again:
            repeated.append(Repeated(tries[0].name, tries[0].key or "", again))
    return repeated, problems


def done_in(entries: Iterable[Entry], steps: Sequence[Step]) -> Counter[Key]:
    """Return which of a run's effects the first entries of its journal tell of, so that they must not happen again."""
    teller = _Done()
    for entry in entries:
        teller.add(entry)
    # Not every call is an activity, and one that failed beside another may not have run.
    ran = effects(steps)
    return Counter({effect: min(count, ran[effect]) for effect, count in teller.done.items() if ran[effect]})


class _Done:
    """Counts what a journal says has happened."""

    def __init__(self) -> None:
        self.done: Counter[Key] = Counter()
        self._calls: dict[str, Key] = {}
        self._over: set[str] = set()

    def add(self, entry: Entry) -> None:
        match entry:
            case EventLogged():
                self._log(entry.event)
            case ToolKept():
                if not entry.output.needs_confirmation:
                    self._end(entry.invocation_id, entry.call_id)
            case ModelCalled():
                self.done[(f"model of {entry.agent}", "")] += 1
            case ActivityKept():
                self.done[(f"function {entry.name}", "")] += 1
            case InvocationSettled(status="failed"):
                # What it called and did not get has failed.
                for call_id, effect in self._calls.items():
                    if call_id not in self._over and effect[1].startswith(f"{entry.invocation_id}/"):
                        self.done[effect] += 1
            case _:
                pass

    def _log(self, event: Event) -> None:
        for call in event.get_function_calls():
            self._calls[call.id or ""] = (f"tool {call.name}", f"{event.invocation_id}/{call.id}")
        for response in event.get_function_responses():
            if response.id not in event.actions.requested_tool_confirmations:
                self._end(event.invocation_id, response.id)

    def _end(self, invocation_id: str, call_id: str | None) -> None:
        if call_id in self._calls and call_id not in self._over:
            self._over.add(call_id)
            # A confirmation may let the tool run in a later invocation than the call's.
            tool, _ = self._calls[call_id]
            self.done[(tool, f"{invocation_id}/{call_id}")] += 1


def plan_in(entries: Iterable[Entry]) -> Plan | None:
    """Return the plan of a journal."""
    projection = Projection.fold(entries)
    return projection.plans.get(projection.newest_plan or "")


def _section(title: str, expected: Sequence[Any], actual: Sequence[Any]) -> list[str]:
    lines = diff(expected, actual)
    return [f"{title} (- uninterrupted, + cut):", *(f"  {line}" for line in lines)] if lines else []
