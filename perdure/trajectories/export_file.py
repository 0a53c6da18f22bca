"""Writes and reads export files: a header, a line for each event and each entry of Perdure's own, an end. Pure.

docs/export-import.md describes the lines. An event's line is ADK's own JSON, so whoever leaves out the lines that start
with `{"perdure":` reads a plain ADK log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from perdure.errors import InvalidTrajectory, error_text, quoted, shortened
from perdure.journal.entries import (
    ActivityKept,
    AnswerAccepted,
    AnswerLogged,
    CallbackRan,
    Entry,
    EventLogged,
    EventRewound,
    FailureCaught,
    InvocationSettled,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    ModelCalled,
    RunBegan,
    ScopeBegan,
    SessionCreated,
    StateChanged,
    TempStateSet,
    ToolKept,
    ToolRan,
    ToolStarted,
    Within,
)
from perdure.journal.events import USER, Event
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Projection, shared_part
from perdure.journal.run_paths import RunPath
from perdure.journal.tasks import is_reply
from perdure.messages.keys import SessionKey
from perdure.rules.intake import is_state_event
from perdure.trajectories.checks import LogChecks, check_branch
from perdure.trajectories.wholeness import check_whole, digest_of, digests_of_lines, with_digest

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)

MARK = "perdure"
"""The key of an export's lines that are no events."""

FORMAT = 1
"""Which form of the file this Perdure writes and reads."""

UNREADABLE = (ValidationError, AttributeError)
"""How models fail on JSON; google-genai's enums so on what is no text."""

_LONGEST_NAME = 100
"""Characters of a field's name that a message tells as it is."""

_MISFITS = (KeyError, ValueError, TypeError, AttributeError, IndexError)
"""How the fold fails on entries that no session writes."""


_OF_SCOPES = (
    CallbackRan,
    InvocationSettled,
    InvocationStarted,
    ModelCalled,
    ScopeBegan,
    TempStateSet,
    ToolKept,
    ToolRan,
    ToolStarted,
)
"""What a scope's log holds beside events."""


class ExportHeader(BaseModel):
    """The first line of an export, under the key `perdure`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format: int = FORMAT
    sha256: str | None = None
    """Digest of this line, itself left out, and of the lines between it and the last one; without it nothing is known
    of what the file should hold."""
    events: int | None = None
    """Lines that are events."""
    entries: int | None = None
    """Lines that are Perdure's own entries."""
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


def make_header(key: SessionKey, session: Projection, *, journal: bool, versions: dict[str, str]) -> ExportHeader:
    """Return the header of a session's export."""
    created = next((entry.state for entry in session.entries if isinstance(entry, SessionCreated)), dict[str, Any]())
    written: dict[str, Any] = {}
    for event in session.events:
        written.update(event.actions.state_delta)
    # What no event wrote came with the session's creation or from other sessions, and never changed since.
    untouched = {key: value for key, value in session.state.items() if key not in written}
    start = {key: value for key, value in created.items() if key in written} | untouched
    given, shared = shared_part(start | written), shared_part(session.state)
    return ExportHeader(
        app=key.app,
        user_id=key.user,
        session_id=key.session,
        state={key: start[key] for key in sorted(start)},
        shared={key: shared[key] for key in sorted(shared)} if given != shared else None,
        journal=journal,
        plan_digest=session.newest_plan or session.imported_plan,
        versions=versions,
    )


