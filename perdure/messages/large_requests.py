"""Requests too large for an update: a signal brings them, and the update that follows names them.

All updates that a session has in flight, ten at the most, travel in the answer to one workflow task, the refused ones
too, and Temporal ends a run whose answer has more than 4 MB. A signal is written by itself.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from perdure.messages.session import RESPOND, SEND_MESSAGE
from perdure.messages.shared_state import CHANGE_STATE

_P = TypeVar("_P")

SEND_AHEAD = "send_ahead"
"""The signal; its arguments are the name and the request."""

MAY_BE_AHEAD = frozenset({SEND_MESSAGE, RESPOND, CHANGE_STATE})
"""The updates that take requests so."""

NOT_HERE = "NotSentAhead"
"""Type of the failure of an update whose request is not there: another run of the session got it."""

MAX_UPDATE_BYTES = 25_000
"""What a message, answer or change of state may have in an update. Ten of them leave room for what activities are
given, and for results that the server held back."""

_MAX_KEPT_BYTES = 20_000_000
"""Of requests that wait for their updates: ten of the largest. One that was refused stays, too."""


class SentAhead(BaseModel):
    """A reference in an update to the request that a signal brought."""

    # Else a request that happens to have such a key would be taken for one.
    model_config = ConfigDict(frozen=True, extra="forbid")

    sent_ahead: str
    """The request's name: fresh for each time that it is sent."""


class RequestsAhead(Generic[_P]):
    """Requests by name, until an accepted update takes them; what came first goes first where they are too many."""

    # Every session in a worker's cache has one.
    __slots__ = ("_bytes", "_requests")

    def __init__(self) -> None:
        self._requests: dict[str, tuple[_P, int]] = {}
        self._bytes = 0

    def keep(self, name: str, request: _P, size: int) -> None:
        """Keep a request of so many bytes, unless there is one of this name."""
        if name in self._requests:
            return
        self._requests[name] = request, size
        self._bytes += size
        while self._bytes > _MAX_KEPT_BYTES:
            self.take(next(iter(self._requests)))

    def find(self, name: str) -> _P | None:
        """Return a request, and keep it."""
        return self._requests[name][0] if name in self._requests else None

    def take(self, name: str) -> _P | None:
        """Return a request, and keep it no longer."""
        request, size = self._requests.pop(name, (None, 0))
        self._bytes -= size
        return request
