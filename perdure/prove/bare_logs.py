"""Cuts of the bare event log: what ADK's log, without the journal, lets a fresh session go on with. Pure.

A bare log does not tell of calls that failed, of tools whose response is not logged yet, nor of their journalled
results. What may therefore come out differently is worked out for each cut, and named.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.errors import InvalidTrajectory
from perdure.journal.entries import Entry, EventLogged, FailureCaught, InvocationSettled, ModelCalled, innermost
from perdure.journal.events import USER, Event
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.projection import Projection
from perdure.journal.unusable_answers import is_refused
from perdure.prove.done import done_in
from perdure.prove.outcome import Key, Outcome
from perdure.trajectories.bare_log import read_log
from perdure.trajectories.triggered_log import read_triggered_log

TOOL_AGAIN = "a tool or a function ran once more"
FAILURE_OVER = "failures before the cut were not reached again"
NOT_PENDING = "the pending response of a call that was cut off is missing"

NOT_RESUMABLE = "the app is not resumable, and the event is inside of a turn"
HALF_SENT = "the event is a part of what the user sent at once"
NO_TRIGGER = "the event cannot drive a turn"
FAILED_THERE = "the turn failed with the event, and the user left it at that"
CAUGHT = "a custom agent has gone on after a failure, of which a bare log does not tell"
ATTEMPTS = "a node of a graph has failed, whose attempts begin anew"
OF_A_TOOL = "an agent that a tool runs has asked, and where it stood a bare log does not tell"


@dataclass(frozen=True)
class BareCut:
    """The first events of a log, the last of which is the trigger."""

    length: int
    log: Sequence[Event]
    turn: int
    """The turn (from 0) that the last event belongs to, and that goes on."""
    entries: Sequence[Entry] = ()
    """The journal that is made of the log."""
    done: Counter[Key] = field(default_factory=Counter[Key])
    """What must not happen again: what the log tells of, and what failed in the turns before."""
    failed_calls: Counter[str] = field(default_factory=Counter[str])
    """Failed model calls of the turns before, by agent: a script goes on behind them."""
    cut_off: frozenset[str] = frozenset()
    """Long-running calls that have no response in the log, though their tools have run or may have."""
    allowed: tuple[str, ...] = ()
    """What is allowed to come out differently, as far as it is known before."""
    skipped: str | None = None
    """Why the log cannot be driven on from here."""


def bare_cuts(reference: Outcome, state: Mapping[str, Any], *, resumable: bool) -> list[BareCut]:
    """Return a cut for every number of events, those that must be skipped included.

    Args:
        reference: The uninterrupted run.
        state: The session's state before the first turn.
        resumable: Whether the app is: if not, a log is cut behind what the user sends only.
    """
    log = reference.events
    ends = list(itertools.accumulate(len(events) for events in reference.turns))
    after = _journal_lengths(reference.journal, len(log))
    asked_within = fold_journal(reference.journal).of_scopes
    cuts: list[BareCut] = []
    for length in range(1, len(log) + 1):
        turn = next(number for number, end in enumerate(ends) if end >= length)
        cut = BareCut(length, log[:length], turn)
        start = ends[turn - 1] if turn else 0
        reason = None
        if log[length - 1].is_users and length < ends[turn] and log[length].is_users:
            reason = HALF_SENT
        elif length == ends[turn] < len(log) and log[length].is_users and is_refused(log[length - 1]):
            # Driven on, it is resumed: the model is asked again, and its script is one step ahead.
            reason = FAILED_THERE
        elif not resumable and length != start + 1:
            reason = NOT_RESUMABLE
        elif any(isinstance(entry, FailureCaught) for entry in reference.journal[: after[length]]):
            reason = CAUGHT
        elif fails_amid(event for event in cut.log if event.invocation_id == log[length - 1].invocation_id):
            reason = ATTEMPTS
        elif any(
            event.id in asked_within and event.invocation_id == log[length - 1].invocation_id for event in cut.log
        ):
            reason = OF_A_TOOL
        cuts.append(replace(cut, skipped=reason) if reason else _planned(cut, start, after, reference, state))
    return cuts


def _planned(cut: BareCut, start: int, after: Sequence[int], reference: Outcome, state: Mapping[str, Any]) -> BareCut:
    """Work out what a cut has done, from the reference's journal and from the log alone."""
    try:
        triggered = read_triggered_log(cut.log, state=state, allow_pending_calls=True, fresh=_fresh)
    except InvalidTrajectory:
        return replace(cut, skipped=NO_TRIGGER)
    before = reference.journal[: reference.turn_ends[cut.turn - 1]] if cut.turn else []
    failures = done_in(before, reference.steps) - done_in(_unsettled(before), reference.steps)
    shown = read_log(cut.log[:start], state=state, fresh=_fresh).entries
    failed_calls = _model_calls(before) - _model_calls(shown)
    failed_calls += _asked_again(reference.journal, len(before), cut.length)
    done = done_in(_unsettled(triggered.entries), reference.steps) + failures
    done.update({(f"model of {agent}", ""): count for agent, count in failed_calls.items()})
    # Other invocations do not go on, so what they did stays done, also where the log does not tell of it.
    done |= done_in(_of_others(before, triggered.invocation_id), reference.steps)
    journalled = done_in(_unsettled(reference.journal[: after[cut.length]]), reference.steps)
    again = {key for key, count in journalled.items() if not key[0].startswith("model ") and count > done[key]}
    answered = {response.id for event in cut.log for response in event.get_function_responses()}
    waiting = {call_id for event in cut.log for call_id in event.long_running_tool_ids or ()}
    allowed = [TOOL_AGAIN] if again else []
    if failures or failed_calls:
        allowed.append(FAILURE_OVER)
    return replace(
        cut,
        entries=triggered.entries,
        done=done,
        failed_calls=failed_calls,
        cut_off=frozenset(waiting - answered),
        allowed=tuple(allowed),
    )


