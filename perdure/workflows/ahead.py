"""Takes in requests that come by signals, ahead of the updates that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.errors import InvalidMessage
from perdure.sent_ahead import NOT_HERE, RequestsAhead, SentAhead

_R = TypeVar("_R")


class Ahead:
    """What signals brought for updates that are still to come. The next run starts without: a client sends it again."""

    def __init__(self) -> None:
        self._requests: RequestsAhead[RawValue] = RequestsAhead()

    def bring(self, args: Sequence[RawValue]) -> None:
        """Keep what a signal brings.

        Raises:
            InvalidMessage: It does not bring a name and a request.
        """
        if len(args) != 2:
            raise InvalidMessage("a request that is sent ahead comes as its name and itself")
        name: object = workflow.payload_converter().from_payload(args[0].payload)
        if not isinstance(name, str):
            raise InvalidMessage("the name of a request that is sent ahead is a text")
        self._requests.keep(name, args[1], len(args[1].payload.data))

    def read(self, request: _R | SentAhead, kind: type[_R]) -> _R:
        """Return the request that an update stands for.

        Raises:
            ApplicationError: It is not there, to be sent again; or it is not of its kind.
        """
        if not isinstance(request, SentAhead):
            return request
        found = self._requests.find(request.sent_ahead)
        if found is None:
            raise ApplicationError("the request is not here; send it again", type=NOT_HERE, non_retryable=True)
        try:
            return workflow.payload_converter().from_payload(found.payload, kind)
        except (RuntimeError, ValueError) as error:
            # Its text could quote the value.
            why = f"{type(error).__name__}: the request that was sent ahead is no {kind.__name__}"
            raise ApplicationError(why, type=InvalidMessage.__name__, non_retryable=True) from None

    def take(self, request: _R | SentAhead, kind: type[_R]) -> _R:
        """Return the request that an accepted update stands for, and keep it no longer; raises what `read` does."""
        taken = self.read(request, kind)
        if isinstance(request, SentAhead):
            self._requests.take(request.sent_ahead)
        return taken
