"""Bodies of the requests and answers of the routes under `/v1`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, alias_generators, model_validator

from perdure.api.adk.schemas import Body, Message, Metadata
from perdure.journal.events import Event
from perdure.journal.open_calls import InvocationStatus, PendingCall, SessionStatus
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationResult, InvocationView
from perdure.plan.nodes import MaxLlmCalls
from perdure.views.pages import awaited_tool


class Resource(BaseModel):
    """Base of what the routes return: names in camelCase."""

    model_config = ConfigDict(alias_generator=alias_generators.to_camel, populate_by_name=True)


class FailureOf(Resource):
    """The failure of one branch of an invocation."""

    agent: str
    step: str
    """`model`, or the name of the tool or activity."""
    cause: str


class Pending(Resource):
    """A call that waits for an answer."""

    id: str
    name: str
    tool: str
    """The tool that it is about: of an approval or a question, the one that a model called."""
    args: dict[str, Any]
    agent: str
    app_name: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    """Whose it is; not set within an invocation."""
    invocation_id: str
    since: float
    """Seconds since the epoch at which the call was made."""
    deadline: float | None = None
    """Seconds since the epoch at which the session answers by itself, or fails."""

    @classmethod
    def of(cls, call: PendingCall, session: SessionKey | None = None) -> Pending:
        """Return a call as a resource.

        Args:
            call: The call.
            session: Its session, if that is to be named.
        """
        told = call.model_dump(exclude={"branch", "about", "message", "plan"})
        if session is not None:
            told |= {"app_name": session.app, **session.arguments}
        return cls(**told, tool=awaited_tool(call))


class Invocation(Resource):
    """An invocation: from a message to its end."""

    id: str
    status: InvocationStatus
    agent: str | None = None
    """The agent that started it; none while it is queued."""
    failures: list[FailureOf]
    pending: list[Pending]
    reason: str | None = None
    """Why it was stopped, or what else it waits for than answers."""
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


class InvocationList(Resource):
    """A session's invocations."""

    status: SessionStatus
    """The session's: running, failed, waiting, stopped or idle, by precedence."""
    invocations: list[Invocation]
    total: int
    """All of them."""


class Taken(Resource):
    """An accepted request: the invocation that it concerns, and the log's length before it."""

    invocation: Invocation
    offset: int
    """Follow the log from here."""

    @classmethod
    def of(cls, result: InvocationResult) -> Taken:
        """Return an update's result as a resource."""
        return cls(invocation=Invocation.of(result.invocation), offset=result.offset)


class PendingList(Resource):
    """A session's calls that wait for an answer, oldest first."""

    calls: list[Pending]


class PendingPage(Resource):
    """Calls that wait for an answer."""

    calls: list[Pending]
    """Oldest first within the page; sessions come in the order of Temporal's listing, newest first."""
    next: str | None = None
    """The `cursor` of the next page; not set behind the last one. A page may be empty and not the last one."""
    unanswered: int = 0
    """Sessions that could not be read in time, so that their calls are missing."""
    sessions: int | None = None
    """On the first page: in how many open sessions such calls wait, whatever their age. By Temporal's listing, which
    may be a moment late."""


class EventPage(Resource):
    """A page of a session's log."""

    events: tuple[Event, ...]
    next: int
    """The offset behind them."""
    total: int
    """Events in the whole log."""
    kept: tuple[Event, ...] = ()
    """Behind the last of them: events of steps whose activity goes on, which the log has when it ends."""


class StopBody(Body):
    """Stops an invocation."""

    reason: str | None = None


class AnswerBody(Body):
    """Answers a call."""

    response: Any = None
    """A JSON value; anything but an object arrives as `{"result": …}`."""
    approve: bool | None = None
    """Instead of a response, where a tool call waits to be approved: the decision."""
    reason: str | None = None
    """Why it is approved or rejected; the same as `why`."""
    payload: Any = None
    """What the tool gets beside the decision."""
    why: str | None = None
    """Why this is the answer; it is kept with the event, for people."""
    metadata: Metadata | None = None
    """Becomes the event's `customMetadata`, beside who answered, when and why."""

    @model_validator(mode="after")
    def _check(self) -> AnswerBody:
        given = self.model_fields_set
        if ("response" in given) is (self.approve is not None):
            raise ValueError("give a response, or the decision (approve: true or false)")
        if self.approve is None and given & {"reason", "payload"}:
            raise ValueError("reason and payload go with a decision (approve)")
        if self.why is not None and self.reason is not None:
            raise ValueError("why and reason are the same; give one")
        return self


class StartBody(Body):
    """Starts an invocation."""

    message: str | Message
    """A text, or a content; always the user's."""
    state_delta: dict[str, Any] | None = None
    """Written with the message."""
    metadata: Metadata | None = None
    """Becomes the event's `customMetadata`."""
    max_llm_calls: MaxLlmCalls | None = None
    """Model calls of the invocation; of who is no operator it may only lower what the app allows."""


class ResumeBody(Body):
    """Resumes an invocation."""

    fresh: bool = False
    """End the session's workflow first and bring it back from its log; for operators."""
    max_llm_calls: MaxLlmCalls | None = None
    """Model calls from here on; of who is no operator it may only lower what the app allows."""
