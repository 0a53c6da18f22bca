"""Hides texts of errors from end users, who get type and reference: a text may quote anything.

It stands before the sessions of the runner that a route gets, so that no route has to think of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast

from google.genai import types
from pydantic import BaseModel

from perdure.errors import InvocationFailed
from perdure.journal.entries import Entry, Failure
from perdure.journal.events import REQUEST_RECONCILE, Event, asked_about
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.messages.effects import Effect
from perdure.plan.nodes import Plan
from perdure.rules.failures import public_text, reference
from perdure.sessions.listing import ListedSession
from perdure.sessions.session import Session
from perdure.sessions.sessions import Door
from perdure.views.explanation import RaisedStep

__all__ = ["DoorWithoutErrorTexts", "without_error_texts"]

_T = TypeVar("_T")


def without_error_texts(value: _T, invocation_id: str = "") -> _T:
    """Return a value of Perdure's without the texts of errors; itself, if it holds none.

    Args:
        value: A view, an event, an entry, or a collection of them.
        invocation_id: The invocation that it is of, where it does not say so itself.
    """
    return cast("_T", _without_error_texts(value, invocation_id))


def _without_error_texts(value: Any, invocation: str) -> Any:
    match value:
        case Event():
            return _event(value)
        case Failure():
            known = _known(invocation, value.agent, value.step)
            return value.model_copy(update={"cause": public_text(value.cause, known)})
        case PendingCall(name=name) if name == REQUEST_RECONCILE:
            return value.model_copy(update={"args": _question(value.args, value.invocation_id, value.agent)})
        case Effect(cause=str() as cause):
            known = _known(value.invocation_id, value.agent, value.tool)
            return value.model_copy(update={"cause": public_text(cause, known)})
        case RaisedStep():
            # A stack trace quotes, too, and only an operator has a use for it.
            return value.model_copy(update={"trace": ""})
        case Plan() | types.Content():
            return value
        case BaseModel():
            return _model(value, invocation)
        case tuple() | list():
            items = cast("tuple[Any, ...] | list[Any]", value)
            told = [_without_error_texts(item, invocation) for item in items]
            if all(map(_is_same, told, items)):
                return items
            return tuple(told) if isinstance(items, tuple) else told
        case _:
            return value


def _known(*names: str) -> str | None:
    """Return a reference; `None` where a name is missing, since it would be that of no line in a log."""
    return reference(*names) if all(names) else None


def _is_same(one: object, other: object) -> bool:
    return one is other


def _model(value: BaseModel, invocation: str) -> BaseModel:
    fields = type(value).model_fields
    if "invocation_id" in fields:
        invocation = str(getattr(value, "invocation_id", "") or invocation)
    elif "failures" in fields and "id" in fields:
        invocation = str(getattr(value, "id", ""))
    changed: dict[str, Any] = {}
    for name in fields:
        before = getattr(value, name)
        if isinstance(before, BaseModel | tuple | list):
            after = _without_error_texts(before, invocation)
            if after is not before:
                changed[name] = after
        elif name == "cause" and isinstance(before, str):
            names = [str(getattr(value, part, "") or "") for part in ("agent", "tool")]
            changed[name] = public_text(before, _known(invocation, *names))
    return value.model_copy(update=changed) if changed else value


def _event(event: Event) -> Event:
    update: dict[str, Any] = {}
    if event.error_message:
        known = _known(event.invocation_id, event.author, "model")
        update["error_message"] = f"(reference {known})" if known else "(withheld)"
    if any(call.name == REQUEST_RECONCILE for call in event.get_function_calls()):
        assert event.content is not None
        parts = [_part(part, event) for part in event.content.parts or []]
        update["content"] = event.content.model_copy(update={"parts": parts})
    return event.model_copy(update=update) if update else event


def _part(part: types.Part, event: Event) -> types.Part:
    call = part.function_call
    if call is None or call.name != REQUEST_RECONCILE:
        return part
    args = _question(call.args or {}, event.invocation_id, event.author)
    return part.model_copy(update={"function_call": call.model_copy(update={"args": args})})


def _question(args: Mapping[str, Any], invocation_id: str, agent: str) -> dict[str, Any]:
    tool = str(asked_about(args).get("name", ""))
    told = public_text(str(args.get("reason", "")), _known(invocation_id, agent, tool))
    return {**args, "reason": told} if "reason" in args else dict(args)


class DoorWithoutErrorTexts:
    """A door behind which no answer, and no error, holds a text of an error of the operator's code."""

    def __init__(self, behind: Door) -> None:
        """Stand before a door, which may be limited to a user's sessions."""
        self._behind = behind

    def whose(self, user_id: str | None) -> str | None:
        """Return whose sessions are meant."""
        return self._behind.whose(user_id)

    def session(self, user_id: str, session_id: str) -> Session:
        """Return a session that tells no such text, whatever it is asked."""
        return cast("Session", _SessionWithoutErrorTexts(self._behind.session(user_id, session_id)))

    async def list(self, user_id: str | None, status: Collection[SessionStatus]) -> list[ListedSession]:
        """Return sessions."""
        return await _answer(self._behind.list(user_id, status))

    async def pending(self, user_id: str | None, session_id: str | None) -> list[tuple[ListedSession, PendingCall]]:
        """Return open calls."""
        return await _answer(self._behind.pending(user_id, session_id))


class _SessionWithoutErrorTexts:
    """Has all that a `Session` has, and takes texts of errors out of what each method returns or yields."""

    def __init__(self, behind: Session) -> None:
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        if not callable(found):
            return without_error_texts(found)

        @functools.wraps(found)
        def call(*args: Any, **named: Any) -> Any:
            result = found(*args, **named)
            if inspect.isasyncgen(result):
                return _answers(cast("AsyncGenerator[Any, None]", result))
            return _answer(result) if inspect.isawaitable(result) else without_error_texts(result)

        return call

    def export(self, *, journal: bool, shown_as: Callable[[Entry], Entry] | None) -> AsyncGenerator[str, None]:
        """Yield lines that are text already, so texts of errors are taken out of what stands in them before."""
        return self._behind.export(
            journal=journal, shown_as=lambda entry: without_error_texts(shown_as(entry) if shown_as else entry)
        )


async def _answer(found: Awaitable[_T]) -> _T:
    try:
        return without_error_texts(await found)
    except InvocationFailed as error:
        raise _told(error) from None


async def _answers(found: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    try:
        async with aclosing(found):
            async for value in found:
                yield without_error_texts(value)
    except InvocationFailed as error:
        raise _told(error) from None


def _told(error: InvocationFailed) -> InvocationFailed:
    cause = public_text(error.cause, _known(error.invocation_id, error.agent, error.step))
    return InvocationFailed(
        error.invocation_id, agent=error.agent, step=error.step, cause=cause, resumable=error.resumable
    )
