"""Reads a log from elsewhere in any of its forms, once: what is checked is what is used. Pure.

An import, `resume_from` and the HTTP API take logs by way of this module, so that they agree on what a log is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias, cast

from pydantic import BaseModel, Field, ValidationError

from perdure.errors import InvalidTrajectory
from perdure.journal.entries import MAX_PAYLOAD_BYTES, Entry
from perdure.journal.events import AdkModel, Event
from perdure.journal.fold import fold_journal
from perdure.journal.projection import shared_part, stored_part
from perdure.trajectories.checks import MAX_IMPORT_BYTES, MAX_IMPORT_LINES
from perdure.trajectories.export_file import (
    MARK,
    ExportHeader,
    check_lines,
    is_last_line,
    problems,
    read_event,
    read_header,
    read_journal,
)
from perdure.trajectories.strict_json import parse_json
from perdure.trajectories.wholeness import ADVICE

LogSource: TypeAlias = "GivenLog | str | bytes | BaseModel | Mapping[str, Any] | Iterable[Any]"
"""Text, its lines, a JSON object, events as `perdure.Event`, as ADK's own objects or as JSON objects."""

MAX_LINE_BYTES = MAX_PAYLOAD_BYTES
"""What one line may have; no event and no entry of a session has more."""

FORMS = (
    "Perdure takes an export (`perdure export`); a session of ADK as one JSON object, which is what"
    " GET /apps/APP/users/USER/sessions/SESSION answers and `adk run --save_session` writes; or ADK's events, one a"
    " line or as a JSON list"
)
"""What a refusal names."""

_BINARIES = (
    (
        b"SQLite format 3\0",
        "a SQLite database, of which Perdure reads none; take its sessions as JSON, from ADK's own server",
    ),
    (b"\x1f\x8b", "a gzip file; unpack it first"),
    (b"PK\x03\x04", "a zip file; unpack it first"),
    (b"\xff\xfe", "text in UTF-16; write it in UTF-8"),
    (b"\xfe\xff", "text in UTF-16; write it in UTF-8"),
)
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class GivenLog:
    """A log that was read."""

    events: tuple[Event, ...]
    """The event log; empty where `entries` has it."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """The state that it starts from."""
    shared: dict[str, Any] | None = None
    """The `user:` and `app:` keys at its end, where the events do not give them."""
    entries: tuple[Entry, ...] | None = None
    """The whole journal, where the file has Perdure's own entries."""
    app: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    plan_digest: str | None = None
    """Digest of the newest plan at its origin."""
    notes: tuple[str, ...] = ()
    """What was left out, or is not known."""

    def shown_events(self) -> Sequence[Event]:
        """Return the event log."""
        return self.events if self.entries is None else fold_journal(self.entries).events


class _AdkSession(AdkModel):
    """A session in ADK's JSON. ADK: `sessions/session.py`."""

    id: str = Field(min_length=1)
    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    events: list[dict[str, Any]]


def read_given(source: LogSource, *, damaged: bool = False) -> GivenLog:
    """Read a log.

    Args:
        source: The log.
        damaged: It is an export that was cut or changed: read the events that are left.

    Raises:
        InvalidTrajectory: It is none that Perdure knows, or malformed; the message says where.
    """
    if isinstance(source, GivenLog):
        return source
    if isinstance(source, str | bytes):
        return _read_text(_bounded([source]), damaged=damaged)
    if isinstance(source, BaseModel):
        return _read_value(parse_json(_dumped(source), "the session"))
    if isinstance(source, Mapping):
        return _read_value(parse_json(_dumped(dict(cast(Mapping[str, Any], source))), "the session"))
    return _read_items(iter(source), damaged=damaged)


def _read_items(items: Iterator[Any], *, damaged: bool) -> GivenLog:
    first = next(items, None)
    if first is None:
        return GivenLog(events=())
    if isinstance(first, str | bytes):
        return _read_text(_bounded(chain([first], items)), damaged=damaged)
    events: list[Event] = []
    for number, item in enumerate(chain([first], items), start=1):
        _check_count(number, "event")
        where = f"event {number}"
        events.append(item if isinstance(item, Event) else read_event(parse_json(_dumped(item), where), where))
    return GivenLog(events=tuple(events))


def _dumped(value: Any) -> bytes:
    if isinstance(value, BaseModel):
        return value.model_dump_json(by_alias=True, exclude_none=True).encode()
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTrajectory(f"{type(value).__name__} is no log: {error}. {FORMS}") from error


