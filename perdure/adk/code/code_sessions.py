"""The session that a custom agent's code sees: it grows as the log did while the code ran."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from google.adk.events.event import Event as AdkEvent
from google.adk.sessions.session import Session as AdkSession

from perdure.adk.events import to_adk
from perdure.adk.session_service import StepSession
from perdure.journal.compact_json import payload_size
from perdure.journal.events import Event


class CodeSession(StepSession):
    """Serves a custom agent's code its session: what the code appends by itself counts as its own events do."""

    is_known: Callable[[AdkEvent], Awaitable[bool]]
    """Whether the log has an event already that the code has."""
    held_bytes = 0
    """Of what is logged and no step has returned yet."""

    async def append_event(self, session: AdkSession, event: AdkEvent) -> AdkEvent:
        """Log an event, unless the log has it."""
        if not event.partial and session is self.session and await self.is_known(event):
            return event
        return await self.log(event)

    async def log(self, event: AdkEvent, id: str = "") -> AdkEvent:
        """Log an event; under an id, if it is given."""
        logged = await super().append_event(self.session, event)
        if id:
            self.logged[-1] = self.logged[-1].model_copy(update={"id": id})
        self.held_bytes += payload_size(self.logged[-1])
        return logged

    def grow(self, events: Sequence[Event], state: dict[str, Any]) -> None:
        """Show what the log has gained.

        Args:
            events: Its events.
            state: The state behind them.
        """
        self.session.events.extend(map(to_adk, events))
        for key, value in state.items():
            if key not in self._shared.expected or self._shared.expected[key] != value:
                self._shared.expected[key] = value
                self.session.state[key] = copy.deepcopy(value)
