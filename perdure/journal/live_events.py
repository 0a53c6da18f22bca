"""Selects the events of a log that count: rewinds take some out, and summaries stand for others. Pure.

ADK: `events/_rewind_events.py`, `apps/compaction.py`, and `flows/llm_flows/context/_compaction.py` (2.13).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import Field, ValidationError

from perdure.journal.events import AdkModel, Event, is_on_branch
from perdure.plan.contents import types


class Compaction(AdkModel):
    """A summary that stands for the events of a time. ADK: `events/event_actions.py`."""

    start_timestamp: float = Field(allow_inf_nan=False)
    """Seconds since the epoch, itself included."""
    end_timestamp: float = Field(allow_inf_nan=False)
    """The same."""
    compacted_content: types.Content
    """What a model sees in their place."""


def live_indexes(events: Sequence[Event]) -> Sequence[int]:
    """Return the places of the events that no rewind took out; a rewind's own event is none of them.

    A rewind takes out all from the first event of the invocation that it names up to itself. A rewind that was itself
    rewound takes out nothing.
    """
    if not any(event.actions.rewind_before_invocation_id for event in events):
        return range(len(events))
    first: dict[str, int] = {}
    for index, event in enumerate(events):
        first.setdefault(event.invocation_id, index)
    live: list[int] = []
    index = len(events) - 1
    while index >= 0:
        named = events[index].actions.rewind_before_invocation_id
        if named:
            index = min(first.get(named, index), index)
        else:
            live.append(index)
        index -= 1
    return live[::-1]


def live_events(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events that no rewind took out."""
    live = live_indexes(events)
    return events if len(live) == len(events) else [events[index] for index in live]


def told_events(events: Sequence[Event], *, agent: str, branch: str | None) -> Iterable[tuple[int, Event]]:
    """Return the events for a model, by place: the live ones, summaries in the place of those they stand for.

    A call whose response came after the summary that stands for the call is told all the same, and so are the other
    calls made with it, with their responses: no model takes a response without its call.

    Args:
        events: The whole log.
        agent: Who is told: a summary is its own word.
        branch: On which branch.
    """
    live = [(index, events[index]) for index in live_indexes(events) if is_on_branch(branch, events[index].branch)]
    summaries = _summaries(live)
    if not summaries:
        return live
    uncovered = _uncovered(live, summaries)
    places = {index for index, _ in uncovered}
    # A summary stands in front of what is younger than it; what it stands for is gone.
    told: list[tuple[int, Event]] = []
    waiting = sorted(summaries, key=lambda summary: (summary.end, summary.index))
    for index, event in _with_calls(live, uncovered):
        while waiting and (index not in places or event.timestamp > waiting[0].end or index > waiting[0].index):
            told.append(waiting.pop(0).told(agent))
        told.append((index, event))
    return [*told, *(summary.told(agent) for summary in waiting)]


@dataclass(frozen=True)
class _Summary:
    index: int
    """Its event's place in the log."""
    event: Event
    start: float
    end: float
    content: types.Content

    def told(self, agent: str) -> tuple[int, Event]:
        # A summary's calls were done with, and whoever answered is not asked again.
        parts = [part for part in self.content.parts or [] if not (part.function_call or part.function_response)]
        content = types.Content(role=self.content.role or "model", parts=parts)
        return self.index, self.event.model_copy(update={"author": agent, "content": content, "timestamp": self.end})


def _summaries(live: Iterable[tuple[int, Event]]) -> list[_Summary]:
    """Return the summaries that no other one contains; of two for the same time, the later."""
    found: list[_Summary] = []
    for index, event in live:
        made = read_compaction(event)
        if made is not None:
            found.append(_Summary(index, event, made.start_timestamp, made.end_timestamp, made.compacted_content))
    retained: list[_Summary] = []
    for summary in sorted(found, key=lambda one: (one.start, -one.end, -one.index)):
        # What could contain it comes before it.
        if not retained or summary.end > retained[-1].end:
            retained.append(summary)
    return retained


def read_compaction(event: Event) -> Compaction | None:
    """Return the summary that an event holds; `None` if there is none, or one without a time or a content."""
    if event.actions.compaction is None:
        return None
    try:
        return Compaction.model_validate_json(json.dumps(event.actions.compaction))
    except (ValidationError, AttributeError):
        # google-genai's enums fail so on what is no text.
        return None


def _uncovered(live: Iterable[tuple[int, Event]], summaries: Sequence[_Summary]) -> list[tuple[int, Event]]:
    """Return the events for which no summary stands: those behind all summaries too, whatever clock they went by."""
    newest = max(summary.index for summary in summaries)
    spans: list[tuple[float, float]] = []
    for summary in summaries:
        if spans and summary.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], summary.end)
        else:
            spans.append((summary.start, summary.end))

    def is_covered(time: float) -> bool:
        at = bisect_right(spans, (time, math.inf)) - 1
        return at >= 0 and time <= spans[at][1]

    return [
        (index, event)
        for index, event in live
        if event.actions.compaction is None and (index > newest or not is_covered(event.timestamp))
    ]


def _with_calls(live: Sequence[tuple[int, Event]], kept: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """Add the calls of responses that are told, and the responses to calls made with these."""
    places = {index for index, _ in kept}
    calls: dict[str | None, int] = {}
    missing: set[int] = set()
    for index, event in live:
        if index in places:
            missing.update(calls[response.id] for response in event.get_function_responses() if response.id in calls)
        calls |= {call.id: index for call in event.get_function_calls()}
    missing -= places
    if not missing:
        return kept
    together = {call.id for index, event in live if index in missing for call in event.get_function_calls()}
    answered = {
        index for index, event in live if together & {response.id for response in event.get_function_responses()}
    }
    return [item for item in live if item[0] in places | missing | answered]
