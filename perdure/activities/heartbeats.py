"""Heartbeats of a running activity: as often as its timeout needs, and no more, since a server may bill each."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from temporalio import activity

_LATE_SECONDS = 1.4
"""By which a heartbeat may come late, where the loop is busy; in a short timeout less."""
_BEAT_PART = 0.6
_MOST_BEATS = 3.5
"""Where in its timeout a heartbeat is sent, and how many of them there are at the most."""


@contextmanager
def beating() -> Generator[None]:
    """Heartbeat inside of the block, from the worker's loop, which user code cannot block; none if it is local.

    As often as its timeout needs, which is also how soon the activity hears that it is to stop.
    """
    info = activity.info()
    if info.is_local or info.heartbeat_timeout is None:
        yield
        return
    timer = _Heartbeat(beat_seconds(info.heartbeat_timeout.total_seconds()))
    try:
        yield
    finally:
        timer.stop()


def beat_seconds(timeout: float) -> float:
    """Return the pause between two heartbeats, of a timeout in seconds."""
    return max(min(timeout * _BEAT_PART, timeout - _LATE_SECONDS), timeout / _MOST_BEATS)


class _Heartbeat:
    """Heartbeats by a timer: a task for each step would cost more than most of its heartbeats."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._loop = asyncio.get_running_loop()
        # The timer runs in the context of the activity, and so does each that it sets.
        self._timer = self._loop.call_later(pause, self._beat)

    def _beat(self) -> None:
        # With what an earlier attempt has kept: each heartbeat replaces that.
        activity.heartbeat(*activity.info().heartbeat_details)
        self._timer = self._loop.call_later(self._pause, self._beat)

    def stop(self) -> None:
        """Heartbeat no more."""
        self._timer.cancel()
