"""What the pages are made of: shown values and times, the tree of agents, and the files in the package."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from hatchling.builders.wheel import WheelBuilder

from perdure.api.auth.identity import ANYONE
from perdure.api.base.guard import is_own
from perdure.api.pages.formats import Argument, ago, arguments, clock, iso, shown_json, timeline
from perdure.api.pages.rendering import page
from perdure.api.pages.tree import Agent, agent_tree
from perdure.journal.entries import Entry, EventLogged, Failure
from perdure.journal.events import Event, EventActions
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionKey
from perdure.views.explanation import InvocationExplanation, explain_session
from perdure.views.forms.answers import answer_form
from tests.journal.sample_entries import PLAN, answer, called, fold, message, responded, said, settled, started

ROOT = Path(__file__).parents[3]


def test_the_wheel_has_the_templates_and_the_files(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "perdure" / "api" / "pages"
    wanted = {
        str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")
    }
    assert len(wanted) >= 8
    assert wanted <= names


def test_times_are_told_and_odd_ones_break_nothing() -> None:
    assert clock(0.0) == "1970-01-01 00:00:00 UTC"
    assert (clock(None), clock(1e300), clock(float("nan"))) == ("-", "?", "?")
    assert (iso(0.0), iso(None), iso(1e300)) == ("1970-01-01T00:00:00+00:00", "", "")
    told = [ago(1000.0, 1000.0 + seconds) for seconds in (0, 59, 61, 7200, 200_000, -90_000, -70)]
    assert told == ["now", "59 s ago", "1 min ago", "2 h ago", "2 d ago", "in 1 d", "in 1 min"]


def test_values_show_what_would_steer_their_display() -> None:
    assert shown_json({"a": "\u202eb\u200b"}) == '{"a": "\\u202eb\\u200b"}'
    shown = arguments({"to": "a\u2066b", "n": 1, "list": [1], "empty": {}})
    assert shown == [Argument("to", "a\\u2066b"), Argument("n", "1"), Argument("list", "[1]"), Argument("empty", "{}")]
    assert shown_json("x" * 10_000).endswith("… (10,002 characters in all)")


def test_nested_values_of_many_lines_are_folded() -> None:
    lines = [{"item": f"chair {number}", "price": number} for number in range(5)]
    [order, note] = arguments({"order": {"lines": lines}, "note": "x" * 200})
    assert (order.folded, note.folded) == ("1 value", "")
    assert order.text.count("chair") == 5
    assert arguments({"lines": lines})[0].folded == "5 items"


@pytest.mark.parametrize(("deadline", "is_over"), [(1.0, True), (4e9, False), (1e300, False)])
def test_a_call_tells_when_it_is_overdue(deadline: float, is_over: bool) -> None:
    call = PendingCall(id="c", name="ask", agent="desk", invocation_id="e-1", since=0.5, deadline=deadline)
    key = SessionKey("shop", "ann", "s")
    given: dict[str, Any] = {"identity": ANYONE, "signed_in": False, "said": None, "entries": [], "poll": 5}
    html = bytes(page("call.html", key=key, form=answer_form(call, None), **given).body).decode()
    assert ("deadline is-over" in html) is is_over


def test_every_kind_of_part_has_a_place_in_the_timeline() -> None:
    parts = [
        types.Part(text="Hm.", thought=True),
        types.Part(inline_data=types.Blob(data=b"1234", mime_type="image/png")),
        types.Part(file_data=types.FileData(file_uri="gs://b/f", mime_type="text/plain")),
        types.Part(executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON)),
        types.Part(code_execution_result=types.CodeExecutionResult(output="2", outcome=types.Outcome.OUTCOME_OK)),
        types.Part(function_call=types.FunctionCall(name="f", args={"a": 1}, id="c-1")),
        types.Part(function_response=types.FunctionResponse(name="f", response={"b": 2}, id="c-1")),
    ]
    event = Event(
        author="a",
        content=types.Content(role="model", parts=parts),
        actions=EventActions(transfer_to_agent="b", escalate=True, agent_state={}, end_of_agent=True),
        error_code="SAFETY",
        error_message="no",
        custom_metadata={"expired": True},
    )
    [entry] = timeline([event])
    kinds = ["thought", "file", "file", "code", "code", "call", "response", "transfer", "escalation", "error"]
    assert [piece.kind for piece in entry.pieces] == kinds
    assert entry.pieces[1].text == "4 bytes"
    assert entry.marks == ("checkpoint", "ends")
    assert entry.by_deadline


def states(agent: Agent) -> dict[str, str]:
    found = {agent.name: agent.state}
    for below in agent.below:
        found |= states(below)
    return found


def tree(*entries: Entry, closed: str | None = None) -> Agent:
    told = explain_session(fold(*entries), SessionKey("shop", "ann", "s"), closed=closed)
    invocation: InvocationExplanation = told.invocations[-1]
    authors = {entry.event.author for entry in entries if isinstance(entry, EventLogged)}
    return agent_tree(PLAN, invocation, authors)


BEGUN: tuple[Entry, ...] = (message(1), started(1), called(1, "c1"), responded(1, "c1"))
FAILED = settled(1, "failed", failures=(Failure(agent="root", step="ask", cause="no"),))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((message(1),), {"root": "not entered", "helper": "not entered"}),
        ((message(1), started(1)), {"root": "at work", "helper": "not entered"}),
        ((*BEGUN, settled(1, "waiting")), {"root": "waits", "helper": "not entered"}),
        ((*BEGUN, settled(1, "stopped")), {"root": "waits", "helper": "not entered"}),
        ((*BEGUN, answer(1, "c1"), settled(1, "stopped")), {"root": "stopped", "helper": "not entered"}),
        ((*BEGUN, FAILED), {"root": "failed", "helper": "not entered"}),
        ((message(1), started(1), said(1, "root"), settled(1, "finished")), {"root": "ended", "helper": "not entered"}),
    ],
    ids=["queued", "running", "waiting", "stopped", "stopped and answered", "failed", "finished"],
)
def test_each_agent_of_the_tree_has_its_state(entries: tuple[Entry, ...], expected: dict[str, str]) -> None:
    assert states(tree(*entries)) == expected


def test_what_an_agent_does_next_is_said_of_a_resume_unless_it_is_done_now() -> None:
    assert tree(message(1), started(1)).words.startswith("calls scripted")
    assert tree(*BEGUN, answer(1, "c1"), settled(1, "stopped")).words.startswith("on a resume: calls scripted")
    assert tree(*BEGUN, FAILED).words == "failed in ask"
    assert tree(*BEGUN, settled(1, "stopped")).calls == (("ask", "awaits an answer"),)


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:8000", "localhost:8000", True),
        ("https://in.example", "in.example", True),
        ("https://in.example", "in.example:443", True),
        ("http://in.example", "in.example:8000", False),
        ("http://other.example", "in.example", False),
        ("null", "localhost:8000", False),
        ("", "", False),
    ],
)
def test_a_page_is_the_servers_own_by_host_and_port(origin: str, host: str, own: bool) -> None:
    assert is_own(origin, host) is own
