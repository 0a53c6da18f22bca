"""What a follower of a log is shown before the log has it: events that activities keep which are at work."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from perdure.journal.events import Event


class EventBatch(BaseModel):
    """What a follower of a log gets at once; nothing, in a silence. The doors before sessions look into models."""

    model_config = ConfigDict(frozen=True)

    events: tuple[Event, ...] = ()
    """Of the log, and `partial` ones."""
    shown: frozenset[str] = frozenset()
    """The ids of those that came before, as they were kept."""
    kept: tuple[Event, ...] = ()
    """Behind them, not in the log yet: each comes again when it is. Not so if the workflow is terminated or reset
    before that."""


class ShownKept:
    """The events that one follower was shown before they were in the log."""

    def __init__(self) -> None:
        """Begin without any."""
        self._events: dict[str, Event] = {}

    def fresh(self, kept: Sequence[Event]) -> tuple[Event, ...]:
        """Return those that were not shown."""
        # Behind a reset the same step may have come to something else.
        return tuple(event for event in kept if self._events.get(event.id) != event)

    def show(self, kept: Sequence[Event]) -> tuple[Event, ...]:
        """Return those that were not shown, and are now."""
        found = self.fresh(kept)
        self._events.update({event.id: event for event in found})
        return found

    def logged(self, events: Sequence[Event]) -> frozenset[str]:
        """Return the ids of those that were shown; each comes into the log once."""
        return frozenset(event.id for event in events if self._events.pop(event.id, None) == event)
