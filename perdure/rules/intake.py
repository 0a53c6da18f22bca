"""Checks the messages, answers, resumes and stops of a session: what it takes and what it refuses. Pure.

A check raises a `RequestRefused` before anything is written, or returns what is to be accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.errors import (
    CallAnswered,
    CallNotFound,
    InvalidMessage,
    InvocationFinished,
    InvocationNotFound,
    InvocationRunning,
    MixedInvocations,
    NotResumable,
    QueueFull,
    RequestRefused,
    quoted,
)
from perdure.journal.credential_questions import parse_credential, unwrapped
from perdure.journal.entries import AnswerAccepted, MessageAccepted
from perdure.journal.events import (
    QUESTIONS,
    REQUEST_CONFIRMATION,
    REQUEST_CREDENTIAL,
    REQUEST_RECONCILE,
    USER,
    Event,
    EventActions,
    notice_event,
)
from perdure.journal.open_calls import PendingCall
from perdure.journal.projection import Call, Invocation, Projection, response_in, split_state_delta
from perdure.journal.questions import parse_confirmation, parse_verdict
from perdure.journal.tasks import OpenTask
from perdure.messages.keys import SessionKey
from perdure.messages.session import FUNCTION_RESPONSE, AnswerInput, InvocationInput, MessageInput
from perdure.messages.shared_state import StateChangeInput
from perdure.plan.contents import types
from perdure.rules.bounds import MAX_QUEUED, MAX_STATE_KEYS, check_json, check_keys
from perdure.rules.large_results import MAX_RESULT_BYTES
from perdure.rules.tool_responses import wrap_result

_SAID_BY_USERS = frozenset(
    {"text", "inline_data", "file_data", "function_response", "media_resolution", "media_processing"}
)
"""Fields of a part that a user's message may have, beside those that describe its data (`…_metadata`)."""

TOOL_FAILED = "perdure_tool_failed"
"""Key of the metadata of the session's answer to a long-running call whose tool failed."""

MAX_TOLD_SIGNALS = 100
"""Refused signals of which a run tells by events; somebody may send them without end."""

_EXPIRED = "expired"
"""Key of the metadata of the session's answer to a call at its deadline."""


def check_message(message: MessageInput) -> None:
    """Check a message that would start an invocation.

    Raises:
        InvalidMessage: It is empty, or holds function responses or what only a model may say.
    """
    parts = [part for part in message.content.parts or [] if part.model_dump(exclude_none=True) != {"text": ""}]
    if not parts:
        raise InvalidMessage("the message is empty; send a text, or use respond to answer a call")
    check_parts(message.content)
    if any(part.function_response for part in parts):
        raise InvalidMessage("the message holds function responses; send it with respond")


def check_parts(content: types.Content) -> None:
    """Check that a user's content holds what a user may say: texts, data and function responses.

    All else is a model's own, and would be taken for its word by the next model.

    Raises:
        InvalidMessage: It holds something else.
    """
    for number, part in enumerate(content.parts or [], 1):
        if part.function_call:
            raise InvalidMessage("a user's message may not hold function calls: only a model may call a tool")
        others = [
            name
            for name in sorted(part.model_fields_set - _SAID_BY_USERS)
            if getattr(part, name) not in (None, False) and not name.endswith("_metadata")
        ]
        if others:
            raise InvalidMessage(
                f"part {number} of the message holds {', '.join(others)}, which only a model may say; a user's"
                " message has texts, data and function responses"
            )


def check_ids(key: SessionKey) -> None:
    """Check the ids that a session is to have: paths and file names are made of them.

    Raises:
        InvalidMessage: One is empty, `.` or `..`, or begins as names do that are kept for the framework's own.
    """
    for what, name in (("user", key.user), ("session", key.session)):
        if not name:
            raise InvalidMessage("a session needs a user id and a session id that are not empty")
        if name in (".", "..") or name.startswith("__"):
            raise InvalidMessage(
                f"{quoted(name)} is no {what} id: '.', '..' and what begins with two underscores are reserved; take"
                " another"
            )


