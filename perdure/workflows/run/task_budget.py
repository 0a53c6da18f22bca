"""Limits what one workflow task sends: Temporal takes 4 MB in a message, for all branches together."""

from __future__ import annotations

import asyncio
from collections import Counter

from pydantic import BaseModel

from perdure.journal.compact_json import payload_size

_MAX_BYTES = 1_700_000
"""What the activities of one workflow task may take together. The server writes them with the results that came
meanwhile, of which it holds 2 MB back, and ends a run that has to write more than 4 MB at once."""

_SMALL_BYTES = 10_000
"""What is smaller is not counted, so that a usual session never waits."""

_MAX_LOCALS = 6
"""Local tools whose results may go into one workflow task, each of `MAX_LOCAL_BYTES`, beside all of the above."""

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
        while self._bytes and self._bytes + size > _MAX_BYTES:
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


class LocalPlaces:
    """Counts the local tools whose results history may not hold yet, and says whether there is a place for one more.

    When a local tool returned may differ in a replay. So what it held is free only when its agent's next model call has
    come back: that was scheduled behind the tool's return, and its end is an event of history.
    """

    def __init__(self) -> None:
        self._held: Counter[tuple[str, str | None] | None] = Counter()

    def take(self, agent: str, branch: str | None) -> bool:
        """Take a place for a tool of this agent; returns whether there was one."""
        if self._held.total() >= _MAX_LOCALS:
            return False
        self._held[agent, branch] += 1
        return True

    def model_returned(self, agent: str, branch: str | None) -> None:
        """Free the places of this agent's tools, and those that were held as the turn began."""
        self._held.pop((agent, branch), None)
        self._held.pop(None, None)

    def next_turn(self) -> None:
        """Have the first model call that returns free what is held, since its agents may call no model any more."""
        self._held = Counter({None: self._held.total()})
