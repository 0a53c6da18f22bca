"""What a follower of a log is shown before the log has it: events that activities keep which are at work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.journal.events import Event


class EventBatch(NamedTuple):
    """What a follower of a log gets at once; nothing, in a silence."""

    events: tuple[Event, ...] = ()
    """Of the log, and `partial` ones."""
    kept: tuple[Event, ...] = ()
    """Behind them, not in the log yet: each comes again, by its id, when it is. Not so if the workflow is terminated or
    reset before that."""


class ShownKept:
    """The events that one follower was shown before they were in the log."""

    def __init__(self) -> None:
        """Begin without any."""
        self._ids: set[str] = set()

    def has_fresh(self, kept: Iterable[Event]) -> bool:
        """Return whether there are others among these."""
        return any(event.id not in self._ids for event in kept)

    def fresh(self, kept: Sequence[Event]) -> tuple[Event, ...]:
        """Return those that were not shown, which are about to be."""
        found = tuple(event for event in kept if event.id not in self._ids)
        self._ids.update(event.id for event in found)
        return found

    def logged(self, event: Event) -> bool:
        """Return whether an event that is in the log now was shown; it comes there once."""
        shown = event.id in self._ids
        self._ids.discard(event.id)
        return shown
