"""Waits of an invocation's agents: for answers to long-running calls, or for a resume."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, contextmanager

from perdure.journal.projection import Call, Projection


class Waits:
    """The open waits of one invocation. One for answers ends when every one of its calls has a logged answer."""

    def __init__(self, projection: Projection, around: Waits | None = None) -> None:
        """Begin with none; those of an agent that a tool runs are also waits of the invocation around it."""
        self._projection = projection
        self._open: list[Callable[[], bool]] = around._open if around is not None else []

    def waiting(self, call_ids: Collection[str]) -> AbstractContextManager[Callable[[], bool]]:
        """Count as waiting for answers inside of the block; yields whether the wait is over."""
        return self.until(lambda: self._answered(call_ids))

    @contextmanager
    def until(self, is_over: Callable[[], bool]) -> Generator[Callable[[], bool]]:
        """Count as waiting inside of the block, for whatever only a user can bring about."""
        self._open.append(is_over)
        try:
            yield is_over
        finally:
            self._open.remove(is_over)

    @property
    def all_open(self) -> bool:
        """There are waits, and none of them is over: one that is over will run on as soon as the workflow yields."""
        return bool(self._open) and not any(is_over() for is_over in self._open)

    def _answered(self, call_ids: Collection[str]) -> bool:
        calls = [self._projection.calls[call_id] for call_id in call_ids]
        return all(call.answer == "logged" for call in calls) or self.expired(call_ids) is not None

    def expired(self, call_ids: Collection[str]) -> Call | None:
        """Return a call whose deadline has passed, which fails the invocation."""
        return next((call for id in call_ids if (call := self._projection.calls[id]).expired is not None), None)