def check_bytes(size: int, what: str) -> None:
    """Check that the log takes what a client sent.

    Raises:
        InvalidMessage: It is too large.
    """
    if size > MAX_RESULT_BYTES:
        raise InvalidMessage(
            f"the {what} has {size / 1e6:.2f} MB, and the log takes {MAX_RESULT_BYTES / 1e6:.2f} MB at the most;"
            " store the data elsewhere and send a reference to it"
        )


def check_sent(data: bytes, what: str = "request") -> None:
    """Check the JSON of what a session is sent, before it is parsed.

    Raises:
        InvalidMessage: It is too large, has too many values, levels, parts or keys, or numbers that JSON has not.
    """
    check_bytes(len(data), what)
    check_json(data)


def accepted_message(message: MessageInput, event: Event, task: OpenTask | None) -> MessageAccepted | AnswerAccepted:
    """Return the entry that accepts a message: one that begins an invocation, or goes on with the open task's.

    Args:
        message: The message.
        event: Its event.
        task: The task whose agent it is for, if one is open.
    """
    event = event.model_copy(update={"custom_metadata": message.metadata})
    if task is not None:
        event = event.model_copy(update={"isolation_scope": task.scope})
        return AnswerAccepted(event=event, request_id=message.request_id, streaming=message.streaming)
    return MessageAccepted(
        event=event, request_id=message.request_id, max_llm_calls=message.max_llm_calls, streaming=message.streaming
    )


def check_queue(projection: Projection, message: MessageInput) -> None:
    """Check that a session has room for another message, and for the keys that come with it.

    Raises:
        QueueFull: Too many messages wait for their turn.
        InvalidMessage: The state would have too many keys.
    """
    queued = sum(turn.kind == "message" for turn in projection.turns)
    if queued >= MAX_QUEUED:
        raise QueueFull(
            f"{queued} messages of the session wait for their turn, and {MAX_QUEUED} are the most; send it again when"
            " some are done"
        )
    check_state(projection, message.state_delta)


def check_state(projection: Projection, delta: Mapping[str, Any]) -> None:
    """Check that a session's state has room for what a user writes.

    Raises:
        InvalidMessage: The state would have too many keys.
    """
    if len(projection.state) + len(delta) > MAX_STATE_KEYS:
        check_keys(len(projection.state.keys() | delta.keys()))


def check_answer(projection: Projection, answer: AnswerInput) -> list[Call]:
    """Check an answer as a whole; returns the calls that it answers.

    Raises:
        InvalidMessage: It holds function calls, no responses, two for one call, or a malformed one.
        CallNotFound: A response names a call that the session never made.
        CallAnswered: A call has its answer already, or its invocation takes none any more.
        MixedInvocations: The calls belong to several invocations, or not to the one that was named.
    """
    parts = answer.content.parts or []
    if any(part.function_call for part in parts):
        raise InvalidMessage("a user's message may not hold function calls: only a model may call a tool")
    responses = [part.function_response for part in parts if part.function_response]
    if not responses:
        raise InvalidMessage("the answer holds no function response")
    if len({response.id for response in responses}) < len(responses):
        raise InvalidMessage("the answer holds two responses to one call")
    calls = [_check_response(projection, response) for response in responses]
    invocations = {call.pending.invocation_id for call in calls}
    if answer.invocation_id is not None:
        invocations.add(answer.invocation_id)
    if len(invocations) > 1:
        raise MixedInvocations(
            f"the answers belong to the invocations {', '.join(sorted(invocations))};"
            " answer each in a message of its own"
        )
    return calls


