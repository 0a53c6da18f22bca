"""Formats values, times and events for a page. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from mimetypes import guess_type
from typing import Any, Literal

from google.genai import types

from perdure.api.base.attribution import Attribution, attribution_of
from perdure.errors import InvalidMessage
from perdure.journal.events import REQUEST_CONFIRMATION, Event, asked_about
from perdure.journal.questions import parse_confirmation
from perdure.rules.tool_responses import confirmation_hint
from perdure.views.pages import QUESTION_WORDS

MOST_TEXT = 6000
"""Characters of a text or a value that are shown."""

_SHORT = 80
"""Characters of a value that fit on a line."""

_STEERING = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters without a shape of their own, by which arguments could be made to look like others."""

_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Those of them that a text in no language needs, and that turn the order of what stands around them."""

_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

PieceKind = Literal[
    "text", "thought", "output", "call", "response", "answer", "transfer", "escalation", "file", "code", "error"
]


@dataclass(frozen=True)
class Piece:
    """A text, call, response or other part of an event."""

    kind: PieceKind
    title: str = ""
    """The tool's or agent's name."""
    text: str = ""
    id: str = ""
    """The call's."""
    waits: bool = False
    """It is a call that a person answers."""
    about: str = ""
    """Of a question about a call, and of its answer: the tool."""
    hint: str = ""
    """Of a question: what it asks, in the tool's own words."""
    decision: str = ""
    """Of an answer to an approval: `approves` or `rejects`."""
    asks_first: bool = False
    """It is the response of a tool that did not run yet, since a person is asked first."""
    part: int = 0
    """Of a file: which part of its event it is."""
    is_picture: bool = False
    """It is a file that a page can show."""


@dataclass(frozen=True)
class Artifact:
    """A version of an artifact."""

    name: str
    version: int
    is_picture: bool
    """Its name says that it is one that a page can show."""


@dataclass(frozen=True)
class Argument:
    """An argument of a call."""

    name: str
    text: str
    folded: str = ""
    """Of a nested value that takes several lines: what is seen of it at first."""


@dataclass(frozen=True)
class Entry:
    """An event of the timeline."""

    id: str
    time: float
    author: str
    is_user: bool
    node: str
    """Of a graph: the node that logged it."""
    invocation_id: str
    branch: str | None
    pieces: tuple[Piece, ...]
    marks: tuple[str, ...]
    """What it does beside its content: `checkpoint`, `ends`."""
    answered: Attribution | None
    by_deadline: bool = False
    """The session answered by itself."""
    state: tuple[tuple[str, str], ...] = ()
    """Keys of the state that it writes, each with its value."""
    artifacts: tuple[Artifact, ...] = ()
    """Artifacts that it saves."""
    offset: int | None = None
    """Where it stands in the log; `None` for what is not there yet."""


def shown_json(value: Any) -> str:
    """Return a value as JSON, indented unless it is short, in which nothing steers how it is displayed."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    if len(line) <= _SHORT:
        return revealed(line)
    return shorten(revealed(json.dumps(value, ensure_ascii=False, indent=2, default=str)))


def arguments(args: Mapping[str, Any]) -> list[Argument]:
    """Return a call's arguments, each as a person reads it: texts without quotes, the rest as JSON."""
    return [_argument(name, value) for name, value in args.items()]


def _argument(name: str, value: Any) -> Argument:
    if isinstance(value, str):
        return Argument(name, shorten(revealed(value)))
    text = shown_json(value)
    size = len(value) if isinstance(value, Mapping | list) else 0  # pyright: ignore[reportUnknownArgumentType] -- JSON
    if "\n" not in text or not size:
        return Argument(name, text)
    what = "values" if isinstance(value, Mapping) else "items"
    return Argument(name, text, f"{size:,} {what if size > 1 else what[:-1]}")


def revealed(text: str) -> str:
    """Return text with characters that only steer its display written out."""
    return _STEERING.sub(_written_out, text)


def in_order(text: str) -> str:
    """Return prose, in whatever language, with characters written out that would turn its order."""
    return _TURNING.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}" if found[0] != "\r" else ""


