"""Keeps where users' code raised: a failed test shows that line, and not Temporal's long ones of each attempt."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from perdure.tracebacks import folded, raised

__all__ = ["Raised"]

_LOGGER = logging.getLogger("temporalio.activity")


class Raised(logging.Filter):
    """Takes the lines about failed steps of some apps out of the log."""

    def __init__(self) -> None:
        """Begin to look."""
        super().__init__()
        self.apps: set[str] = set()
        """The task queues that are looked at."""
        self._places: dict[str, str] = {}
        # Before that by which Perdure's own log leaves these lines out, where a test has switched it on.
        _LOGGER.filters.insert(0, self)
        self._level = _LOGGER.level
        if not _LOGGER.isEnabledFor(logging.WARNING):
            # Else there is no line to be looked at.
            _LOGGER.setLevel(logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep where the last step of a session failed; returns whether the line stays in the log."""
        step = cast("Mapping[str, Any]", getattr(record, "temporal_activity", {}))
        error = record.exc_info[1] if record.exc_info else None
        if error is None or step.get("task_queue") not in self.apps:
            return True
        errors = raised(error)
        of_app = any(one.place is not None for one in errors)
        self._places[str(step.get("workflow_id"))] = folded(errors) if of_app else ""
        return False

    def where(self, workflow_id: str) -> str:
        """Return how the last failure of a session came out of users' code; empty if it came from none."""
        return self._places.get(workflow_id, "")

    def close(self) -> None:
        """Look no more."""
        _LOGGER.removeFilter(self)
        _LOGGER.setLevel(self._level)
