"""The doors that stand before sessions look into all that a session returns: no route has to think of it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from perdure.api.base.error_texts import without_error_texts
from perdure.api.base.secret_fields import without_secrets
from perdure.journal.events import Event, EventActions
from perdure.messages.session import SessionView
from perdure.sessions.kept_events import EventBatch
from perdure.sessions.session import Session
from perdure.views.explanation import SessionExplanation

_PLAIN = (str, int, float, bool, type(None), dict)
_LOOKED_INTO = (tuple, list, frozenset, AsyncGenerator, Callable, UnionType)

METHODS = [name for name, _ in inspect.getmembers(Session, inspect.isfunction) if not name.startswith("_")]


def _types(hint: Any) -> list[Any]:
    """Return the types that a value of this one may be made of, as far as its annotation tells."""
    args = [arg for arg in get_args(hint) if arg is not ...]
    origin = get_origin(hint)
    own = [] if origin is None else [origin] if isinstance(origin, type) else []
    return [hint] if not args else own + [found for arg in args for found in _types(arg)]


@pytest.mark.parametrize("name", METHODS)
def test_what_a_session_returns_is_looked_into(name: str) -> None:
    """Models, and what holds them: a dataclass would be passed on with all that is in it."""
    for found in _types(get_type_hints(getattr(Session, name))["return"]):
        if isinstance(found, type) and found not in (*_PLAIN, *_LOOKED_INTO):
            assert issubclass(found, (BaseModel, Session)), f"{name} returns {found}"


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
