"""Keeps the failures underneath a custom agent that may go on after them, and journals them (decision 116)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from perdure.errors import EffectFailed
from perdure.journal.entries import FailureCaught
from perdure.workflows.agents.scope import Scope
from perdure.workflows.run.activities import told

_Line = tuple[asyncio.Task[Any] | None, ...]

_line: ContextVar[_Line] = ContextVar("line", default=())
"""The task that runs, behind those that began it: whoever gathers, before what it gathers."""


@dataclass(eq=False)
class _Met:
    failure: EffectFailed
    entry: FailureCaught
    line: _Line
    dealt_with: bool = False
    """The task that met it has gone on, or one that waited for that task. What was gathered beside it says nothing."""


class Caught:
    """The failures that one agent met since its last checkpoint."""

    def __init__(self, scope: Scope, whose: dict[str, Any]) -> None:
        """Begin, in the agent's own task; `whose` has its invocation id, name and branch, as entries have them."""
        self._scope = scope
        self._whose = whose
        self._met: list[_Met] = []
        self._over = False
        _current_line()

    def met(self, failure: EffectFailed, **step: Any) -> None:
        """Take note of a failure: should the agent go on after it, the journal will tell so."""
        if self._over:
            # One of several calls that were gathered; the agent did not wait for it.
            return
        entry = FailureCaught(failures=tuple(told(failure)), silent=failure.silent, **step, **self._whose)
        self._met.append(_Met(failure, entry, _current_line()))
        self._scope.progress.met(entry)

    def met_again(self, entry: FailureCaught) -> EffectFailed:
        """Return the failure that the journal holds, before the agent was entered again."""
        first, *beside = [EffectFailed(known.agent, known.step, known.cause) for known in entry.failures]
        first.beside, first.silent = beside, entry.silent
        self._met.append(_Met(first, entry, _current_line()))
        return first

    def go_on(self) -> None:
        """Journal the failures so far: the agent does something else now."""
        line = _current_line()
        for met in self._met:
            met.dealt_with |= met.line[: len(line)] == line
        if not self._scope.progress.stopping:
            self._scope.keep_caught(_entries(self._met))

    def forget(self) -> None:
        """Forget it all, at a checkpoint: nobody will meet it again."""
        self._scope.progress.forget(_entries(self._met))
        self._met.clear()

    def end(self) -> None:
        """Forget it all for good: the agent has ended."""
        self._over = True
        self.forget()

    def give_up(self, failure: EffectFailed | None) -> None:
        """Mark for a resume what the agent fails by: all that failed, if it fails of its own (no `failure`).

        All, too, if it fails by what it had dealt with. Otherwise what it has not dealt with: that failure, and what
        failed beside it.
        """
        self._over = True
        raised = next((met for met in self._met if met.failure is failure), None)
        passes = raised is not None and not raised.dealt_with
        again = [met for met in self._met if not (passes and met.dealt_with)]
        if raised is not None and again == [raised] and not self._is_kept(raised):
            # It passes through, and nothing else failed: the journal needs no word of it.
            self._scope.progress.forget([raised.entry])
        elif again:
            self._scope.keep_caught(_entries(again))
            self._scope.log.append(FailureCaught(again=self._numbers(again), **self._whose))

    def _is_kept(self, met: _Met) -> bool:
        return any(met.entry is entry for entry in self._scope.invocation.entries)

    def _numbers(self, again: Sequence[_Met]) -> tuple[int, ...]:
        caught = (entry for entry in self._scope.invocation.entries if isinstance(entry, FailureCaught))
        return tuple(number for number, entry in enumerate(caught) if any(entry is met.entry for met in again))


def _entries(met: Sequence[_Met]) -> list[FailureCaught]:
    return [one.entry for one in met]


def _current_line() -> _Line:
    """Return the line of the task that runs, and let what it begins from here on stand behind it."""
    line, task = _line.get(), asyncio.current_task()
    if not line or line[-1] is not task:
        line = (*line, task)
        _line.set(line)
    return line
