"""One attempt of an activity: its heartbeats, its deadline, and the log line of its failure."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Generator
from contextlib import contextmanager

from temporalio import activity

from perdure.logs import get_logger, names_at_work
from perdure.logs.failures import fields_of
from perdure.rules.failures import reference

_LOGGER = "perdure.worker"
_log = get_logger(_LOGGER)

_BEAT_SECONDS = 1.0
_BEATS_PER_TIMEOUT = 3.5

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
def telling(what: str) -> Generator[None]:
    """Log a failure by its kind, the frames of the app's code, and the attempt."""
    try:
        yield
    except Exception as error:
        names = names_at_work()
        known = reference(names.get("invocation", ""), names.get("agent", ""), names.get("tool", "model"))
        attempt, fields = activity.info().attempt, fields_of(error, _LOGGER, known)
        _log.warning(f"{what} failed", attempt=attempt, **fields)
        if attempt == 1 or "exception" in fields:
            # All frames, below those of the app's code; attempts that fail as the one before tell them no more.
            _log.debug(f"{what} failed", exc_info=True)
        raise


@contextmanager
def beating() -> Generator[None]:
    """Heartbeat inside of the block, from the worker's loop, which user code cannot block; none if it is local."""
    info = activity.info()
    # Once a second, or more often where that would be too late for the timeout.
    pause = _BEAT_SECONDS
    if info.heartbeat_timeout:
        pause = min(pause, info.heartbeat_timeout.total_seconds() / _BEATS_PER_TIMEOUT)
    if info.is_local:
        yield
        return
    timer = _Heartbeat(pause)
    try:
        yield
    finally:
        timer.stop()


class _Heartbeat:
    """Heartbeats by a timer: a task for each step would cost more than most of its heartbeats."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._loop = asyncio.get_running_loop()
        # The timer runs in the context of the activity, and so does each that it sets.
        self._timer = self._loop.call_later(pause, self._beat)

    def _beat(self) -> None:
        activity.heartbeat()
        self._timer = self._loop.call_later(self._pause, self._beat)

    def stop(self) -> None:
        """Heartbeat no more."""
        self._timer.cancel()
