"""The file of an exported session: a header line, then a line for each event and each entry of Perdure's own. Pure.

docs/export-import.md describes the lines. An event's line is ADK's own JSON, so whoever leaves out the lines that start
with `{"perdure":` reads a plain ADK log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from perdure.errors import InvalidTrajectory
from perdure.events import USER, Event
from perdure.facts import shared_part
from perdure.imports import MAX_IMPORT_BYTES, LogChecks, check_branch
from perdure.journal import (
    MAX_PAYLOAD_BYTES,
    ActivityKept,
    AnswerAccepted,
    AnswerLogged,
    Entry,
    EventLogged,
    FailureCaught,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    RunBegan,
    SessionCreated,
    SharedStateRead,
    StateChanged,
)
from perdure.projection import Projection
from perdure.requests import is_state_event
from perdure.trajectory import FreshId, read_log

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)

MAX_LINE_BYTES = MAX_PAYLOAD_BYTES
"""What one line may have; no event and no entry of a session has more."""

_MARK = "perdure"

_MISFITS = (KeyError, ValueError, TypeError, AttributeError, IndexError)
"""How the fold fails on entries that no session writes."""


class ExportHeader(BaseModel):
    """The first line of an export, under the key `perdure`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format: Literal[1] = 1
    app: str
    user_id: str
    session_id: str
    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    """The state that the log starts from: the state deltas of the events, on top of it, give the session's state."""
    shared: dict[str, Any] | None = None
    """The `user:` and `app:` keys at the end, where the deltas do not give them: other sessions write these too."""
    journal: bool = False
    """Perdure's own entries are among the lines."""
    plan_digest: str | None = None
    """Digest of the session's newest plan."""
    versions: dict[str, str] = Field(default_factory=dict[str, str])
    """Of the packages that wrote the export."""


@dataclass(frozen=True)
class ImportedLog:
    """A file that was read: its header, and the journal to go on from."""

    header: ExportHeader
    entries: tuple[Entry, ...]
    projection: Projection
    """The entries, folded."""


def make_header(
    names: tuple[str, str, str], session: Projection, *, journal: bool, versions: dict[str, str]
) -> ExportHeader:
    """Return the header for a session; `names` are its app, user and session id."""
    created = next((entry.state for entry in session.entries if isinstance(entry, SessionCreated)), dict[str, Any]())
    written: dict[str, Any] = {}
    for event in session.events:
        written.update(event.actions.state_delta)
    # What no event wrote came with the session's creation or from other sessions, and never changed since.
    untouched = {key: value for key, value in session.state.items() if key not in written}
    start = {key: value for key, value in created.items() if key in written} | untouched
    given, shared = shared_part(start | written), shared_part(session.state)
    app, user_id, session_id = names
    return ExportHeader(
        app=app,
        user_id=user_id,
        session_id=session_id,
        state={key: start[key] for key in sorted(start)},
        shared={key: shared[key] for key in sorted(shared)} if given != shared else None,
        journal=journal,
        plan_digest=session.newest_plan or session.imported_plan,
        versions=versions,
    )


