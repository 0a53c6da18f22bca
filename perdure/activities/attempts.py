"""One attempt of an activity: its deadline, and the log line of its failure."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager

from temporalio import activity

from perdure.logs import get_logger, names_at_work
from perdure.logs.failures import fields_of
from perdure.rules.failures import reference
from perdure.telemetry.step import tell_attempt

_LOGGER = "perdure.worker"
_log = get_logger(_LOGGER)

_MARGIN_SECONDS = 5.0
_MARGIN_PART = 0.2
"""What is left of an activity's time for its word to reach the server: of a short time a part."""


def handing_in_until() -> float:
    """Return when an activity that has begun just now is to return at the latest, by `time.monotonic`.

    By this machine's own clock, since the server's, which the activity's times are of, may be another.
    """
    timeout = activity.info().start_to_close_timeout
    if timeout is None:
        return math.inf
    seconds = timeout.total_seconds()
    return time.monotonic() + seconds - min(_MARGIN_SECONDS, seconds * _MARGIN_PART)


@contextmanager
def telling(what: str, attempt: int) -> Generator[None]:
    """Log a failure by its kind, the frames of the app's code, and the attempt."""
    tell_attempt(attempt)
    try:
        yield
    except Exception as error:
        names = names_at_work()
        known = reference(names.get("invocation", ""), names.get("agent", ""), names.get("tool", "model"))
        fields = fields_of(error, _LOGGER, known)
        _log.warning(f"{what} failed", attempt=attempt, **fields)
        if attempt == 1 or "exception" in fields:
            # All frames, below those of the app's code; attempts that fail as the one before tell them no more.
            _log.debug(f"{what} failed", exc_info=True)
        raise
