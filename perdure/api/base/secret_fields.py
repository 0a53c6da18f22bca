"""Keeps the secrets of credentials, which tools ask users for, out of all that a route gets to show.

It stands before the sessions of the runner that a route gets, so that no route has to think of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from perdure.credentials.sealing import Vault
from perdure.journal.entries import Entry
from perdure.journal.events import REQUEST_CREDENTIAL, Event
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.journal.secrets import holds_credentials, opened, redacted, references
from perdure.plan.nodes import Plan
from perdure.sessions.listing import ListedSession
from perdure.sessions.session import Session
from perdure.sessions.sessions import Door

__all__ = ["DoorWithoutSecrets", "without_secrets"]

_T = TypeVar("_T")
_Change = Callable[[Any], Any]


def without_secrets(value: _T) -> _T:
    """Return a value of Perdure's without the secrets of credentials; itself, if it holds none.

    Args:
        value: A view, an event, an entry, or a collection of them.
    """
    return cast("_T", _changed(value, redacted))


def _changed(value: Any, change: _Change) -> Any:
    """Return a value with all JSON in it changed that may hold credentials."""
    match value:
        case Event():
            return _event(value, change)
        case PendingCall():
            # It never holds any.
            return value
        case Plan():
            return value
        case BaseModel():
            changed = {
                name: told
                for name in type(value).model_fields
                if (told := _changed(before := getattr(value, name), change)) is not before
            }
            return value.model_copy(update=changed) if changed else value
        case dict():
            fields = cast("dict[str, Any]", value)
            return change(fields) if holds_credentials(fields) else fields
        case tuple() | list():
            items = cast("tuple[Any, ...] | list[Any]", value)
            told = [_changed(item, change) for item in items]
            if all(one is other for one, other in zip(told, items, strict=True)):
                return items
            return tuple(told) if isinstance(items, tuple) else told
        case _:
            return value


def _event(event: Event, change: _Change) -> Event:
    actions = event.actions
    names = {part.name for part in (*event.get_function_calls(), *event.get_function_responses())}
    if not (REQUEST_CREDENTIAL in names or actions.requested_auth_configs or holds_credentials(actions.state_delta)):
        return event
    return Event.model_validate(change(event.model_dump(mode="json", by_alias=True, exclude_none=True)))


class DoorWithoutSecrets:
    """A door behind which nothing holds the secrets of credentials; or, for development, as ADK 1 shows them."""

    def __init__(self, behind: Door, vault: Vault | None = None, *, shows: bool = False) -> None:
        """Stand before a door.

        Args:
            behind: The door, which may be limited to a user's sessions.
            vault: Where the secrets are.
            shows: Show them, as ADK 1 does.
        """
        self._behind = behind
        self._vault = vault
        self._shows = shows

    def whose(self, user_id: str | None) -> str | None:
        """Return whose sessions are meant."""
        return self._behind.whose(user_id)

    def session(self, user_id: str, session_id: str) -> Session:
        """Return a session that tells no secret, whatever it is asked."""
        behind = self._behind.session(user_id, session_id)
        return cast("Session", _SessionWithoutSecrets(behind, self._vault, shows=self._shows))

    async def list(self, user_id: str | None, status: Collection[SessionStatus]) -> list[ListedSession]:
        """Return sessions."""
        return await self._behind.list(user_id, status)

    async def pending(self, user_id: str | None, session_id: str | None) -> list[tuple[ListedSession, PendingCall]]:
        """Return open calls."""
        return await self._behind.pending(user_id, session_id)


class _SessionWithoutSecrets:
    """Has all that a `Session` has, and looks over what each method returns or yields."""

    def __init__(self, behind: Session, vault: Vault | None, *, shows: bool) -> None:
        self._behind = behind
        self._vault = vault
        self._shows = shows

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: Any, **named: Any) -> Any:
            result = found(*args, **named)
            if inspect.isasyncgen(result):
                return self._each(cast("AsyncGenerator[Any, None]", result))
            return self._awaited(result) if inspect.isawaitable(result) else without_secrets(result)

        return call

    def export(self, *, journal: bool, shown_as: Callable[[Entry], Entry] | None) -> AsyncGenerator[str, None]:
        """Yield lines that are text already, so what stands in them is looked over before."""
        return self._behind.export(
            journal=journal, shown_as=lambda entry: without_secrets(shown_as(entry) if shown_as else entry)
        )

    async def _awaited(self, found: Any) -> Any:
        return await self._told(await found)

    async def _each(self, found: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        async with aclosing(found):
            async for value in found:
                yield await self._told(value)

    async def _told(self, value: Any) -> Any:
        if not self._shows:
            return without_secrets(value)
        names: set[str] = set()

        def note(found: Any) -> Any:
            names.update(references(found))
            return found

        _changed(value, note)
        if not names or self._vault is None:
            return value
        secrets = await self._vault.secrets(self._behind.key, names)
        return _changed(value, lambda found: opened(found, secrets))