def dump_lines(header: ExportHeader, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines of an export, without line ends."""
    yield _marked(header)
    session = Projection()
    for entry in entries:
        before = len(session.events)
        session.apply(entry)
        shown = [event.to_json() for event in session.events[before:]]
        if header.journal and not isinstance(entry, LogImported) and not (shown and isinstance(entry, EventLogged)):
            # Permissions of an earlier import are not handed on.
            yield _marked(_EntryLine(entry=entry))
        yield from shown


class _EntryLine(BaseModel):
    model_config = ConfigDict(frozen=True)

    entry: Entry


def _marked(value: BaseModel) -> str:
    return f'{{"{_MARK}":{value.model_dump_json(by_alias=True, exclude_none=True)}}}'


def peek_app(line: str | bytes) -> str:
    """Return the app that an export's first line names.

    Raises:
        InvalidTrajectory: The line is no header.
    """
    return _peek([line]).app


def peek_session(lines: Iterable[str | bytes]) -> str:
    """Return the session id that an export's header names.

    Raises:
        InvalidTrajectory: There is no header.
    """
    return _peek(lines).session_id


def _peek(lines: Iterable[str | bytes]) -> ExportHeader:
    number, first = next(_numbered(lines), (1, dict[str, Any]()))
    return _header(first, number)


def read_lines(lines: Iterable[str | bytes], *, fresh: FreshId) -> ImportedLog:
    """Read an export, a line at a time.

    Args:
        lines: The lines, with or without line ends.
        fresh: Draws ids for events that have none.

    Raises:
        InvalidTrajectory: A line is malformed, or the lines are no log; the message names the line.
    """
    numbered = _numbered(lines)
    number, first = next(numbered, (1, dict[str, Any]()))
    header = _header(first, number)
    if header.journal:
        entries = tuple(_JournalReader().read(numbered))
    else:
        log = [_event(value, number) for number, value in numbered]
        # Event N stands on line N + 1, but for blank lines.
        entries = read_log(log, state=header.state, fresh=fresh).entries
    if header.shared is not None and not header.journal:
        entries = (*entries, SharedStateRead(state=header.shared))
    return ImportedLog(header, entries, Projection.fold(entries))


def _numbered(lines: Iterable[str | bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    size = 0
    for number, line in enumerate(lines, start=1):
        size += len(line)
        if size > MAX_IMPORT_BYTES:
            raise InvalidTrajectory(
                f"line {number}: the file has more than the {MAX_IMPORT_BYTES / 1e6:.0f} MB of one import"
            )
        if len(line) > MAX_LINE_BYTES:
            raise InvalidTrajectory(
                f"line {number} has more than the {MAX_LINE_BYTES / 1e6:.1f} MB that a line may have"
            )
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line, parse_constant=_no_number, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise InvalidTrajectory(f"line {number} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise InvalidTrajectory(f"line {number} is no JSON object")
        yield number, cast(dict[str, Any], value)


def _no_number(name: str) -> float:
    # Python takes NaN and Infinity for JSON; a journal would lose them, and could not be read again.
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)


def _header(value: dict[str, Any], number: int) -> ExportHeader:
    try:
        return ExportHeader.model_validate_json(json.dumps(value[_MARK]))
    except KeyError as error:
        raise InvalidTrajectory(
            f'line {number} is no header of an export: {{"perdure": {{"format": 1, …}}}}'
        ) from error
    except ValidationError as error:
        raise InvalidTrajectory(f"line {number}: the header is malformed: {_problems(error)}") from error


def _event(value: dict[str, Any], number: int) -> Event:
    if _MARK in value:
        raise InvalidTrajectory(f"line {number} is an entry of Perdure's, and the header says that there are none")
    try:
        return Event.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise InvalidTrajectory(f"line {number} is no ADK event: {_problems(error)}") from error


def _problems(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in found[:3])


class _JournalReader:
    """Reads the lines of an export with Perdure's own entries, and folds them as it goes."""

    def __init__(self) -> None:
        self._session = Projection()
        self._checks = LogChecks()
        self._logged_answers: set[str] = set()

    def read(self, lines: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[Entry]:
        for number, value in lines:
            where = f"line {number}"
            if _MARK in value:
                shown = len(self._session.events)
                yield self._take(self._entry(value, number), where)
                if len(self._session.events) > shown:
                    self._check_shown(self._session.events[-1], next(lines, None), where)
            else:
                yield self._take(EventLogged(event=_event(value, number)), where)
        if not self._session.entries:
            raise InvalidTrajectory("the export holds no entries, not even a session's first one")

    def _check_shown(self, event: Event, line: tuple[int, dict[str, Any]] | None, where: str) -> None:
        """Check the line that shows a user's event to readers, which has its entry above."""
        if line is None or _MARK in line[1] or _event(line[1], line[0]) != event:
            raise InvalidTrajectory(f"{where}: the next line is not the event that this entry logs")

    def _entry(self, value: dict[str, Any], number: int) -> Entry:
        try:
            return _ENTRY.validate_json(json.dumps(value[_MARK]["entry"]))
        except (KeyError, TypeError) as error:
            raise InvalidTrajectory(f'line {number} is no entry: {{"perdure": {{"entry": …}}}}') from error
        except ValidationError as error:
            raise InvalidTrajectory(f"line {number} is no entry of a journal: {_problems(error)}") from error

    def _take(self, entry: Entry, where: str) -> Entry:
        entry = self._checked(entry, where)
        try:
            self._session.apply(entry)
        except _MISFITS as error:
            raise InvalidTrajectory(
                f"{where}: the entry {entry.kind!r} does not fit those before it ({type(error).__name__}: {error})"
            ) from error
        return entry

    def _checked(self, entry: Entry, where: str) -> Entry:
        first = not self._session.entries
        if isinstance(entry, SessionCreated) is not first:
            raise InvalidTrajectory(f"{where}: a journal starts with the entry 'session', and has one of them")
        match entry:
            case LogImported():
                raise InvalidTrajectory(f"{where}: an export does not hold permissions to run calls")
            case StateChanged():
                if not is_state_event(entry.event) or entry.event.invocation_id in self._session.invocations:
                    raise InvalidTrajectory(f"{where}: a change of state is a user's, and says nothing")
                return entry.model_copy(update={"event": self._checks.check(entry.event, where)})
            case EventLogged() | MessageAccepted() | AnswerAccepted():
                return self._checked_event(entry, where)
            case InvocationStarted() | AnswerLogged():
                self._check_logs_once(entry, where)
            case ActivityKept() | FailureCaught() | RunBegan():
                check_branch(entry.branch, where)
            case _:
                pass
        self._checks.count(entry, where)
        return entry

    def _checked_event(self, entry: EventLogged | MessageAccepted | AnswerAccepted, where: str) -> Entry:
        known = entry.event.invocation_id in self._session.invocations
        if isinstance(entry, EventLogged) is (entry.event.author == USER):
            raise InvalidTrajectory(f"{where}: an event of {entry.event.author!r} stands in the entry {entry.kind!r}")
        if isinstance(entry, EventLogged) and entry.hidden and entry.event.content is not None:
            raise InvalidTrajectory(f"{where}: only checkpoints and ends are hidden from readers")
        if isinstance(entry, MessageAccepted) and known:
            raise InvalidTrajectory(f"{where}: invocation {entry.event.invocation_id!r} has a message already")
        if not isinstance(entry, MessageAccepted) and not known:
            raise InvalidTrajectory(f"{where}: no message has started invocation {entry.event.invocation_id!r}")
        return entry.model_copy(update={"event": self._checks.check(entry.event, where)})

    def _check_logs_once(self, entry: InvocationStarted | AnswerLogged, where: str) -> None:
        if isinstance(entry, AnswerLogged):
            again = entry.event_id in self._logged_answers
            self._logged_answers.add(entry.event_id)
        else:
            invocation = self._session.invocations.get(entry.invocation_id)
            again = invocation is not None and invocation.agent is not None
        if again:
            raise InvalidTrajectory(f"{where}: the entry {entry.kind!r} logs an event for the second time")
