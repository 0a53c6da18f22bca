"""When a run must continue as new, so that a session never meets Temporal's limits of one run."""

from __future__ import annotations

from temporalio import workflow

_MAX_EVENTS = 40_000
"""History events; Temporal ends a run at 51,200."""
_MAX_BYTES = 40_000_000
"""Bytes of history; Temporal ends a run at 50 MB."""
_MAX_UPDATES = 1_800
"""Updates; Temporal refuses more than 2,000 in one run."""

_CARRIED_EVENTS = 10_000
"""History events that a run with a large journal takes before it hands over, since that copies the journal."""

_LEAST_BYTES = 4_000_000
"""Bytes that it takes at the least, however little room there is: else a run would hand over before it did anything."""


class RunLimits:
    """What one run has taken so far. It hands over when Temporal suggests it, or when a limit comes near."""

    def __init__(self) -> None:
        self.updates = 0
        """Updates that the run accepted."""
        self._carried_bytes = 0
        self._carried_events = 0

    def carried(self) -> None:
        """Take what the history holds now for the journal that the run started with."""
        info = workflow.info()
        self._carried_bytes = info.get_current_history_size()
        self._carried_events = info.get_current_history_length()

    @property
    def full(self) -> bool:
        """The journal leaves a run no room: only what is open can be brought to its end."""
        return self._carried_bytes > _MAX_BYTES

    @property
    def reached(self) -> bool:
        """The run must continue as new."""
        info = workflow.info()
        size, events = info.get_current_history_size(), info.get_current_history_length()
        if events >= _MAX_EVENTS or self.updates >= _MAX_UPDATES:
            return True
        if not self._carried_events:
            return info.is_continue_as_new_suggested() or size >= _MAX_BYTES
        # Temporal suggests it all the time once a large journal stands in the history. To hand over when as much again
        # has come keeps what is copied in proportion to what is new.
        room = max(_MAX_BYTES - self._carried_bytes, _LEAST_BYTES)
        grown = size - self._carried_bytes >= min(self._carried_bytes, room)
        return info.is_continue_as_new_suggested() and (grown or events - self._carried_events >= _CARRIED_EVENTS)
