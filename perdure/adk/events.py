"""Turns events of the log into google.adk's, and back, by the JSON that both have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from typing import Any

from google.adk.events.event import Event as AdkEvent
from google.adk.events.event_actions import EventActions as AdkActions
from pydantic import BaseModel

from perdure.agents.plain_values import NotPlain, to_plain
from perdure.journal.events import Event, EventActions

_MOST_KEPT = 20_000
"""Events that are kept as ADK's, over all sessions of a process: to make them is most of a long session's steps."""


class AdkEvents:
    """Makes google.adk's events of logged ones, which never change, and keeps them."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[Event, AdkEvent]] = OrderedDict()

    def of(self, events: Iterable[Event], session: str) -> list[AdkEvent]:
        """Return the events of a session as google.adk's."""
        return [self._one(event, session) for event in events]

    def _one(self, event: Event, session: str) -> AdkEvent:
        key = (session, event.id)
        made, known = self._known.get(key) or (None, None)
        # A streamed answer that a dead worker did not keep comes with the same id again.
        if known is None or (made is not event and made != event):
            known = to_adk(event)
            self._known[key] = (event, known)
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        else:
            self._known[key] = (event, known)
            self._known.move_to_end(key)
        return known


def to_adk(event: Event) -> AdkEvent:
    """Return a logged event as google.adk's; fields that the installed version does not know are left out."""
    data = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    actions = data.get("actions")
    if actions is not None:
        data["actions"] = _known_fields(actions, AdkActions)
    return AdkEvent.model_validate(_known_fields(data, AdkEvent))


def from_adk(event: AdkEvent) -> Event:
    """Return an event of google.adk's for the log, which gives it its id; `temp:` keys in its state delta are kept.

    Raises:
        NotPlain: Something in it is no JSON; the message names the key.
    """
    delta = {key: _plain(key, value) for key, value in event.actions.state_delta.items()}
    bare = event.model_copy(update={"actions": event.actions.model_copy(update={"state_delta": {}})})
    data: dict[str, Any] = bare.model_dump(mode="json", by_alias=True, exclude_none=True)
    # A compaction belongs to an invocation of its own, which only ADK names.
    given = ("id", "timestamp", *(() if event.actions.compaction else ("invocationId",)))
    for field in given:
        data.pop(field, None)
    # Outside of graphs a node is the agent itself.
    if not data.get("nodeInfo", {}).get("path"):
        data.pop("nodeInfo", None)
    if delta:
        data.setdefault("actions", {})["stateDelta"] = delta
    return Event.model_validate(data)


def actions_of(actions: AdkActions) -> EventActions:
    """Return what google.adk's code set through its context, as JSON.

    Raises:
        NotPlain: Something in it is no JSON; the message names the key.
    """
    delta = plain_state(actions.state_delta)
    bare = actions.model_copy(update={"state_delta": {}}).model_dump(mode="json", by_alias=True, exclude_none=True)
    return EventActions.model_validate(bare | {"stateDelta": delta})


def plain_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return state as JSON.

    Raises:
        NotPlain: A value is no JSON; the message names its key.
    """
    return {key: _plain(key, value) for key, value in state.items()}


def changed_state(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return what differs of the state from what it was, as JSON.

    Raises:
        NotPlain: A value is no JSON; the message names its key.
    """
    return {key: value for key, value in plain_state(now).items() if key not in before or before[key] != value}


def _plain(key: str, value: Any) -> Any:
    try:
        return to_plain(value)
    except NotPlain as error:
        raise NotPlain(f"the state key {key!r} got what is no JSON: {error}") from error


def _known_fields(data: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    if model.model_config.get("extra") == "allow":
        return data
    names = _names_of(model)
    return {key: value for key, value in data.items() if key in names}


@cache
def _names_of(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(name for field, info in model.model_fields.items() for name in (field, info.alias or field))