def dump_lines(header: ExportHeader, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines of an export, without line ends."""
    lines = list(_lines_between(entries, journal=header.journal))
    own = sum(line.startswith(_OWN) for line in lines)
    first = _marked(header.model_copy(update={"sha256": "", "events": len(lines) - own, "entries": own}))
    yield with_digest(first, digest_of(first, lines))
    yield from lines
    yield _marked(_LastLine(digests=digests_of_lines(lines)))


def _lines_between(entries: Sequence[Entry], *, journal: bool) -> Iterator[str]:
    session, run = Projection(), ""
    for entry in entries:
        before = len(session.events)
        apply_entry(session, entry)
        shown = [event.to_json() for event in session.events[before:]]
        # Permissions of an earlier import are not handed on.
        if journal and not isinstance(entry, LogImported):
            if not (shown and isinstance(entry, EventLogged)):
                yield _marked(_EntryLine(entry=entry))
            elif entry.run != run:
                run = entry.run
                yield _marked(_RunLine(run=run))
        yield from shown


class _EntryLine(BaseModel):
    model_config = ConfigDict(frozen=True)

    entry: Entry


class _RunLine(BaseModel):
    model_config = ConfigDict(frozen=True)

    run: RunPath
    """The agent run that the agents' events behind it are of, up to the next such line."""


class _LastLine(BaseModel):
    """The content of the last line, under the key `perdure`."""

    model_config = ConfigDict(frozen=True)

    last_line: bool = True
    digests: str
    """Short digests of the lines between the first and this one."""


_OWN = f'{{"{MARK}":'


def _marked(value: BaseModel) -> str:
    return f"{_OWN}{value.model_dump_json(by_alias=True, exclude_none=True)}}}"


def read_header(value: Any, where: str) -> ExportHeader:
    """Return the header in a value.

    Raises:
        InvalidTrajectory: It is none, or one of a later Perdure.
    """
    given = value[MARK]
    number = given.get("format") if isinstance(given, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] -- JSON
    if isinstance(number, int) and number > FORMAT:
        raise InvalidTrajectory(
            f"{where}: the file is of format {number}, from a newer Perdure; this one reads format {FORMAT}, so import"
            " it with that version or a later one"
        )
    try:
        header = ExportHeader.model_validate_json(json.dumps(given))
    except ValidationError as error:
        raise InvalidTrajectory(f"{where}: the header is malformed: {problems(error)}") from error
    if header.format != FORMAT:
        raise InvalidTrajectory(f"{where}: the header is malformed: there is no format {header.format}")
    return header


def check_lines(header: ExportHeader, first: str, lines: list[tuple[int, str]], last: Any) -> None:
    """Check that all lines of an export are there as they were written, as far as its header tells.

    Args:
        header: The header.
        first: Its line.
        lines: Those between it and the last one, with their numbers.
        last: The value of the last line, if it is the mark of the end.

    Raises:
        InvalidTrajectory: Lines are missing or changed.
    """
    if header.sha256 is None and last is None:
        return
    digests = last[MARK].get("digests") if last is not None else None
    expected = (header.events or 0) + (header.entries or 0)
    check_whole(first, lines, expected=expected, digest=header.sha256 or "", digests=digests and str(digests))


def _is_own(value: Any) -> bool:
    return isinstance(value, dict) and MARK in value


def is_last_line(value: Any) -> bool:
    """Return whether a line's value is the mark of an export's end."""
    found = value[MARK] if _is_own(value) else None
    return isinstance(found, dict) and found.get("last_line") is True  # pyright: ignore[reportUnknownMemberType] -- JSON


def read_event(value: Any, where: str) -> Event:
    """Return the event in a value.

    Raises:
        InvalidTrajectory: It is none.
    """
    if not isinstance(value, dict):
        raise InvalidTrajectory(f"{where} is no JSON object")
    if MARK in value:
        raise InvalidTrajectory(f"{where} is an entry of Perdure's, and the header says that there are none")
    try:
        return Event.model_validate_json(json.dumps(value))
    except UNREADABLE as error:
        raise InvalidTrajectory(f"{where} is no ADK event: {problems(error)}") from error


def problems(error: Exception) -> str:
    """Return the first things that are wrong with a value."""
    if not isinstance(error, ValidationError):
        return f"a value is of a wrong type ({error})"
    found = error.errors(include_input=False, include_url=False)
    return "; ".join(shortened(f"{_place(problem['loc'])}: {problem['msg']}") for problem in found[:3])


def _place(names: Iterable[str | int]) -> str:
    """Return where a problem is; what stands there as a key may have any length."""
    return ".".join(name if len(name) <= _LONGEST_NAME else quoted(name) for name in map(str, names))


def _read_run(value: Any, where: str) -> str:
    try:
        return _RunLine.model_validate(value).run
    except ValidationError as error:
        raise InvalidTrajectory(f"{where} names no agent run: {problems(error)}") from error


def read_journal(lines: Iterator[tuple[int, Any]]) -> tuple[Entry, ...]:
    """Return the journal in the lines between the first and the last one, given by number and value.

    Raises:
        InvalidTrajectory: A line is malformed, or the lines are no journal; the message names the line.
    """
    return tuple(_JournalReader().read(lines))


class _JournalReader:
    """Reads the lines of an export with Perdure's own entries, and folds them as it goes."""

    def __init__(self) -> None:
        self._session = Projection()
        self._checks = LogChecks()
        self._run = ""
        self._logged_answers: set[str] = set()

    def read(self, lines: Iterator[tuple[int, Any]]) -> Iterator[Entry]:
        for number, value in lines:
            where = f"line {number}"
            if _is_own(value) and isinstance(value[MARK], dict) and "run" in value[MARK]:
                self._run = _read_run(value[MARK], where)
            elif _is_own(value):
                shown = len(self._session.events)
                yield self._take(self._entry(value, number), where)
                if len(self._session.events) > shown:
                    self._check_shown(self._session.events[-1], next(lines, None), where)
            else:
                yield self._take(EventLogged(event=read_event(value, where), run=self._run), where)
        if not self._session.entries:
            raise InvalidTrajectory("the export holds no entries, not even a session's first one")

    def _check_shown(self, event: Event, line: tuple[int, Any] | None, where: str) -> None:
        """Check the line that shows a user's event to readers, which has its entry above."""
        if line is None or _is_own(line[1]) or read_event(line[1], f"line {line[0]}") != event:
            raise InvalidTrajectory(f"{where}: the next line is not the event that this entry logs")

    def _entry(self, value: Any, number: int) -> Entry:
        try:
            return _ENTRY.validate_json(json.dumps(value[MARK]["entry"]))
        except (KeyError, TypeError) as error:
            raise InvalidTrajectory(f'line {number} is no entry: {{"perdure": {{"entry": …}}}}') from error
        except UNREADABLE as error:
            raise InvalidTrajectory(f"line {number} is no entry of a journal: {problems(error)}") from error

    def _take(self, entry: Entry, where: str) -> Entry:
        entry = self._checked(entry, where)
        try:
            apply_entry(self._session, entry)
        except _MISFITS as error:
            raise InvalidTrajectory(
                f"{where}: the entry {entry.kind!r} does not fit those before it ({error_text(error)})"
            ) from error
        return entry

    def _checked(self, entry: Entry, where: str) -> Entry:
        first = not self._session.entries
        if isinstance(entry, SessionCreated) is not first:
            raise InvalidTrajectory(f"{where}: a journal starts with the entry 'session', and has one of them")
        match entry:
            case LogImported():
                raise InvalidTrajectory(f"{where}: an export does not hold permissions to run calls")
            case StateChanged() | EventRewound():
                return self._checked_beside(entry, where)
            case EventLogged() | MessageAccepted() | AnswerAccepted():
                return self._checked_event(entry, where)
            case InvocationStarted() | AnswerLogged():
                self._check_logs_once(entry, where)
            case ActivityKept() | CallbackRan() | FailureCaught() | RunBegan():
                check_branch(entry.branch, where)
            case Within():
                return entry.model_copy(update={"entry": self._checked_within(entry.entry, where)})
            case _:
                pass
        self._checks.count(entry, where)
        return entry

    def _checked_beside(self, entry: StateChanged | EventRewound, where: str) -> Entry:
        known = entry.event.invocation_id in self._session.invocations
        if isinstance(entry, StateChanged) and (known or not is_state_event(entry.event)):
            raise InvalidTrajectory(f"{where}: a change of state is a user's, and says nothing")
        return entry.model_copy(update={"event": self._checks.check(entry.event, where)})

    def _checked_within(self, entry: Entry, where: str) -> Entry:
        match entry:
            case Within():
                return entry.model_copy(update={"entry": self._checked_within(entry.entry, where)})
            case EventLogged():
                if entry.event.author == USER:
                    raise InvalidTrajectory(f"{where}: an event of {USER!r} stands in the entry {entry.kind!r}")
                return entry.model_copy(update={"event": self._checks.check(entry.event, where)})
            case _ if not isinstance(entry, _OF_SCOPES):
                raise InvalidTrajectory(f"{where}: the entry {entry.kind!r} is none of an agent that a tool runs")
            case _:
                self._checks.count(entry, where)
                return entry

    def _checked_event(self, entry: EventLogged | MessageAccepted | AnswerAccepted, where: str) -> Entry:
        invocation = self._session.invocations.get(entry.event.invocation_id)
        known = invocation is not None
        if entry.event.actions.rewind_before_invocation_id:
            raise InvalidTrajectory(f"{where}: a rewind stands in the entry {entry.kind!r}; it is one of its own")
        if isinstance(entry, EventLogged) is entry.event.is_users:
            raise InvalidTrajectory(
                f"{where}: an event of {quoted(entry.event.author)} stands in the entry {entry.kind!r}"
            )
        if isinstance(entry, EventLogged) and entry.hidden and entry.event.content is not None:
            raise InvalidTrajectory(f"{where}: only checkpoints and ends are hidden from readers")
        if isinstance(entry, MessageAccepted) and known:
            raise InvalidTrajectory(f"{where}: invocation {quoted(entry.event.invocation_id)} has a message already")
        if not isinstance(entry, MessageAccepted) and not known:
            raise InvalidTrajectory(f"{where}: no message has started invocation {quoted(entry.event.invocation_id)}")
        if isinstance(entry, AnswerAccepted) and not entry.event.get_function_responses() and not is_reply(entry.event):
            raise InvalidTrajectory(f"{where}: the entry {entry.kind!r} holds no answer to a call")
        if isinstance(entry, EventLogged) and invocation is not None and invocation.agent is None:
            raise InvalidTrajectory(f"{where}: invocation {quoted(entry.event.invocation_id)} has not begun yet")
        event = self._checks.check(entry.event, where)
        if not event.id:
            raise InvalidTrajectory(f"{where}: the event has no id, and in a journal each has one")
        return entry.model_copy(update={"event": event})

    def _check_logs_once(self, entry: InvocationStarted | AnswerLogged, where: str) -> None:
        if isinstance(entry, AnswerLogged):
            again = entry.event_id in self._logged_answers
            self._logged_answers.add(entry.event_id)
        else:
            invocation = self._session.invocations.get(entry.invocation_id)
            again = invocation is not None and invocation.agent is not None
        if again:
            raise InvalidTrajectory(f"{where}: the entry {entry.kind!r} logs an event for the second time")