def fails_amid(events: Iterable[Event]) -> bool:
    """Return whether a node of a graph has failed in an invocation, and not got further: gone on with, it begins anew.

    google.adk: attempts of `retry_config` are counted by its loop alone.
    """
    failed: set[str] = set()
    for event in events:
        path = (event.node_info or {}).get("path", "")
        # Of an agent outside of graphs it is the name alone.
        if "@" in path:
            (failed.add if event.error_code is not None else failed.discard)(path)
    return bool(failed)


def without_pending(outcome: Outcome, calls: frozenset[str]) -> Outcome:
    """Return an outcome without the agents' responses to some calls."""
    return replace(
        outcome, turns=[[kept for event in turn if (kept := _strip(event, calls))] for turn in outcome.turns]
    )


def _strip(event: Event, calls: frozenset[str]) -> Event | None:
    responses = {response.id for response in event.get_function_responses()}
    if event.author == USER or event.content is None or not responses & calls:
        return event
    parts = [part for part in event.parts if part.function_response is None or part.function_response.id not in calls]
    if not parts:
        return None
    return event.model_copy(update={"content": event.content.model_copy(update={"parts": parts})})


def _journal_lengths(journal: Sequence[Entry], events: int) -> list[int]:
    """Return, for each number of events, the journal's length just before the next one."""
    lengths = [0] * (events + 1)
    session = Projection()
    for index, entry in enumerate(journal, start=1):
        apply_entry(session, entry)
        lengths[len(session.events)] = index
    return lengths


def _unsettled(entries: Sequence[Entry]) -> list[Entry]:
    """Leave out what tells of failures: a call without a response counts as failed once its invocation has."""
    return [entry for entry in entries if not isinstance(entry, InvocationSettled)]


def _of_others(entries: Sequence[Entry], invocation_id: str) -> list[Entry]:
    return [entry for entry in entries if _invocation_of(entry) not in (None, invocation_id)]


def _invocation_of(entry: Entry) -> str | None:
    entry = innermost(entry)
    return entry.event.invocation_id if isinstance(entry, EventLogged) else getattr(entry, "invocation_id", None)


def _asked_again(journal: Sequence[Entry], start: int, events: int) -> Counter[str]:
    """Return of which agents a model was asked again from an entry on, before so many events were logged."""
    session = Projection()
    asked: Counter[str] = Counter()
    for index, entry in enumerate(journal):
        if len(session.events) == events:
            break
        apply_entry(session, entry)
        if index >= start and isinstance(entry, ModelCalled) and entry.again is not None:
            asked[entry.agent] += 1
    return asked


def _model_calls(entries: Sequence[Entry]) -> Counter[str]:
    return Counter(entry.agent for entry in entries if isinstance(entry, ModelCalled))


def _fresh() -> str:
    return str(uuid.uuid4())
