"""Which failures an agent's code met, and which of them it has dealt with when it fails itself (decision 017)."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from perdure.journal.entries import FailureCaught

_Line = tuple[asyncio.Task[Any] | None, ...]

_line: ContextVar[_Line] = ContextVar("line", default=())
"""The task that runs, behind those that began it: whoever gathers, before what it gathers."""


@dataclass(eq=False)
class _Met:
    error: Exception
    entry: FailureCaught
    number: int
    line: _Line
    dealt_with: bool = False
    """The task that met it has gone on, or one that waited for that task. What was gathered beside it says nothing."""


class Failures:
    """The failures that one agent's code met since its last checkpoint."""

    def __init__(self) -> None:
        self._met: list[_Met] = []

    def begin(self) -> None:
        """Begin, in the code's own task."""
        _current_line()

    def met(self, error: Exception, entry: FailureCaught, number: int) -> None:
        """Take note of a failure that the code is given.

        Args:
            error: What it is given.
            entry: What the journal tells of it.
            number: Which of the invocation's entries of failures that is.
        """
        self._met.append(_Met(error, entry, number, _current_line()))

    def go_on(self) -> None:
        """Take note that the code does something else now, in the task that runs."""
        line = _current_line()
        for met in self._met:
            met.dealt_with |= met.line[: len(line)] == line

    def forget(self) -> None:
        """Forget it all, at a checkpoint: nobody will meet it again."""
        self._met.clear()

    def entry_of(self, error: BaseException) -> FailureCaught | None:
        """Return what the journal tells of a failure by which the code ends; `None` if that is its own."""
        return next((met.entry for met in self._met if met.error is error), None)

    def again(self, error: BaseException) -> tuple[int, ...]:
        """Return what is tried again by a resume, where the code ends by a failure that it was given: by their numbers.

        All, if it had dealt with that failure. Otherwise what it has not dealt with: that failure, and what failed
        beside it.
        """
        passes = any(met.error is error and not met.dealt_with for met in self._met)
        return tuple(met.number for met in self._met if not (passes and met.dealt_with))


def _current_line() -> _Line:
    """Return the line of the task that runs, and let what it begins from here on stand behind it."""
    line, task = _line.get(), asyncio.current_task()
    if not line or line[-1] is not task:
        line = (*line, task)
        _line.set(line)
    return line
