"""The session that a custom agent's code sees: it grows as the log did while the code ran."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Sequence

from google.adk.events.event import Event as AdkEvent
from google.adk.sessions.session import Session as AdkSession

from perdure.adk.events import to_adk
from perdure.adk.session_service import StepSession
from perdure.journal.entries import Entry, EventLogged, FailureCaught, RunBegan, Within
from perdure.journal.events import Event
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.projection import Projection
from perdure.journal.runs import is_state
from perdure.steps.base import Place

__all__ = ["CodeSession", "Places", "PlayedLog"]


class CodeSession(StepSession):
    """Serves a custom agent's code its session: what the code appends by itself counts as its own events do."""

    is_known: Callable[[AdkEvent], Awaitable[bool]]
    """Whether the log has an event already that the code has."""

    async def append_event(self, session: AdkSession, event: AdkEvent) -> AdkEvent:
        """Log an event, unless the log has it."""
        if not event.partial and session is self.session and await self.is_known(event):
            return event
        return await self.log(event)

    async def log(self, event: AdkEvent) -> AdkEvent:
        """Log an event."""
        return await super().append_event(self.session, event)

    def grow(self, events: Sequence[AdkEvent], state: dict[str, object]) -> None:
        """Show what the log has gained.

        Args:
            events: Its events.
            state: The state behind them.
        """
        self.session.events.extend(events)
        for key, value in state.items():
            if key not in self._shared.expected or self._shared.expected[key] != value:
                self._shared.expected[key] = value
                self.session.state[key] = copy.deepcopy(value)


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


class PlayedLog:
    """Plays a journal, entry by entry, into the session that a custom agent's code sees."""

    def __init__(
        self, at: Place, session: CodeSession, length: int, state: Callable[[Projection], Awaitable[dict[str, object]]]
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
        events = [to_adk(event) for event in scope.own_events[known:] if event.id not in shown]
        self._session.grow(events, await self._state(scope))

    def _shown(self, new: Sequence[Entry]) -> Iterator[str]:
        for entry in (within(entry, self._at.scope) for entry in new):
            if self._logged and isinstance(entry, EventLogged) and is_own(entry, self._at) and not entry.hidden:
                self._logged -= 1
                yield entry.event.id