def shorten(text: str, most: int = MOST_TEXT) -> str:
    """Return text of a length that a page takes."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters in all)"


def clock(timestamp: float | None) -> str:
    """Return a time in UTC, to the second."""
    try:
        return f"{_at(timestamp):%Y-%m-%d %H:%M:%S} UTC" if timestamp is not None else "-"
    except (OverflowError, ValueError, OSError):
        # An imported log may tell of any time.
        return "?"


def iso(timestamp: float | None) -> str:
    """Return a time in ISO 8601; empty if it is none."""
    try:
        return _at(timestamp).isoformat(timespec="seconds") if timestamp is not None else ""
    except (OverflowError, ValueError, OSError):
        return ""


def ago(timestamp: float, now: float) -> str:
    """Return how far a time lies from now, in its largest unit."""
    seconds = now - timestamp
    size = abs(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if size >= length:
            count = f"{int(size // length)} {unit}"
            break
    else:
        if size < 5:
            return "now"
        count = f"{int(size)} s"
    return f"{count} ago" if seconds >= 0 else f"in {count}"


def is_picture(kind: str | None) -> bool:
    """Return whether a page shows files of a MIME type: pictures in which nothing runs."""
    return kind in _PICTURES


def timeline(events: Iterable[Event], most: int = MOST_TEXT, start: int | None = None) -> list[Entry]:
    """Return events as a page shows them, of each text `most` characters; `start` is the offset of the first."""
    titles: dict[str, Piece] = {}
    entries = [_entry(event, most, titles) for event in events]
    return entries if start is None else [replace(entry, offset=start + at) for at, entry in enumerate(entries)]


def _entry(event: Event, most: int, titles: dict[str, Piece]) -> Entry:
    """Return an event as a page shows it; `titles`, by call id, are the calls before it."""
    marks: list[str] = []
    if event.actions.agent_state is not None:
        marks.append("checkpoint")
    if event.actions.end_of_agent:
        marks.append("ends")
    return Entry(
        id=event.id,
        time=event.timestamp,
        author=event.author,
        is_user=event.is_users,
        node=event.node if event.node != event.author else "",
        invocation_id=event.invocation_id,
        branch=event.branch,
        pieces=tuple(_pieces(event, most, titles)),
        marks=tuple(marks),
        answered=attribution_of(event),
        by_deadline=(event.custom_metadata or {}).get("expired") is True,
        state=tuple((revealed(name), shown_json(value)) for name, value in event.actions.state_delta.items()),
        artifacts=tuple(
            Artifact(name, version, is_picture(guess_type(name)[0]))
            for name, version in event.actions.artifact_delta.items()
        ),
    )


def _pieces(event: Event, most: int, titles: dict[str, Piece]) -> Iterator[Piece]:
    for number, part in enumerate(event.parts):
        for piece in _piece(event, part, most):
            if piece.kind == "call":
                titles[piece.id] = piece
            elif piece.kind in ("response", "answer") and (call := titles.get(piece.id)) is not None:
                piece = replace(piece, title=call.title, about=call.about)
            yield replace(piece, part=number)
    if event.output is not None and not event.parts:
        output: Any = event.output
        yield Piece("output", text=shorten(output, most) if isinstance(output, str) else shown_json(output))
    if event.actions.transfer_to_agent:
        yield Piece("transfer", event.actions.transfer_to_agent)
    if event.actions.escalate:
        yield Piece("escalation")
    if event.error_code or event.error_message:
        yield Piece("error", event.error_code or "", shorten(event.error_message or ""))


def _piece(event: Event, part: types.Part, most: int) -> Iterator[Piece]:
    if part.text:
        yield Piece("thought" if part.thought else "text", text=shorten(part.text, most))
    elif part.function_call is not None:
        yield _call(event, part.function_call)
    elif part.function_response is not None:
        response = part.function_response
        kind: PieceKind = "answer" if event.is_users else "response"
        yield Piece(
            kind,
            _about(response.name),
            shown_json(response.response),
            response.id or "",
            decision=_decision(response) if kind == "answer" else "",
            asks_first=response.id in event.actions.requested_tool_confirmations,
        )
    elif part.inline_data is not None:
        size = f"{len(part.inline_data.data or b''):,} bytes"
        kind_of_file, name = part.inline_data.mime_type or "", part.inline_data.display_name
        told = f"{kind_of_file}, {size}" if name else size
        yield Piece("file", name or kind_of_file, told, is_picture=is_picture(kind_of_file))
    elif part.file_data is not None:
        yield Piece("file", part.file_data.mime_type or "", part.file_data.file_uri or "")
    elif part.executable_code is not None:
        yield Piece("code", "code", shorten(part.executable_code.code or ""))
    elif part.code_execution_result is not None:
        yield Piece("code", "its output", shorten(part.code_execution_result.output or ""))


def _call(event: Event, call: types.FunctionCall) -> Piece:
    args: dict[str, Any] = call.args or {}
    title, asked, about, hint = _about(call.name), asked_about(args), "", ""
    if title != call.name and asked:
        # Of an approval, the call that it is about.
        about, hint = str(asked.get("name")), _hint(args)
        title = f"{title} {about}"
        args = asked.get("args") or dict[str, Any]()
    waits = call.id in (event.long_running_tool_ids or ())
    return Piece("call", title, shown_json(args), call.id or "", waits, about=about, hint=hint)


def _hint(args: Mapping[str, Any]) -> str:
    confirmation: Any = args.get("toolConfirmation")
    hint: Any = confirmation.get("hint") if isinstance(confirmation, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- JSON
    # ADK's own words are for programs.
    return hint if isinstance(hint, str) and hint != confirmation_hint(str(asked_about(args).get("name"))) else ""


def _decision(response: types.FunctionResponse) -> str:
    """Return what an answer decided; empty where it was asked for no decision."""
    if response.name != REQUEST_CONFIRMATION:
        return ""
    try:
        return "approves" if parse_confirmation(response.response or {}).confirmed else "rejects"
    except InvalidMessage:
        # An imported log may hold anything there.
        return ""


def _about(name: str | None) -> str:
    return QUESTION_WORDS.get(name or "", name or "")


def _at(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)
