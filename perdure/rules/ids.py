"""Derives ids, of calls above all: each has one that no other call of its session has. Pure.

They are derived from what history tells anyway, so that an event can be rebuilt out of history with the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from perdure.journal.events import Event
from perdure.journal.projection import Projection
from perdure.messages.step_log import StepLog
from perdure.plan.contents import types

OWN_IDS = "adk-"
"""How ids start that the session, or google.adk, gave, and not a model."""


def derived_id(seed: str, *parts: object) -> str:
    """Return an id in a UUID's form: equal for equal parts, and not to be guessed without the seed."""
    text = hashlib.sha256("/".join(map(str, (seed, *parts))).encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:32]}"


def call_ids(seed: str, *parts: object) -> Iterator[str]:
    """Yield ids for function calls, in ADK's form, without an end."""
    number = 0
    while True:
        yield f"{OWN_IDS}{derived_id(seed, *parts, number)}"
        number += 1


def called(place: int, call: types.FunctionCall) -> str:
    """Return what an id is derived from that a call is given: no other call gets it, nor its idempotency key, again.

    A model that is asked once more, as behind a reset, may call something else.
    """
    return f"{place}/{call.name}/{json.dumps(call.args or {}, sort_keys=True, default=repr)}"


class FreshIds(Protocol):
    """Yields ids for a call, without an end."""

    def __call__(self, call: str, /) -> Iterator[str]:
        """Yield those of a call, by `called`."""
        ...


def taken_ids(projection: Projection, answer: Event) -> set[str]:
    """Return the ids that the calls of an answer must not have: a model may give the same ones in every session.

    So of an agent that a tool runs, whose calls are asked about and keyed beside those of the session, it gives none.
    """
    own = [call.id for call in answer.get_function_calls() if call.id] if projection.began is not None else []
    return projection.call_ids.union(own)


def with_unique_ids(step: StepLog, projection: Projection) -> StepLog:
    """Return what the step of a google.adk agent's model logs, its calls under ids that no other call has.

    A model may name calls alike in each turn, or twice in an answer.
    """
    taken, within = set(projection.call_ids), projection.began.call_id if projection.began is not None else ""
    events = tuple(_with_unique_ids(event, taken, taken_ids(projection, event), within) for event in step.events)
    return step.model_copy(update={"events": events})


def _with_unique_ids(event: Event, taken: set[str], reserved: Collection[str], within: str) -> Event:
    def id_of(place: int, call: types.FunctionCall) -> str:
        id = call.id or ""
        if not id or id in taken or (id in reserved and not id.startswith(OWN_IDS)):
            more = call_ids(id, within, called(place, call))
            id = next(one for one in (another_id(id, one) if id else one for one in more) if one not in taken)
        taken.add(id)
        return id

    return with_call_ids(event, id_of)


def another_id(given: str, fresh: str) -> str:
    """Return an id for a call that its model has named, as it has named another: that name, and what is its own."""
    return f"{given}-{fresh.removeprefix(OWN_IDS)[:8]}"


def with_call_ids(event: Event, id_of: Callable[[int, types.FunctionCall], str]) -> Event:
    """Return an event with ids for its calls, by their places among its parts."""
    if event.content is None or not event.get_function_calls():
        return event
    calls = {place: part.function_call for place, part in enumerate(event.parts) if part.function_call is not None}
    names = [(call.id, id_of(place, call)) for place, call in calls.items()]
    waiting = event.long_running_tool_ids and frozenset(id for was, id in names if was in event.long_running_tool_ids)
    if waiting == event.long_running_tool_ids and all(was == id for was, id in names):
        return event
    parts = list(event.parts)
    for (place, call), (_, id) in zip(calls.items(), names, strict=True):
        parts[place] = parts[place].model_copy(update={"function_call": call.model_copy(update={"id": id})})
    content = event.content.model_copy(update={"parts": parts})
    return event.model_copy(update={"content": content, "long_running_tool_ids": waiting})