def _bounded(pieces: Iterable[Any]) -> bytes:
    """Return lines, with or without line ends, or a whole text, as one."""
    found = bytearray()
    for number, piece in enumerate(pieces, start=1):
        if not isinstance(piece, str | bytes):
            raise InvalidTrajectory(f"line {number} is no text, but of type {type(piece).__name__}. {FORMS}")
        if number > 1 and not found.endswith(b"\n"):
            found += b"\n"
        try:
            found += piece.encode() if isinstance(piece, str) else piece
        except UnicodeEncodeError as error:
            raise InvalidTrajectory(f"line {number} holds half a character: {error}") from error
        if len(found) > MAX_IMPORT_BYTES:
            raise InvalidTrajectory(
                f"line {number}: the log has more than the {MAX_IMPORT_BYTES / 1e6:.0f} MB of one import"
            )
    return bytes(found)


def _read_text(text: bytes, *, damaged: bool) -> GivenLog:
    for start, what in _BINARIES:
        if text.startswith(start):
            raise InvalidTrajectory(f"this is {what}. {FORMS}")
    text = text.removeprefix(_BOM)
    # All are counted before any is read.
    lines = iter(list(_lines(text)))
    number, first = next(lines, (1, b""))
    if not first:
        raise InvalidTrajectory(f"this is empty. {FORMS}")
    try:
        value = parse_json(first, f"line {number}")
    except InvalidTrajectory as error:
        return _read_value(_document(text, first, error))
    if not _stands_in_lines(value):
        log = _read_value(value)
        if (more := next(lines, None)) is not None:
            raise InvalidTrajectory(f"line {more[0]} stands behind the end of the session; give each a file of its own")
        return log
    if len(first) > MAX_LINE_BYTES:
        raise _too_long(number)
    if MARK in value:
        return _read_export(value, (number, first), lines, damaged=damaged)
    return GivenLog(events=tuple(_listed(chain([(number, value)], _parsed(lines)), "line")))


def _document(text: bytes, first: bytes, error: InvalidTrajectory) -> Any:
    """Return the value of a text of which the first line is no whole value."""
    try:
        return parse_json(text, "the text")
    except InvalidTrajectory as whole:
        # What is one document over several lines, and malformed, names the place in it.
        reason = whole if first in (b"{", b"[") else error
        raise InvalidTrajectory(f"{reason}. {FORMS}") from error


def _stands_in_lines(value: Any) -> bool:
    return isinstance(value, dict) and (MARK in value or ("author" in value and "events" not in value))


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    count = 0
    for number, line in enumerate(text.split(b"\n"), start=1):
        if stripped := line.strip():
            count += 1
            _check_count(count, "line")
            yield number, stripped


def _check_count(number: int, what: str) -> None:
    if number > MAX_IMPORT_LINES:
        raise InvalidTrajectory(
            f"{what} {number}: the log has more than the {MAX_IMPORT_LINES:,} events and entries of one import"
        )


def _too_long(number: int) -> InvalidTrajectory:
    return InvalidTrajectory(f"line {number} has more than the {MAX_LINE_BYTES / 1e6:.1f} MB that a line may have")


def _parsed(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Any]]:
    for number, line in lines:
        if len(line) > MAX_LINE_BYTES:
            raise _too_long(number)
        yield number, parse_json(line, f"line {number}")


def _read_export(value: Any, first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]], *, damaged: bool) -> GivenLog:
    number, line = first
    header = read_header(value, f"line {number}")
    lines = list(rest)
    last = _last_line(lines)
    if last is not None:
        lines.pop()
    try:
        _check_whole(header, (number, line), lines, last)
    except InvalidTrajectory as error:
        if not damaged:
            raise InvalidTrajectory(f"{error}{ADVICE}") from None
        return _read_damaged(header, lines, str(error))
    if damaged:
        return _read_damaged(header, lines)
    parsed = _parsed(lines)
    entries = read_journal(parsed) if header.journal else None
    events = () if header.journal else tuple(read_event(one, f"line {number}") for number, one in parsed)
    return _of_header(header, events, entries)


def _check_whole(header: ExportHeader, first: tuple[int, bytes], lines: list[tuple[int, bytes]], last: Any) -> None:
    texts: list[tuple[int, str]] = []
    if header.sha256 is not None or last is not None:
        texts = [(number, _decoded(one, number)) for number, one in lines]
    check_lines(header, _decoded(first[1], first[0]), texts, last)


def _last_line(lines: list[tuple[int, bytes]]) -> Any:
    if not lines or len(lines[-1][1]) > MAX_LINE_BYTES:
        return None
    try:
        value = parse_json(lines[-1][1], "the last line")
    except InvalidTrajectory:
        # It was cut; whoever reads the lines says so.
        return None
    return value if is_last_line(value) else None


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InvalidTrajectory(f"line {number} is no text in UTF-8: {error}") from error


