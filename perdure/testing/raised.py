"""Keeps where users' code raised: a failed test shows that line, and not Temporal's long ones of each attempt."""

from __future__ import annotations

import logging
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from perdure.agents.frames import is_users

__all__ = ["Raised"]

_LIBRARIES = tuple(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))
_LOGGER = logging.getLogger("temporalio.activity")


class Raised(logging.Filter):
    """Takes the lines about failed steps of some apps out of the log."""

    def __init__(self) -> None:
        """Begin to look."""
        super().__init__()
        self.apps: set[str] = set()
        """The task queues that are looked at."""
        self._places: dict[str, str] = {}
        _LOGGER.addFilter(self)
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
        self._places[str(step.get("workflow_id"))] = _place(error)
        return False

    def where(self, workflow_id: str) -> str:
        """Return the lines of users' code that the last failure of a session came from; empty if it came from none."""
        return self._places.get(workflow_id, "")

    def close(self) -> None:
        """Look no more."""
        _LOGGER.removeFilter(self)
        _LOGGER.setLevel(self._level)


def _place(error: BaseException) -> str:
    found: BaseException | None = error
    while found is not None:
        frames = traceback.extract_tb(found.__traceback__)
        own = [index for index, frame in enumerate(frames) if _is_own(frame.filename)]
        if own:
            return "".join(traceback.format_list(frames[own[0] :])).rstrip()
        found = found.__cause__
    return ""


def _is_own(filename: str) -> bool:
    return is_users(filename) and not any(map(Path(filename).is_relative_to, _LIBRARIES))
