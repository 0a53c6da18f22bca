"""The doors that stand before sessions look into all that a session returns: no route has to think of it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from perdure.api.base.error_texts import without_error_texts
from perdure.api.base.secret_fields import without_secrets
from perdure.journal.events import Event, EventActions
from perdure.messages.session import SessionView
from perdure.sessions.event_batches import EventBatch
from perdure.sessions.session import Session
from perdure.sessions.sessions import Sessions
from perdure.views.explanation import SessionExplanation

_PLAIN = (str, int, float, bool, type(None), dict)
_LOOKED_INTO = (tuple, list, frozenset, AsyncGenerator, Callable, UnionType)

METHODS = [
    (kind, name)
    for kind in (Session, Sessions)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
]


def _types(hint: Any) -> list[Any]:
    """Return the types that a value of this one may be made of, as far as its annotation tells."""
    args = [arg for arg in get_args(hint) if arg is not ...]
    origin = get_origin(hint)
    own = [origin] if isinstance(origin, type) else []
    return [hint] if not args else own + [found for arg in args for found in _types(arg)]


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_what_a_session_returns_is_looked_into(kind: type, name: str) -> None:
    """Models, and what holds them: a dataclass would be passed on with all that is in it."""
    left, seen = _types(get_type_hints(getattr(kind, name))["return"]), set[Any]()
    while left:
        found = left.pop()
        if not isinstance(found, type) or found in {*_PLAIN, *_LOOKED_INTO, *seen}:
            continue
        seen.add(found)
        assert not is_dataclass(found), f"{name} returns {found}"
        assert not hasattr(cast("object", found), "_fields"), f"{name} returns a named tuple"
        if issubclass(found, BaseModel):
            left += [one for field in found.model_fields.values() for one in _types(field.annotation)]


def _careless() -> Event:
    credential = {"authType": "apiKey", "apiKey": "hunter2"}
    return Event(
        id="1",
        author="clerk",
        invocation_id="e-1",
        error_message="hunter2",
        actions=EventActions(
            requested_auth_configs={"c": {"authScheme": {"type": "apiKey"}, "rawAuthCredential": credential}}
        ),
    )


@pytest.mark.parametrize(
    "told",
    [
        EventBatch(events=(_careless(),)),
        EventBatch(kept=(_careless(),)),
        SessionView(app_name="a", user_id="u", id="s", state={}, status="idle", kept=(_careless(),)),
        SessionExplanation(
            app_name="a", user_id="u", id="s", status="idle", invocation_count=0, open_count=0, kept=(_careless(),)
        ),
    ],
    ids=["logged", "kept", "session", "explanation"],
)
def test_events_are_told_without_secrets_and_texts_of_errors_wherever_they_are(told: BaseModel) -> None:
    assert "hunter2" in repr(told)
    assert "hunter2" not in repr(without_secrets(without_error_texts(told)))
