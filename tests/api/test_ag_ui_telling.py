"""AG-UI's events of a text that is written piece by piece."""

from __future__ import annotations

import pytest
from google.genai import types

pytest.importorskip("ag_ui.core", reason="ag-ui-protocol is not installed")

from perdure.api.ag_ui.messages import messages_of
from perdure.api.ag_ui.telling import Telling
from perdure.journal.events import Event
from perdure.streams.partials import ATTEMPT


def event(*parts: types.Part, attempt: int = 1, partial: bool = True) -> Event:
    metadata = {ATTEMPT: attempt} if partial else None
    content = types.Content(role="model", parts=list(parts))
    return Event(id="e1", author="desk", content=content, partial=partial or None, custom_metadata=metadata)


def text(words: str) -> types.Part:
    return types.Part(text=words)


def thought(words: str) -> types.Part:
    return types.Part(text=words, thought=True)


def told(*events: Event) -> tuple[list[str], bool]:
    telling = Telling()
    found = [one for event in events for one in telling.told(event)]
    return [f"{one.type.value} {getattr(one, 'delta', '')}".strip() for one in found], telling.amiss


def test_pieces_are_one_message() -> None:
    found, amiss = told(event(text("Go")), event(text("od ")), event(text("Good day."), partial=False))
    assert found == [
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT Go",
        "TEXT_MESSAGE_CONTENT od",
        "TEXT_MESSAGE_CONTENT day.",
        "TEXT_MESSAGE_END",
    ]
    assert not amiss


def test_thoughts_are_reasoning() -> None:
    found, _ = told(event(thought("Hm.")), event(thought("Hm."), text("Yes."), partial=False))
    assert found == [
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT Hm.",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT Yes.",
        "TEXT_MESSAGE_END",
    ]


@pytest.mark.parametrize(
    "events",
    [
        (event(text("Bad")), event(text("Good."), attempt=2), event(text("Good."), partial=False)),
        (event(text("Bad")), event(text("Good."), partial=False)),
        (event(text("Bad")), event(partial=False)),
    ],
    ids=["another attempt", "another text", "no text"],
)
def test_what_was_never_said_is_made_right_by_a_snapshot(events: tuple[Event, ...]) -> None:
    found, amiss = told(*events)
    assert (found[-1], amiss) == ("TEXT_MESSAGE_END", True)


def test_a_message_in_the_snapshot_has_the_id_that_was_streamed() -> None:
    whole = event(thought("Hm."), text("Yes."), partial=False)
    [reasoning, message] = messages_of([whole])
    streamed = [one for one in Telling().told(whole) if hasattr(one, "message_id")]
    assert {reasoning.id, message.id} == {getattr(one, "message_id", "") for one in streamed}
