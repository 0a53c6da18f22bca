"""The end of a command that serves: what the first Ctrl-C begins, and the second one cuts short."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from perdure.cli.output import say


def stop_on_signal(and_then: Callable[[], None] | None = None, waits: Callable[[], str] | None = None) -> asyncio.Event:
    """Return an event that the first SIGINT or SIGTERM sets; a second one ends the process at once.

    Args:
        and_then: Called with the first one, too.
        waits: Says what is waited for now, to be printed. Default: another process says so.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def begin_to_end() -> None:
        stop.set()
        if waits is not None:
            say(f"perdure: ending{waits()}; Ctrl-C again ends at once", err=True)
        if and_then is not None:
            and_then()
        for number in signals:
            loop.add_signal_handler(number, end_at_once, number)

    def end_at_once(number: signal.Signals) -> None:
        if waits is not None:
            say("perdure: ended at once; what ran is run again, by its retries", err=True)
        # Not Python's own way with SIGINT, which would wait for all that runs.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in signals:
        loop.add_signal_handler(number, begin_to_end)
    return stop
