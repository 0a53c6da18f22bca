"""Restarts a worker in its own process when its core has lost a session's step: nothing else frees the session."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perdure.logs import get_logger

_MARGIN = 5.0
"""Seconds beside the grace period after which a worker that does not end is not waited for: its core waits in vain."""


class Restart:
    """A restart of this process, wanted or not."""

    def __init__(self) -> None:
        """Make it; the running loop is told of what other threads find."""
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._begun = False
        self._is_unwanted = False

    def ask(self) -> None:
        """Ask for it, in any thread."""
        with suppress(RuntimeError):  # The loop has ended, and so does the process.
            self._loop.call_soon_threadsafe(self._asked.set)

    def call_off(self) -> None:
        """Let the process end instead, also where it has begun to start anew. In the loop's thread."""
        self._is_unwanted = True

    @asynccontextmanager
    async def watched(self, stop: asyncio.Event, grace: float) -> AsyncGenerator[None]:
        """End the block by `stop` when a restart is asked for, and start anew when it has ended, or is too late.

        Args:
            stop: Set for whatever runs in the block.
            grace: Seconds that it takes to end.
        """
        task = asyncio.create_task(self._watch(stop, grace))
        try:
            yield
        finally:
            task.cancel()
        if self._begun and not self._is_unwanted:
            _start_anew()

    async def _watch(self, stop: asyncio.Event, grace: float) -> None:
        await self._asked.wait()
        if stop.is_set():
            # Somebody wants the process to end.
            return
        self._begun = True
        get_logger("perdure.worker").error(
            "Temporal's SDK has lost a step of a session, which goes on in a new process only; this worker starts anew."
            " It happens where more sessions are active than --max-sessions keeps in memory"
        )
        stop.set()
        await asyncio.sleep(grace + _MARGIN)
        if not self._is_unwanted:
            _start_anew()


def _start_anew() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 -- this process's own command
