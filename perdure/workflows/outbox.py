"""How much one workflow task sends: Temporal takes 4 MB in one message, all that branches do at once included."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from temporalio import workflow

from perdure.journal import payload_size

BOUNDED = "bounded-tasks"
"""Patch id: histories from before it send all at once."""

_MAX_BYTES = 2_400_000
"""What the activities of one workflow task may take together, so that an answer to a query fits in beside them."""

_SMALL_BYTES = 10_000
"""What is smaller is not counted, so that a usual session never waits."""

_NEXT_TASK_SECONDS = 0.001
"""The shortest timer: it ends the workflow task that starts it."""


class Outbox:
    """Counts what activities are given, and lets those wait for the next workflow task that this one has no room for.

    Only a timer of its own empties it, since whatever else tells tasks apart could differ in a replay. So a session
    pays a timer for every few megabytes, whether or not they fell into one task.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._next_task: asyncio.Task[None] | None = None

    async def take(self, given: BaseModel) -> bool:
        """Take an activity's argument as soon as there is room; returns whether that took a wait."""
        size = payload_size(given)
        if size < _SMALL_BYTES:
            return False
        waited = False
        while self._bytes and self._bytes + size > _MAX_BYTES and workflow.patched(BOUNDED):
            waited = True
            if self._next_task is None:
                self._next_task = asyncio.create_task(self._empty())
            # Whoever is cancelled here must not take the timer from the others.
            await asyncio.shield(self._next_task)
        self._bytes += size
        return waited

    async def _empty(self) -> None:
        await asyncio.sleep(_NEXT_TASK_SECONDS)
        self._bytes, self._next_task = 0, None