def _check_response(projection: Projection, response: types.FunctionResponse) -> Call:
    call = projection.calls.get(response.id or "")
    if call is None:
        raise CallNotFound(f"the session made no long-running call {quoted(response.id)}; see its pending calls")
    if call.answer != "open" and not _takes_more(projection, call, response.response or {}):
        raise CallAnswered(
            f"call {quoted(response.id)} of {quoted(call.pending.name)} is answered already; the first answer wins"
        )
    if not projection.takes_answers(call.pending.invocation_id):
        raise CallAnswered(
            f"call {quoted(response.id)} of {quoted(call.pending.name)} takes no answer any more: invocation"
            f" {quoted(call.pending.invocation_id)} has finished"
        )
    if response.name and response.name != call.pending.name:
        raise InvalidMessage(
            f"call {quoted(response.id)} is one of {quoted(call.pending.name)}, not of {quoted(response.name)}"
        )
    if call.pending.name == REQUEST_CONFIRMATION:
        parse_confirmation(response.response or {})
    if call.pending.name == REQUEST_CREDENTIAL:
        parse_credential(unwrapped(response.id, response.response or {}))
    if call.pending.name == REQUEST_RECONCILE:
        parse_verdict(response.response or {})
    return call


def _takes_more(projection: Projection, call: Call, response: Mapping[str, Any]) -> bool:
    """Return whether an answered call takes another answer: progress is told so to google.adk's agents.

    Where nothing pauses, each answer begins a turn. The same answer again is a request that was sent twice, and behind
    an answer of the session's own nobody else's counts.
    """
    invocation, last = projection.invocations.get(call.pending.invocation_id), projection.newest_answer(call.pending.id)
    plan = projection.plan_of(invocation) if invocation is not None else None
    if invocation is None or last is None or plan is None or plan.adk is None or call.pending.name in QUESTIONS:
        return False
    if (last.custom_metadata or {}).keys() & {_EXPIRED, TOOL_FAILED} or projection.is_resumable(invocation):
        return False
    return response_in(last, call.pending.id) != response


def named(content: types.Content, calls: list[Call]) -> types.Content:
    """Return an answer's content with the tool's name in each response."""
    names = {call.pending.id: call.pending.name for call in calls}
    parts: list[types.Part] = []
    for part in content.parts or []:
        response = part.function_response
        if response is not None:
            given = unwrapped(response.id, response.response or {})
            response = response.model_copy(update={"name": names[response.id or ""], "response": given})
            part = part.model_copy(update={"function_response": response})
        parts.append(part)
    return content.model_copy(update={"role": "user", "parts": parts})


def find_invocation(projection: Projection, request: InvocationInput) -> Invocation:
    """Return the invocation that a request names.

    Raises:
        InvocationNotFound: The session has none of this id.
    """
    invocation = projection.invocations.get(request.invocation_id)
    if invocation is None:
        raise InvocationNotFound(f"the session has no invocation {quoted(request.invocation_id)}")
    return invocation


def check_resume(projection: Projection, request: InvocationInput) -> Invocation:
    """Check a resume; returns the invocation. A finished or waiting one is taken, and nothing happens.

    Raises:
        InvocationNotFound: The session has none of this id.
        NotResumable: The app is not resumable.
        InvocationRunning: It is at work, or about to be.
    """
    invocation = find_invocation(projection, request)
    if not projection.is_resumable(invocation):
        raise NotResumable(
            f"invocation {quoted(invocation.id)} cannot be resumed: the app is not resumable;"
            " send a new message, or set ResumabilityConfig(is_resumable=True)"
        )
    if invocation.status in ("running", "queued"):
        raise InvocationRunning(f"invocation {quoted(invocation.id)} is {invocation.status} already; follow it instead")
    return invocation


def check_stop(projection: Projection, request: InvocationInput) -> Invocation:
    """Check a stop; returns the invocation.

    Raises:
        InvocationNotFound: The session has none of this id.
        InvocationFinished: It has finished.
    """
    invocation = find_invocation(projection, request)
    if invocation.status == "finished":
        raise InvocationFinished(f"invocation {quoted(invocation.id)} has finished; there is nothing to stop")
    return invocation


def by_branch(content: types.Content, calls: list[Call]) -> list[tuple[str | None, types.Content]]:
    """Split an answer into one content for each branch, since an agent sees only the answers on its own.

    What is no response goes with the first.
    """
    branches = {call.pending.id: call.pending.branch for call in calls}
    first = calls[0].pending.branch
    grouped: dict[str | None, list[types.Part]] = {first: []}
    for part in content.parts or []:
        response = part.function_response
        branch = branches[response.id or ""] if response is not None else first
        grouped.setdefault(branch, []).append(part)
    return [(branch, content.model_copy(update={"parts": parts})) for branch, parts in grouped.items()]


