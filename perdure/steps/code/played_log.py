"""Shows a custom agent's code the session as it grew while the code ran."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from perdure.journal.entries import Entry, EventLogged
from perdure.journal.events import Event
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.projection import Projection
from perdure.steps.base import Place
from perdure.steps.code.past import is_own, within


class Shown(Protocol):
    """A session as code sees it."""

    def grow(self, events: Sequence[Event], state: dict[str, Any]) -> None:
        """Show what the log has gained.

        Args:
            events: Its events.
            state: The state behind them.
        """
        ...


class PlayedLog:
    """Plays a journal, entry by entry, into the session that a custom agent's code sees."""

    def __init__(
        self, at: Place, session: Shown, length: int, state: Callable[[Projection], Awaitable[dict[str, Any]]]
    ) -> None:
        """Begin.

        Args:
            at: The agent.
            session: What its code sees.
            length: How many entries of the journal that shows.
            state: Returns the state as code sees it.
        """
        self._at = at
        self._session = session
        self._length = length
        self._state = state
        self._projection: Projection | None = None
        self._logged = 0
        """Events that the session shows, and that the journal has still to show."""

    def logged(self) -> None:
        """Take note that the code's own event was logged, which the session shows by that."""
        self._logged += 1

    async def to(self, entries: Sequence[Entry], length: int) -> None:
        """Show what the journal has up to a length; nothing if that is shown."""
        if length <= self._length:
            return
        projection = self._projection
        if projection is None:
            projection = self._projection = fold_journal(entries[: self._length])
        known = len(projection.scope(self._at.scope).own_events)
        new = entries[self._length : length]
        for entry in new:
            apply_entry(projection, entry)
        self._length = length
        shown = set(self._shown(new))
        scope = projection.scope(self._at.scope)
        events = [event for event in scope.own_events[known:] if event.id not in shown]
        self._session.grow(events, await self._state(scope))

    def _shown(self, new: Sequence[Entry]) -> Iterator[str]:
        for entry in (within(entry, self._at.scope) for entry in new):
            if self._logged and isinstance(entry, EventLogged) and is_own(entry, self._at) and not entry.hidden:
                self._logged -= 1
                yield entry.event.id