def _of_header(
    header: ExportHeader, events: tuple[Event, ...], entries: tuple[Entry, ...] | None, *notes: str
) -> GivenLog:
    return GivenLog(
        events=events,
        state=header.state,
        shared=header.shared,
        entries=entries,
        app=header.app,
        user_id=header.user_id,
        session_id=header.session_id,
        plan_digest=header.plan_digest,
        notes=notes,
    )


def _read_damaged(header: ExportHeader, lines: list[tuple[int, bytes]], *damage: str) -> GivenLog:
    """Read the events in front of the first line that cannot be read; `damage` is what else was found."""
    events: list[Event] = []
    notes = list(damage)
    for index, (number, line) in enumerate(lines):
        try:
            _, value = next(_parsed([(number, line)]))
            if not (isinstance(value, dict) and MARK in value):
                events.append(read_event(value, f"line {number}"))
        except InvalidTrajectory as error:
            notes.append(f"{len(lines) - index} lines were left out, from here on: {error}")
            break
    if header.events is not None and len(events) != header.events:
        notes.append(f"the header counts {header.events} events, and {len(events)} were read")
    if header.journal:
        notes.append("Perdure's own entries were left out: what each invocation waits for is read from the events")
    return _of_header(header, tuple(events), None, *notes)


def _listed(values: Iterable[tuple[int, Any]], what: str) -> Iterator[Event]:
    for number, value in values:
        if isinstance(value, dict) and {"session_id", "node_path"} & value.keys():
            raise InvalidTrajectory(
                f"{what} {number} is what `adk run --jsonl` prints, which lacks the user's messages, so it is no log;"
                f" run it with --save_session. {FORMS}"
            )
        yield read_event(value, f"{what} {number}")


def _read_value(value: Any) -> GivenLog:
    """Read a whole JSON document."""
    if isinstance(value, list):
        return _read_list(cast("list[Any]", value))
    if not isinstance(value, dict):
        raise InvalidTrajectory(f"this is JSON, but no log. {FORMS}")
    keys = cast("dict[str, Any]", value).keys()
    for known, what in (
        ({"eval_cases", "eval_set_id", "evalCases", "evalSetId"}, "an eval set, which holds no events and no state"),
        ({"type", "data"}, "no event of ADK, but may be one of AG2, of which Perdure reads none"),
    ):
        if known & keys and not {"events", "author"} & keys:
            raise InvalidTrajectory(f"this is {what}, so it is no log. {FORMS}")
    if "events" not in keys:
        if "author" in keys:
            return GivenLog(events=(read_event(value, "event 1"),))
        raise InvalidTrajectory(f"this is a JSON object, but no log: it has no events. {FORMS}")
    return _read_session(value)


def _read_list(values: list[Any]) -> GivenLog:
    if any(isinstance(value, dict) and "events" in value and "author" not in value for value in values):
        raise InvalidTrajectory(f"this is a list of sessions; give one at a time, with its events. {FORMS}")
    _check_count(len(values), "event")
    return GivenLog(events=tuple(_listed(enumerate(values, start=1), "event")))


def _read_session(value: Any) -> GivenLog:
    try:
        session = _AdkSession.model_validate(value)
    except ValidationError as error:
        raise InvalidTrajectory(f"this is no session of ADK: {problems(error)}. {FORMS}") from error
    _check_count(len(session.events), "event")
    events = tuple(_listed(enumerate(session.events, start=1), "event"))
    start, end, notes = _start_of(stored_part(session.state), events)
    shared = shared_part(session.state)
    return GivenLog(
        events=events,
        state=start,
        shared=shared if shared_part(end) != shared else None,
        app=session.app_name,
        user_id=session.user_id,
        session_id=session.id,
        notes=notes,
    )


def _start_of(final: dict[str, Any], events: Iterable[Event]) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Return the state that a log starts from, what its events make of that, and what is not known.

    ADK tells a session's last state only. What no event wrote was there from the start, or came from other sessions;
    what the keys that events write held before is not told.
    """
    written: dict[str, Any] = {}
    for event in events:
        written.update(stored_part(event.actions.state_delta))
    start = {key: value for key, value in final.items() if key not in written}
    notes: list[str] = []
    if written:
        names = ", ".join(map(repr, sorted(written)[:10]))
        notes.append(f"what {names} held before the first event that writes it is not told: it starts without a value")
    end = start | written
    odd = sorted(key for key in written if not shared_part({key: 0}) and final.get(key) != written[key])
    if odd:
        notes.append(f"the session's state has other values of {', '.join(map(repr, odd[:10]))} than its events give")
    return start, end, tuple(notes)
