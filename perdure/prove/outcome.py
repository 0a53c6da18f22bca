"""`Outcome`: what a run of a scenario left behind; and the differences of two."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.journal.entries import Entry
from perdure.journal.events import USER, Event
from perdure.journal.fold import fold_journal
from perdure.journal.projection import stored_part
from perdure.plan.nodes import Plan
from perdure.prove.ledger import Step
from perdure.prove.normal_form import Item, Names, diff, fixed_order, normalize_event

Key = tuple[str, str]
"""A tool and the idempotency key of one of its calls."""


@dataclass(frozen=True)
class Place:
    """The place of a call in a log, told without its id: the n-th of its agent on its branch."""

    author: str
    branch: str | None
    name: str
    ordinal: int


@dataclass
class Outcome:
    """The log, state and steps that a run left behind."""

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
    """Return the authors of events, in the order that `per_author` goes by."""
    return [USER, *plan.nodes]


@dataclass(frozen=True)
class Order:
    """An order of events where chance decides which comes first: by their authors."""

    authors: Sequence[str]
    gathered: bool = False
    """A custom agent gathers: its sub-agents' events interleave, though they share a branch."""


def normalized(events: Iterable[Event], order: Order | None) -> tuple[list[Item], Names]:
    """Return a log in normal form, and the names of its ids."""
    items = [normalize_event(event) for event in events]
    names = Names()
    if order is not None:
        items = fixed_order(items, order.authors, gathered=order.gathered)
    return [names.rename(item) for item in items], names


def differences(
    reference: Outcome, outcome: Outcome, order: Order | None, done: Counter[Key] | None = None
) -> list[str]:
    """Return how an outcome differs from the uninterrupted run's, as lines; empty if it does not.

    Args:
        reference: The uninterrupted run.
        outcome: Another run of the scenario.
        order: How to put events in order; `None` leaves them as they are.
        done: Tool runs, model calls and functions of the reference that the run did not have to do again.
    """
    lines = list(outcome.problems)
    wanted, wanted_names = normalized(reference.events, order)
    got, got_names = normalized(outcome.events, order)
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
    """Count what ran, repeated attempts not counted: tools by call, models by agent, functions by name."""
    steps = list(steps)
    # Of one that only asked, another attempt may have been cut off before it could say so.
    seen = {(step.name, step.activity) for step in steps if step.asked}
    counts: Counter[Key] = Counter()
    for step in steps:
        if step.kind == "other" or (step.name, step.activity) in seen:
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
            if before.kept and before.error is None:
                problems.append(f"tool {after.name} ran again, and what it returned was kept, key {after.key}")
            elif before.process != after.process and killed:
                again += 1
            elif before.error is None:
                problems.append(f"tool {after.name} ran again without a reason, key {after.key}")
        if again:
            repeated.append(Repeated(tries[0].name, tries[0].key or "", again))
    return repeated, problems


def plan_in(entries: Iterable[Entry]) -> Plan | None:
    """Return the plan of a journal."""
    projection = fold_journal(entries)
    return projection.plans.get(projection.newest_plan or "")


def _section(title: str, expected: Sequence[Any], actual: Sequence[Any]) -> list[str]:
    lines = diff(expected, actual)
    return [f"{title} (- uninterrupted, + cut):", *(f"  {line}" for line in lines)] if lines else []
