"""Logs in every form: which are taken, what is said of the others, and how a damaged export is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from google.genai import types

from perdure.errors import InvalidTrajectory
from perdure.journal.events import Event
from perdure.journal.fold import fold_journal
from perdure.messages.keys import SessionKey
from perdure.trajectories.bare_log import to_journal
from perdure.trajectories.checks import MAX_IMPORT_LINES
from perdure.trajectories.export_file import dump_lines, make_header
from perdure.trajectories.given_logs import GivenLog, LogSource, read_given
from perdure.trajectories.wholeness import ADVICE
from tests.adk_shop import FOLDER, SESSIONS, VERSIONS
from tests.conformance.journals import record
from tests.conformance.logs import all_scenarios

SCENARIO = next(scenario for scenario in all_scenarios() if scenario.name == "lro_pending")


def fresh_ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"x{next(numbers)}"


def session(version: str = "2.13.0", name: str = "finished") -> dict[str, Any]:
    return SESSIONS[version][name]["session"]


def _events() -> list[Event]:
    return [Event.model_validate_json(json.dumps(event)) for event in session()["events"]]


FORMS: dict[str, Callable[[], LogSource]] = {
    "a session as text": lambda: json.dumps(session()),
    "a session as text over many lines": lambda: json.dumps(session(), indent=2),
    "a session as bytes behind a byte order mark": lambda: b"\xef\xbb\xbf" + json.dumps(session(), indent=1).encode(),
    "a session as the lines of a file": lambda: json.dumps(session(), indent=1).splitlines(keepends=True),
    "a session as an object": session,
    "events one a line": lambda: "\n".join(map(json.dumps, session()["events"])),
    "events one a line, with blank lines and Windows line ends": lambda: "\r\n\r\n".join(
        map(json.dumps, session()["events"])
    ),
    "events as a JSON list": lambda: json.dumps(session()["events"]),
    "events as a JSON list over many lines": lambda: json.dumps(session()["events"], indent=1),
    "events as objects": lambda: session()["events"],
    "events": _events,
    "events from a generator": lambda: (event for event in _events()),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_events(form: Callable[[], LogSource]) -> None:
    assert read_given(form()).events == tuple(_events())


def test_what_adk_run_saves_is_taken() -> None:
    log = read_given((FOLDER / "saved.session.json").read_bytes())
    assert (log.app, log.user_id, log.session_id) == ("shop", "test_user", "abccc312-bc16-43c0-a8fb-125764339a05")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SESSIONS["1.39.1"])
def test_a_session_ends_with_the_state_that_adk_tells_and_starts_without_later_values(version: str, name: str) -> None:
    """ADK tells the last state only: taken for the first, a look at an earlier event would find later values."""
    given = session(version, name)
    log = read_given(given)
    assert fold_journal(to_journal(log, fresh=fresh_ids())).state == given["state"]
    written = {key for event in log.events for key in event.actions.state_delta}
    assert not written & log.state.keys()
    assert bool(log.notes) is bool(written)


RUN_JSONL = {"author": "a", "session_id": "s", "node_path": "a@1", "content": {"parts": [{"text": "x"}]}}
SQLITE = b"SQLite format 3\x00" + bytes(100)
OTHERS: dict[str, tuple[LogSource, str]] = {
    "a database": (SQLITE, "a SQLite database"),
    "an eval set": (json.dumps({"eval_set_id": "e", "eval_cases": []}, indent=1), "an eval set"),
    "an eval set in camel case": (json.dumps({"evalSetId": "e", "evalCases": []}), "an eval set"),
    "what adk run --jsonl prints": (json.dumps(RUN_JSONL), "`adk run --jsonl` prints"),
    "a log of AG2": ('{"type": "ModelRequest", "data": {}}\n{"type": "ModelResponse", "data": {}}', "AG2"),
    "a list of sessions": (json.dumps([session(), session()]), "a list of sessions"),
    "some text": ("dear diary,\ntoday", "line 1 is no JSON"),
    "JSON that is no log": ('{"a": 1}', "no log: it has no events"),
    "a number": ("7", "no log"),
    "nothing": ("", "this is empty"),
    "blank lines": ("\n \n", "this is empty"),
    "gzip": (b"\x1f\x8b\x08\x00", "a gzip file"),
    "zip": (b"PK\x03\x04..", "a zip file"),
    "UTF-16": ("{}".encode("utf-16"), "UTF-16"),
    "random bytes": (bytes(range(128, 256)), "line 1 is no JSON"),
    "a session without names": (json.dumps({"events": []}), "no session of ADK: id"),
    "a session whose name stands there twice": (
        json.dumps({**session(), "app_name": "other"}),
        "'app_name' stands there twice",
    ),
    "a session whose events are none": (json.dumps({**session(), "events": [1]}), "no session of ADK"),
    "a cut session": (json.dumps(session(), indent=1)[:-300], "no JSON"),
    "two sessions in a file": (f"{json.dumps(session())}\n{json.dumps(session())}", "line 2 stands behind the end"),
    "an object of Python": ([object()], "object is no log"),
}


@pytest.mark.parametrize(("source", "reason"), OTHERS.values(), ids=OTHERS)
def test_what_is_not_known_is_refused_with_the_forms_that_are(source: LogSource, reason: str) -> None:
    with pytest.raises(InvalidTrajectory) as caught:
        read_given(source)
    assert reason in str(caught.value)
    known = "Perdure takes an export (`perdure export`); a session of ADK as one JSON object"
    assert known in str(caught.value) or "stands behind" in str(caught.value)


# Damaged exports.


def export(*, journal: bool) -> list[str]:
    entries = record(SCENARIO).entries
    header = make_header(SessionKey("shop", "u", "s"), fold_journal(entries), journal=journal, versions={})
    return list(dump_lines(header, entries))


DAMAGES: dict[str, Callable[[list[str], int], list[str]]] = {
    "missing": lambda lines, at: [*lines[:at], *lines[at + 1 :]],
    "twice": lambda lines, at: [*lines[: at + 1], *lines[at:]],
    "changed": lambda lines, at: [*lines[:at], lines[at].replace('"id":', '"id" :', 1), *lines[at + 1 :]],
    "cut off behind it": lambda lines, at: lines[: at + 1],
    "in the place of the one before": lambda lines, at: [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]],
}


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_cut_or_changed_export_is_refused_with_its_line(damage: str, *, journal: bool) -> None:
    lines = export(journal=journal)
    events = read_given(lines).shown_events()
    refused = 0
    # The header stays: without one there is no export to be damaged.
    for at in range(2, len(lines) - 1):
        damaged = DAMAGES[damage](lines, at)
        if damaged == lines:
            continue
        with pytest.raises(InvalidTrajectory, match=r"^line \d+") as caught:
            read_given(damaged)
        refused += "--damaged" in str(caught.value)
        left = read_given(damaged, damaged=True)
        assert left.entries is None
        # Whoever takes it all the same is told what is wrong with it.
        assert str(caught.value).removesuffix(ADVICE) in left.notes
        assert [event for event in left.events if event not in events] == []
    assert refused


@pytest.mark.parametrize("journal", [True, False])
def test_every_byte_counts(*, journal: bool) -> None:
    text = "\n".join(export(journal=journal))
    read_given(text)
    step = max(1, len(text) // 400)
    for at in range(0, len(text), step):
        if text[at] != "\n":
            changed = text[:at] + ("7" if text[at] != "7" else "8") + text[at + 1 :]
            with pytest.raises(InvalidTrajectory):
                pytest.fail(f"byte {at} may change: {read_given(changed)}")


def test_line_ends_of_another_system_change_nothing() -> None:
    lines = export(journal=True)
    assert read_given("\r\n".join(lines) + "\r\n").entries == read_given(lines).entries


def test_a_damaged_export_says_what_was_left_out() -> None:
    lines = export(journal=True)
    cut = [*lines[:-3], lines[-3][:-20]]
    log = read_given(cut, damaged=True)
    notes = " ".join(log.notes)
    assert "lines were left out, from here on: line" in notes or "Perdure's own entries were left out" in notes


# Bounds.


def _many(number: int) -> bytes:
    line = json.dumps({"author": "user", "content": {"role": "user", "parts": [{"text": "hi"}]}})
    return "\n".join([line] * number).encode()


def test_a_log_of_too_many_events_is_refused_before_any_is_read() -> None:
    limit = f"the {MAX_IMPORT_LINES:,} events and entries of one import"
    text = _many(2 * MAX_IMPORT_LINES)
    began = time.process_time()
    for source in (text, text.splitlines(), b"[" + b",".join(text.splitlines()) + b"]"):
        with pytest.raises(InvalidTrajectory, match=limit):
            read_given(source)
    # Seconds, where all of them would take a minute.
    assert time.process_time() - began < 20


def test_names_are_told_where_the_log_has_them() -> None:
    log = read_given(export(journal=False))
    assert isinstance(log, GivenLog)
    assert (log.app, log.user_id, log.session_id) == ("shop", "u", "s")
    assert read_given(_events()).app is None


def test_bytes_come_back_as_they_were() -> None:
    events = read_given(session(name="rich")).events
    blobs = [part.inline_data for event in events for part in event.parts if part.inline_data]
    assert types.Blob(mime_type="image/png", data=bytes(range(256))) in blobs
