"""Limits of one run: it continues as new before it meets Temporal's."""

from __future__ import annotations

from typing import NoReturn

from temporalio import workflow

from perdure.messages.session import SessionInput, Trial
from perdure.plan.nodes import Plan
from perdure.temporal.task_timeouts import LONG, SHORT

_MAX_EVENTS = 40_000
"""History events; Temporal ends a run at 51,200."""
_MAX_BYTES = 40_000_000
"""Bytes of history; Temporal ends a run at 50 MB."""
_MAX_UPDATES = 1_800
"""Updates; Temporal refuses more than 2,000 in one run."""

_SHORT_EVENTS = 1_400
"""History events, about, of a run with short workflow tasks: their replay takes half a second of processor time."""
_UPDATE_EVENTS = 5
"""What an update leaves in history, its workflow task included."""

_CARRIED_EVENTS = 10_000
"""History events that a run with a large journal takes before it hands over, since that copies the journal."""

_LEAST_BYTES = 4_000_000
"""Bytes that it takes at the least, however little room there is: else a run would hand over before it did anything."""


class RunLimits:
    """The usage of one run so far. It hands over when Temporal suggests it, or when a limit comes near."""

    def __init__(self, trial: Trial | None = None) -> None:
        self.updates = 0
        """Updates that the run accepted."""
        self._carried_bytes = 0
        self._carried_events = 0
        self._step_events = 0
        # A proof says itself how long tasks may take.
        self._fixed = trial is not None and trial.dead_after is not None
        self._timeout = workflow.info().task_timeout
        self._short = self._timeout == SHORT and not self._fixed
        self._may_shorten = self._timeout > SHORT and not self._fixed
        self._shortens = False

    def carried(self) -> None:
        """Count what the history holds now as the journal that the run started with."""
        info = workflow.info()
        self._carried_bytes = info.get_current_history_size()
        self._carried_events = info.get_current_history_length()
        # The next one would have as large a journal to fetch.
        self._may_shorten = False

    def begins_local(self) -> bool:
        """Return whether the run should hand over before a local tool, since the next one has short workflow tasks."""
        self._shortens |= self._may_shorten
        return self._may_shorten

    def hand_over(self, start: SessionInput, plan: Plan | None) -> NoReturn:
        """Continue as new, with the time for workflow tasks that the session's newest plan asks for."""
        timeout = self._timeout
        # A server may have another one of its own.
        if not self._fixed and (timeout in (SHORT, LONG) or self._shortens):
            has_local_tools = self._shortens or (plan is not None and plan.has_local_tools)
            # A run that fetches its journal has a long history from the start.
            timeout = SHORT if has_local_tools and start.carried is None else LONG
        # Where workers are versioned, this is where a session moves to the version that is current.
        workflow.continue_as_new(
            start,
            task_timeout=timeout,
            initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
        )

    def begins(self, events: int) -> bool:
        """Take note of a step that leaves so many history events; return whether the run should do no more after it.

        Counted here, since a session that is replayed for a query may take up the step's end before Temporal tells how
        long the history is with it: it would go on, and later replays would not (decision 008).
        """
        self._step_events += events
        return self._is_no_more_short

    @property
    def _is_no_more_short(self) -> bool:
        return self._short and self._step_events + self.updates * _UPDATE_EVENTS >= _SHORT_EVENTS

    @property
    def full(self) -> bool:
        """The journal leaves a run no room: only what is open can be brought to its end."""
        return self._carried_bytes > _MAX_BYTES

    @property
    def reached(self) -> bool:
        """The run must continue as new."""
        info = workflow.info()
        size, events = info.get_current_history_size(), info.get_current_history_length()
        if events >= _MAX_EVENTS or self.updates >= _MAX_UPDATES or self._is_no_more_short:
            return True
        if not self._carried_events:
            return info.is_continue_as_new_suggested() or size >= _MAX_BYTES
        # Temporal suggests it all the time once a large journal stands in the history. To hand over when as much again
        # has come keeps what is copied in proportion to what is new.
        room = max(_MAX_BYTES - self._carried_bytes, _LEAST_BYTES)
        grown = size - self._carried_bytes >= min(self._carried_bytes, room)
        return info.is_continue_as_new_suggested() and (grown or events - self._carried_events >= _CARRIED_EVENTS)
