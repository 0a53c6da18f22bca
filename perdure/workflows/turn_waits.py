"""Those who wait, by an update, until an invocation has given up the turn."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from temporalio import workflow

from perdure.errors import InvocationRunning
from perdure.journal.projection import Invocation
from perdure.messages.session import HANDS_OVER

_MAX_WAITS = 5
"""Of the ten updates that Temporal takes of a workflow at a time; the others are for messages, answers and stops."""


class TurnWaits:
    """Those who wait until an invocation has given up the turn."""

    def __init__(self) -> None:
        self._number = 0
        self._ended = False

    def check(self) -> None:
        """Raise `InvocationRunning` if the run hands over, and the next one is to be asked, or one more is too many."""
        if self._ended:
            raise InvocationRunning(HANDS_OVER)
        if self._number >= _MAX_WAITS:
            raise InvocationRunning(f"{self._number} wait for invocations of the session already; follow it instead")

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Count one who waits, also for the journal."""
        self._number += 1
        try:
            yield
        finally:
            self._number -= 1

    async def until_settled(self, invocation: Invocation) -> None:
        """Return when an invocation has given up the turn, or nobody is to wait any more."""
        await workflow.wait_condition(lambda: self._ended or invocation.status not in ("queued", "running"))

    def end(self) -> None:
        """Let all of them go, since the run hands over to the next one, which they are to ask."""
        self._ended = True