def decision(pending: Iterable[PendingCall], call_id: str, *, approve: bool, payload: Any = None) -> dict[str, Any]:
    """Return the response that approves or rejects a tool call.

    Args:
        pending: The session's open calls. One that is not among them is for the session to refuse.
        call_id: The call that waits for the decision.
        approve: The decision.
        payload: What the tool gets beside it.

    Raises:
        InvalidMessage: The call waits for something else, for which this would be a value like any other.
    """
    name = next((call.name for call in pending if call.id == call_id), REQUEST_CONFIRMATION)
    if name != REQUEST_CONFIRMATION:
        raise InvalidMessage(f"call {quoted(call_id)} is one of {quoted(name)}, not an approval; give a response")
    made: dict[str, Any] = {"confirmed": approve}
    return made if payload is None else {**made, "payload": payload}


def parse_signal(value: Any) -> AnswerInput:
    """Read the value of a `function_response` signal: `{"id": …, "response": …}`, or a list of these.

    Raises:
        InvalidMessage: It has another shape.
    """
    items: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType] -- JSON
    parts: list[types.Part] = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("id"), str) or "response" not in item:  # pyright: ignore[reportUnknownMemberType] -- JSON
            raise InvalidMessage('the signal takes {"id": CALL_ID, "response": {…}}, or a list of these')
        parts.append(response_part(item["id"], item["response"], item.get("name")))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- JSON
    return AnswerInput(content=types.Content(role="user", parts=parts))


def check_signal(name: str, arguments: int) -> None:
    """Check that a signal is the one that brings answers.

    Raises:
        InvalidMessage: It is another one, or has not one argument.
    """
    if name != FUNCTION_RESPONSE or arguments != 1:
        raise InvalidMessage(f"the session takes the signal {FUNCTION_RESPONSE} with one argument")


def response_part(call_id: str, response: Any, name: str | None = None) -> types.Part:
    """Return the part that answers a call; anything but an object is wrapped."""
    function_response = types.FunctionResponse(id=call_id, name=name, response=wrap_result(response))
    return types.Part(function_response=function_response)


def state_event(change: StateChangeInput, time: float) -> Event:
    """Return the event that a change of the session's state logs at a time; nobody keeps `temp:` keys."""
    delta, _ = split_state_delta(change.state_delta)
    return Event(
        id=change.request_id,
        timestamp=time,
        author=USER,
        invocation_id=f"p-{change.request_id}",
        actions=EventActions(state_delta=delta),
    )


def refused_signal(name: str, error: Exception, entries: int, time: float) -> Event:
    """Return the event that says why a signal was not taken.

    Args:
        name: The signal.
        error: What its check raised; all but a refusal says that it could not be read.
        entries: Length of the journal, of which the event's id is made.
        time: When it came.
    """
    why = str(error) if isinstance(error, RequestRefused) else "its argument cannot be read as JSON"
    message = f"the signal {name[:100]!r} was not taken: {why[:1000]}"
    return notice_event(f"signal-{entries}", "SIGNAL_REFUSED", message, time)


def is_state_event(event: Event) -> bool:
    """Return whether an event is a user's change of the session's state: it says nothing."""
    return event.author == USER and event.content is None


def expired_answer(call: Call) -> AnswerInput | None:
    """Return how the session answers at a call's deadline; `None` if that fails the invocation."""
    pending, expiry = call.pending, call.expiry
    if expiry is None or expiry.how == "fail":
        return None
    content = types.Content(role="user", parts=[response_part(pending.id, expiry.answer)])
    return AnswerInput(content=content, metadata={_EXPIRED: True, "deadline": pending.deadline})


def failed_answer(call: types.FunctionCall, told: Any) -> AnswerInput:
    """Return how the session answers a long-running call whose tool failed: nobody was asked."""
    content = types.Content(role="user", parts=[response_part(call.id or "", told, call.name)])
    return AnswerInput(content=content, metadata={TOOL_FAILED: True})
