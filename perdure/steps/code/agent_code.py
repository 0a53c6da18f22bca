"""`Code`: a custom agent's code, whoever's class it is of, with what it works with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from perdure.journal.entries import FailureCaught
from perdure.journal.events import Event
from perdure.steps.base import StepOutput
from perdure.steps.code.played_log import PlayedLog


class Code(ABC):
    """An agent's code, with what it works with."""

    log: PlayedLog
    """Shows it the session."""
    is_known: Callable[[Any], Awaitable[bool]]
    """Whether the log has an event already that it logs."""
    is_given: Callable[[str], bool]
    """Whether an event, by its id, is one of a sub-agent's that it was given."""

    @abstractmethod
    def events(self) -> AsyncGenerator[object, None]:
        """Run it; yields what it yields."""

    @abstractmethod
    def checked(self, event: object) -> Any:
        """Return what it yielded as the log takes it.

        Raises:
            Exception: It is no event that it may yield.
        """

    @abstractmethod
    async def part(self, event: Any) -> Event:
        """Return a part of an event (`partial`) that it yielded, as those who follow are shown it."""

    @abstractmethod
    async def keep(self, event: Any, id: str) -> None:
        """Log an event of its own, which it sees from here on.

        Args:
            event: The event.
            id: What its id in the log is to be; empty if that is nothing to anybody.
        """

    def hides(self, event: Any) -> bool:
        """Return whether nobody is shown an event of its own, not even the code itself."""
        return False

    @property
    @abstractmethod
    def held(self) -> int:
        """How many events it has logged that no step has returned yet."""

    @property
    @abstractmethod
    def holds(self) -> int:
        """Bytes of what it has logged and no step has returned yet."""

    @abstractmethod
    async def output(self) -> StepOutput:
        """Return what it has logged since the last step."""

    @abstractmethod
    async def left(self, error: Exception) -> StepOutput:
        """Return what it leaves in the log as it fails of its own."""

    @abstractmethod
    def as_given(self, event: Event) -> Any:
        """Return an event of a sub-agent's as it is given it."""

    @abstractmethod
    def failed(self, failure: FailureCaught) -> Exception:
        """Return what it is given of a sub-agent, or a function, that failed."""

    @abstractmethod
    def told(self, error: Exception) -> str:
        """Return what an error of its own says."""
