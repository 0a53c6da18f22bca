"""How much one workflow task sends: Temporal takes 4 MB in one message, all that branches do at once included."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from temporalio import workflow

from perdure.journal import MAX_LOCAL_BYTES, payload_size

BOUNDED = "bounded-tasks"
"""Patch id: histories from before it send all at once."""

RESULTS_BOUNDED = "bounded-local-results"
"""Patch id: histories from before it start all local activities at once."""

_MAX_BYTES = 2_400_000
"""What the activities of one workflow task may take together, so that an answer to a query fits in beside them."""

_SMALL_BYTES = 10_000
"""What is smaller is not counted, so that a usual session never waits."""

_NEXT_TASK_SECONDS = 0.001
"""The shortest timer: it ends the workflow task that starts it."""


class Outbox:
    """Counts what activities are given, and lets those wait for the next workflow task that this one has no room for.

    What local activities return goes out with the task, too: while one runs, it counts as much as it may return.

    Only a timer of its own empties it, since whatever else tells tasks apart could differ in a replay. So a session
    pays a timer for every few megabytes, whether or not they fell into one task.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._results = 0
        """What local activities have returned, and may return."""
        self._emptied = 0
        """How often it was emptied."""
        self._next_task: asyncio.Task[None] | None = None

    async def take(self, given: BaseModel) -> bool:
        """Take an activity's argument as soon as there is room; returns whether that took a wait."""
        size = payload_size(given)
        if size < _SMALL_BYTES:
            return False
        waited = False
        while (self._bytes and self._bytes + size > _MAX_BYTES and workflow.patched(BOUNDED)) or (
            self._results and not self._fits(size) and workflow.patched(RESULTS_BOUNDED)
        ):
            waited = True
            # Whoever is cancelled here must not take the timer from the others.
            await asyncio.shield(self._emptying())
        self._bytes += size
        return waited

    async def reserve(self) -> int:
        """Take what a local activity may return as soon as there is room; returns what `returned` is to be given."""
        while not self._fits(MAX_LOCAL_BYTES) and workflow.patched(RESULTS_BOUNDED):
            self._emptying()
            # Others may have returned less than they might, and that is sooner.
            await workflow.wait_condition(
                lambda before=self._emptied: self._fits(MAX_LOCAL_BYTES) or self._emptied > before
            )
        self._results += MAX_LOCAL_BYTES
        return self._emptied

    def returned(self, reserved: int, size: int) -> None:
        """Take in what a local activity returned, in bytes, for what was reserved."""
        if reserved == self._emptied:
            self._results -= MAX_LOCAL_BYTES
        self._results += size

    def _fits(self, size: int) -> bool:
        return not (self._bytes or self._results) or self._bytes + self._results + size <= _MAX_BYTES

    def _emptying(self) -> asyncio.Task[None]:
        if self._next_task is None:
            self._next_task = asyncio.create_task(self._empty())
        return self._next_task

    async def _empty(self) -> None:
        await asyncio.sleep(_NEXT_TASK_SECONDS)
        self._bytes, self._results, self._next_task = 0, 0, None
        self._emptied += 1
