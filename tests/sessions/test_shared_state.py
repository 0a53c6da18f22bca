"""What a session that was cut off writes again for others: its own, and nothing out of an imported log."""

from __future__ import annotations

import pytest

from perdure.journal.entries import (
    Entry,
    EventLogged,
    InvocationResumed,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    SessionCreated,
)
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.sessions.shared_state import unconfirmed


def logged(name: str) -> EventLogged:
    actions = EventActions(state_delta={f"app:{name}": 1})
    return EventLogged(event=Event(id=name, author="clerk", invocation_id="e-1", timestamp=1.0, actions=actions))


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        ([logged("one"), logged("two")], [], ["two"]),
        ([logged("one")], [LogImported(timestamp=2.0), InvocationResumed(invocation_id="e-1")], []),
        (
            [logged("one")],
            [LogImported(timestamp=2.0), InvocationResumed(invocation_id="e-1"), logged("two")],
            ["two"],
        ),
    ],
    ids=["its own", "imported", "its own after an import"],
)
def test_only_what_a_session_logged_itself_is_written_again(
    before: list[Entry], after: list[Entry], written: list[str]
) -> None:
    message = Event(id="m", author=USER, invocation_id="e-1", timestamp=0.5, content=user_content("hello"))
    journal: list[Entry] = [
        SessionCreated(),
        MessageAccepted(event=message, request_id="r"),
        InvocationStarted(invocation_id="e-1", agent="clerk", plan="p", timestamp=0.6),
        *before,
        *after,
    ]
    assert [event.id for event in unconfirmed(journal)] == written
