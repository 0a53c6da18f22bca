"""What failed underneath a custom agent that may go on after it, and what the journal tells of that (decision 116)."""

from __future__ import annotations

from typing import Any

from perdure.errors import EffectFailed
from perdure.journal import FailureCaught
from perdure.workflows.effects import told
from perdure.workflows.scope import Scope


class Caught:
    """The failures that one agent met since its last checkpoint."""

    def __init__(self, scope: Scope, whose: dict[str, Any]) -> None:
        """Begin; `whose` holds the agent's invocation id, name and branch, as the journal's entries have them."""
        self._scope = scope
        self._whose = whose
        self._met: list[tuple[EffectFailed, FailureCaught]] = []
        self._over = False

    def met(self, failure: EffectFailed, **step: Any) -> None:
        """Take note of a failure: should the agent go on after it, the journal will tell so."""
        if self._over and self._scope.effects.revision.second:
            # One of several calls that were gathered; the agent did not wait for it.
            return
        entry = FailureCaught(failures=tuple(told(failure)), silent=failure.silent, **step, **self._whose)
        self._met.append((failure, entry))
        self._scope.caught.append(entry)

    def met_again(self, entry: FailureCaught) -> EffectFailed:
        """Return the failure that the agent went on after, before it was entered again."""
        first, *beside = [EffectFailed(known.agent, known.step, known.cause) for known in entry.failures]
        first.beside, first.silent = beside, entry.silent
        self._met.append((first, entry))
        return first

    def go_on(self) -> None:
        """Journal what failed before: the agent does something else now."""
        if not self._scope.stopping:
            self._scope.keep_caught(self._entries())

    def forget(self) -> None:
        """Forget it all, at a checkpoint: nobody will meet it again."""
        self._scope.drop_caught(self._entries())
        self._met.clear()

    def end(self) -> None:
        """Forget it all for good: the agent has ended."""
        self._over = True
        self.forget()

    def give_up(self, failure: EffectFailed | None) -> None:
        """Have what failed tried again by a resume, if the agent fails by that or, without `failure`, of its own."""
        self._over = True
        self._scope.drop_caught(self._entries())
        entries = self._scope.invocation.entries
        kept = [met for met, entry in self._met if any(entry is known for known in entries)]
        own = failure is None or not any(failure is met for met, _ in self._met)
        if kept and (own or any(failure is met for met in kept)):
            self._scope.log.append(FailureCaught(**self._whose))

    def _entries(self) -> list[FailureCaught]:
        return [entry for _, entry in self._met]
