"""How a conversation is laid out: names in a column, texts broken between words, pieces that make up their event."""

from __future__ import annotations

import pytest
from google.genai import types

from perdure.cli.talk.screen import Screen
from perdure.journal.events import REQUEST_CONFIRMATION, Event, EventActions, ToolConfirmation
from perdure.streams.partials import ATTEMPT


def said(text: str, *, author: str = "clerk", id: str = "1", attempt: int | None = None) -> Event:
    """Return an event of a text: a piece of it, if it is of an attempt."""
    content = types.Content(role="model", parts=[types.Part(text=text)])
    if attempt is None:
        return Event(id=id, author=author, content=content)
    return Event(id=id, author=author, content=content, partial=True, custom_metadata={ATTEMPT: attempt})


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A screen of 40 columns without colours."""
    monkeypatch.setenv("COLUMNS", "40")
    return Screen()


LONG = (
    "Every word of this answer stands whole on one line.\n\n    code is indented\nand 漢字漢字漢字漢字漢字 are wide. "
)
SHOWN = """clerk   Every word of this answer
        stands whole on one line.
        
            code is indented
        and 漢字漢字漢字漢字漢字 are
        wide.
"""  # noqa: W293 -- as it stands on the screen


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(
    screen: Screen, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    for at in range(0, len(LONG), size):
        screen.event(said(LONG[at : at + size], attempt=1))
    screen.event(said(LONG))
    assert capsys.readouterr().out == SHOWN


def test_what_was_not_streamed_is_laid_out_alike(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    screen.event(said(LONG))
    assert capsys.readouterr().out == SHOWN


def test_another_attempt_begins_anew_and_another_agent_has_a_line_of_its_own(
    screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    screen.event(said("Half an ", attempt=1))
    screen.event(said("A whole ", attempt=2))
    screen.event(said("Beside it.", author="other", id="2"))
    screen.event(said("A whole answer."))
    assert capsys.readouterr().out.splitlines() == [
        "clerk   Half an",
        "the model is asked again, and begins anew",
        "clerk   A whole",
        "other   Beside it.",
        "clerk   A whole answer.",
    ]


def test_what_is_asked_for_elsewhere_is_not_told_twice(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    """A question is asked by the conversation; its call, and the response that says so, would say it again."""
    tool = types.FunctionCall(id="c1", name="pay", args={"price": 3})
    call = types.Part(function_call=tool)
    about = {"originalFunctionCall": {"id": "c1", "name": "pay", "args": {"price": 3}}}
    asks = types.Part(function_call=types.FunctionCall(id="q1", name=REQUEST_CONFIRMATION, args=about))
    waits = types.Part(function_response=types.FunctionResponse(id="c1", name="pay", response={"error": "approve"}))
    actions = EventActions(requested_tool_confirmations={"c1": ToolConfirmation()})
    yes = types.Part(
        function_response=types.FunctionResponse(id="q1", name=REQUEST_CONFIRMATION, response={"confirmed": True})
    )
    screen.event(Event(id="1", author="clerk", content=types.Content(parts=[call])))
    screen.event(Event(id="2", author="clerk", content=types.Content(parts=[asks])))
    screen.event(Event(id="3", author="clerk", content=types.Content(parts=[waits]), actions=actions))
    metadata = {"perdure:answer": {"who": "mia\x1b[2J", "why": "cheap"}}
    screen.event(Event(id="4", author="user", content=types.Content(parts=[yes]), custom_metadata=metadata))
    assert capsys.readouterr().out.splitlines() == [
        "clerk   → pay(price=3)",
        'answered by mia\\x1b[2J (cheap): approval of pay {"confirmed": true}'[:38] + "…",
    ]
