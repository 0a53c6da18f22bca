"""Recognizes requests that come again under their request id: they count once, and get the first one's answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perdure.errors import RequestIdTaken
from perdure.journal.entries import (
    AnswerAccepted,
    AnswerLogged,
    Entry,
    EventLogged,
    EventRewound,
    InvocationStarted,
    MessageAccepted,
    ResumeAccepted,
    StateChanged,
    Within,
)
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Projection, split_state_delta
from perdure.messages.session import AnswerInput, InvocationInput, MessageInput
from perdure.plan.contents import types

_Accepted = MessageAccepted | AnswerAccepted | ResumeAccepted


class Repeated(NamedTuple):
    """The answer to an earlier request of the same id."""

    invocation_id: str
    offset: int
    """Events in the log when it was accepted."""


def find_repeated(projection: Projection, request: MessageInput | AnswerInput | InvocationInput) -> Repeated | None:
    """Return the answer to an earlier request of this request id; `None` if there was none.

    Metadata and `temp:` keys may differ: they say when it was sent, or last no longer than the turn.

    Raises:
        RequestIdTaken: The earlier one was another kind of request, or said something else.
    """
    request_id = request.request_id
    if not request_id or request_id not in projection.requests:
        return None
    earlier: list[_Accepted] = []
    offset = shown = 0
    for entry in projection.entries:
        if isinstance(entry, _Accepted) and entry.request_id == request_id:
            offset = offset if earlier else shown
            earlier.append(entry)
        shown += _is_shown(entry)
    if not _says_the_same(earlier, request):
        raise RequestIdTaken(
            f"the request id {request_id!r} is that of another request to this session; take a fresh one for each, and"
            " the same one to repeat it"
        )
    return Repeated(projection.requests[request_id], offset)


def accept_resume(projection: Projection, request: InvocationInput) -> None:
    """Accept a resume of what has failed or is stopped, unless it is a repetition: as a session did, by its history."""
    invocation = projection.invocations.get(request.invocation_id)
    if invocation is None or invocation.status not in ("failed", "stopped"):
        return
    if not request.request_id or request.request_id not in projection.requests:
        apply_entry(projection, ResumeAccepted(invocation_id=invocation.id, request_id=request.request_id))


def _asks(entry: Entry) -> bool:
    """Return whether an entry of a scope is shown outside: it waits for an answer."""
    if isinstance(entry, Within):
        return _asks(entry.entry)
    return isinstance(entry, EventLogged) and bool(entry.event.long_running_tool_ids)


def _is_shown(entry: Entry) -> bool:
    """Return whether an entry puts an event into the log that readers see."""
    if isinstance(entry, Within):
        return _asks(entry.entry)
    if isinstance(entry, EventLogged):
        return not entry.hidden
    return isinstance(entry, InvocationStarted | AnswerLogged | StateChanged | EventRewound)


def _says_the_same(earlier: Iterable[_Accepted], request: MessageInput | AnswerInput | InvocationInput) -> bool:
    if isinstance(request, InvocationInput):
        return all(
            isinstance(entry, ResumeAccepted) and entry.invocation_id == request.invocation_id for entry in earlier
        )
    parts: list[types.Part] = []
    state: dict[str, object] = {}
    for entry in earlier:
        if isinstance(entry, ResumeAccepted):
            return False
        parts += entry.event.parts
        state |= entry.event.actions.state_delta
    delta = split_state_delta(request.state_delta)[0] if isinstance(request, MessageInput) else {}
    return state == delta and _words(parts) == _words(request.content.parts or [])


def _words(parts: Iterable[types.Part]) -> list[str]:
    """Return what parts say, in an order of its own: an answer is stored by branch, and with the tools' names."""
    return sorted(_plain(part).model_dump_json(exclude_none=True) for part in parts)


def _plain(part: types.Part) -> types.Part:
    response = part.function_response
    if response is None:
        return part
    response = response.model_copy(update={"name": None, "response": response.response or {}})
    return part.model_copy(update={"function_response": response})
