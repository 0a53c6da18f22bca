"""Models that were given the same fields share the note of which, and nothing else changes."""

from __future__ import annotations

import pytest
from google.genai import types

from perdure.journal import interning as field_sets
from perdure.journal.entries import EventLogged
from perdure.journal.events import Event, EventActions
from perdure.journal.fold import fold_journal
from perdure.journal.interning import share_field_sets


def logged(text: str, **extra: object) -> EventLogged:
    event = {
        "id": text,
        "author": "clerk",
        "invocationId": "e-1",
        "actions": {},
        "content": {"parts": [{"text": text}]},
    }
    return EventLogged.model_validate({"event": event | extra})


def test_a_session_shares_them() -> None:
    first, second = fold_journal([logged("a"), logged("b")]).events
    assert first.model_fields_set is second.model_fields_set
    assert first.actions.model_fields_set is second.actions.model_fields_set
    assert first.model_fields_set == {"id", "author", "invocation_id", "actions", "content"}


def test_what_is_written_stays() -> None:
    entry, plain = logged("a"), logged("a")
    share_field_sets(entry)
    assert entry == plain
    assert entry.model_dump_json(exclude_unset=True) == plain.model_dump_json(exclude_unset=True)


def test_a_copy_has_its_own() -> None:
    entry, other = logged("a"), logged("b")
    share_field_sets(entry)
    share_field_sets(other)
    for copy in (
        entry.event.model_copy(update={"branch": "b"}),
        entry.event.model_copy(update={"branch": "b"}, deep=True),
    ):
        assert "branch" in copy.model_fields_set
    assert "branch" not in entry.event.model_fields_set | other.event.model_fields_set


def test_what_can_be_changed_shares_none() -> None:
    first, second = logged("a"), logged("b")
    share_field_sets(first)
    share_field_sets(second)
    assert first.event.content is not None
    assert second.event.content is not None
    first.event.content.role = "user"
    assert "role" not in second.event.content.model_fields_set


def test_names_from_outside_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[frozenset[str], set[str]] = {}
    monkeypatch.setattr(field_sets, "_KNOWN", known)
    share_field_sets(logged("a", unheardOf=1))
    assert not [names for names in known if "unheardOf" in names]
    monkeypatch.setattr(field_sets, "_MAX_KEPT", len(known))
    share_field_sets(Event(content=types.Content(), actions=EventActions(escalate=True)))
    assert len(known) == field_sets._MAX_KEPT  # pyright: ignore[reportPrivateUsage]
