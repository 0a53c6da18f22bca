"""Takes in requests that come by signals, ahead of the updates that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.errors import InvalidMessage
from perdure.messages.large_requests import NOT_HERE, RequestsAhead, SentAhead
from perdure.workflows.request_parsing import parsed

_R = TypeVar("_R", bound=BaseModel)

_MAX_NAME_BYTES = 200


class Ahead:
    """Reads requests, in the updates that bring them or from the signals that came before.

    The next run starts without what signals brought: a client sends it again. Each request is counted before it is
    parsed, since whatever can send to a session can send more than a workflow task has time for.
    """

    def __init__(self) -> None:
        self._requests: RequestsAhead[RawValue] = RequestsAhead()

    def bring(self, args: Sequence[RawValue]) -> None:
        """Keep a request that a signal brings.

        Raises:
            InvalidMessage: It does not bring a name and a request.
        """
        if len(args) != 2 or len(args[0].payload.data) > _MAX_NAME_BYTES:
            raise InvalidMessage("a request that is sent ahead comes as its name and itself")
        name: object = workflow.payload_converter().from_payload(args[0].payload)
        if not isinstance(name, str):
            raise InvalidMessage("the name of a request that is sent ahead is a text")
        self._requests.keep(name, args[1], len(args[1].payload.data))

    def read(self, sent: RawValue, kind: type[_R]) -> _R:
        """Return the request that an update brings or names.

        Raises:
            ApplicationError: It is not there, to be sent again; or it is not of its kind, or too much.
        """
        return self._read(sent, kind)[0]

    def take(self, sent: RawValue, kind: type[_R]) -> tuple[_R, bool]:
        """Return the request of an accepted update, and whether it was sent ahead; raises what `read` does."""
        request, name = self._read(sent, kind)
        if name is not None:
            self._requests.take(name)
        return request, name is not None

    def _read(self, sent: RawValue, kind: type[_R]) -> tuple[_R, str | None]:
        request = parsed(sent, kind, SentAhead)
        if not isinstance(request, SentAhead):
            return request, None
        found = self._requests.find(request.sent_ahead)
        if found is None:
            raise ApplicationError("the request is not here; send it again", type=NOT_HERE, non_retryable=True)
        return parsed(found, kind), request.sent_ahead
