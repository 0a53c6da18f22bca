"""What the routes under `/v1` take and return."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, alias_generators

from perdure.api.schemas import Body, Metadata
from perdure.events import Event
from perdure.messages import InvocationStatus, InvocationView, PendingCall, SessionStatus


class _Resource(BaseModel):
    model_config = ConfigDict(alias_generator=alias_generators.to_camel, populate_by_name=True)


class FailureOf(_Resource):
    """Why one branch of an invocation failed."""

    agent: str
    step: str
    """`model`, or the name of the tool or activity."""
    cause: str


class Pending(_Resource):
    """A call that waits for an answer."""

    id: str
    name: str
    args: dict[str, Any]
    agent: str
    user_id: str | None = None
    session_id: str | None = None
    """Whose it is; left out within an invocation."""
    invocation_id: str
    since: float
    """Seconds since the epoch at which the call was made."""
    deadline: float | None = None
    """Seconds since the epoch at which the session answers by itself, or fails."""

    @classmethod
    def of(cls, call: PendingCall, user_id: str | None = None, session_id: str | None = None) -> Pending:
        """Return a call as a resource."""
        return cls(**call.model_dump(exclude={"branch"}), user_id=user_id, session_id=session_id)


class Invocation(_Resource):
    """An invocation: from a message to its end."""

    id: str
    status: InvocationStatus
    agent: str | None = None
    """The agent that started it; none while it is queued."""
    failures: list[FailureOf]
    pending: list[Pending]
    reason: str | None = None
    """Why it was stopped."""
    resumable: bool
    """Whether a resume would take it now."""

    @classmethod
    def of(cls, view: InvocationView) -> Invocation:
        """Return an invocation as a resource."""
        return cls(
            id=view.id,
            status=view.status,
            agent=view.agent,
            failures=[FailureOf(**failure.model_dump()) for failure in view.failures],
            pending=[Pending.of(call) for call in view.pending],
            reason=view.reason,
            resumable=view.resumable,
        )


class InvocationList(_Resource):
    """A session's invocations."""

    status: SessionStatus
    """The session's: running, failed, waiting, stopped or idle, by precedence."""
    invocations: list[Invocation]
    total: int
    """All of them."""


class Taken(_Resource):
    """What was taken: the invocation that it concerns, and the log's length before it."""

    invocation: Invocation
    offset: int
    """Follow the log from here."""


class PendingList(_Resource):
    """Calls that wait for an answer, oldest first."""

    calls: list[Pending]


class EventPage(_Resource):
    """A page of a session's log."""

    events: tuple[Event, ...]
    next: int
    """The offset behind them."""
    total: int
    """Events in the whole log."""


class StopBody(Body):
    """Stops an invocation."""

    reason: str | None = None


class AnswerBody(Body):
    """Answers a call."""

    response: Any
    """A JSON value; anything but an object arrives as `{"result": …}`."""
    metadata: Metadata | None = None
    """Who answered and why; becomes the event's `customMetadata`."""
