"""Shows a conversation on a terminal: who says what in a column, calls and what came of them in a line each."""

from __future__ import annotations

import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, cast

import click

from perdure.cli.output import has_colours
from perdure.escapes import escaped
from perdure.journal.attribution import ATTRIBUTION
from perdure.journal.events import QUESTIONS, REQUEST_INPUT, Event, asked_about
from perdure.streams.partials import ATTEMPT
from perdure.views.pages import QUESTION_WORDS

_WIDEST_NAME = 20
"""Columns of the longest name that the column of names grows to."""
_GAP = 2
_LEAST_ROOM = 20
"""Columns in which a text is broken into lines, on the narrowest terminal."""
_TRANSFER = "transfer_to_agent"


class Screen:
    """What a conversation writes. Everything that others wrote goes out escaped.

    Attributes:
        events: How many were shown.
    """

    def __init__(self) -> None:
        """Begin at the start of a line."""
        self.events = 0
        self._colours = has_colours()
        self._column = 8
        """Where texts begin."""
        self._author: str | None = None
        """Whose lines stand there last; they need no name again."""
        self._answer: tuple[str, object] | None = None
        """Event id and attempt of the answer that is being written."""
        self._said = ""
        """What came of it."""
        self._at = 0
        """The column at which it goes on."""
        self._word = ""
        """The end of it, which is not shown yet: it may be the beginning of a word."""
        self._space = ""
        """The space before that."""
        self._works = False
        self._blank = True
        """The line above is empty."""
        self._noted = ""
        self._questions: dict[str, str] = {}
        """What questions that were shown are about, by their ids."""

    def line(self, text: str = "", *, of: str = "", lines: bool = False) -> None:
        """Write a line of the conversation's own.

        Args:
            text: The line; anybody's words may be in it.
            of: What it is about: `quiet`, `bad`, `asks`; else it is plain.
            lines: It may have several.
        """
        self.close()
        self._author = None
        self._write(self._styled(text, of, lines=lines) + "\n")
        self._blank = not text

    def note(self, text: str, *, once: bool = False) -> None:
        """Write a quiet line; `once`, if it stood there last, not again."""
        if not once or text != self._noted:
            self.line(text, of="quiet")
        self._noted = text

    def gap(self) -> None:
        """Write an empty line, unless there is one."""
        self.close()
        if not self._blank:
            self.line()

    def typed(self) -> None:
        """Say that the person has written a line."""
        self._blank = False
        self._author = None

    def working(self) -> None:
        """Show that something is at work, until the next thing is shown."""
        if self._answer is None and not self._works:
            self._write(self._styled("…", "quiet"))
            self._works = True

    def event(self, event: Event) -> None:
        """Show an event, or what it adds to the answer that is being written."""
        self._noted = ""
        self.events += 1
        if event.partial:
            self._add(event)
            return
        text = event.text or ""
        if self._answer is not None and self._answer[0] == event.id and text.startswith(self._said):
            self._flow(text.removeprefix(self._said))
            text = ""
        self.close()
        if event.is_users:
            self._show_user(event, text)
            return
        # What came of a task stands in the user's name.
        author = event.node if event.author == "user" else event.author
        if text.strip():
            self._begin(author)
            self._flow(text.strip("\n"))
            self.close()
        for call in event.get_function_calls():
            if call.name in QUESTIONS:
                about = asked_about(call.args).get("name", "")
                self._questions[call.id or ""] = f"{QUESTION_WORDS[call.name]} {about}".strip()
        for line, of in _lines(event):
            self._begin(author)
            self._write(self._styled(_fit(line, self._room()), of) + "\n")
            self._at = 0

    def close(self) -> None:
        """End what is being written."""
        self._clear()
        if self._answer is not None or self._at:
            self._put_word()
            self._write("\n")
        self._answer, self._said, self._word, self._space, self._at = None, "", "", "", 0

    def _show_user(self, event: Event, text: str) -> None:
        if text:
            self.gap()
            self.line(f"> {text}", lines=True)
            self.gap()
        who = (event.custom_metadata or {}).get(ATTRIBUTION)
        said = cast("dict[str, Any]", who) if isinstance(who, dict) else {}
        for response in event.get_function_responses():
            by = f" by {said['who']}" if said.get("who") else ""
            why = f" ({said['why']})" if said.get("why") else ""
            name = response.name or ""
            words = QUESTION_WORDS.get(name)
            what = self._questions.get(response.id or "", f"{words} a tool" if words else name)
            words = f"answered{by}{why}: {what} {short(response.response)}"
            self.line(_fit(words, self._room() + self._column), of="quiet")

    def _add(self, event: Event) -> None:
        text = event.text
        if not text:
            return
        answer = (event.id, (event.custom_metadata or {}).get(ATTEMPT))
        if answer != self._answer:
            if self._answer is not None and answer[0] == self._answer[0]:
                self.line("the model is asked again, and begins anew", of="quiet")
            self.close()
            self._begin(event.author)
            self._answer = answer
        self._said += text
        self._flow(text)

    def _begin(self, author: str) -> None:
        """Begin a line of somebody's, with the name if the line before was of somebody else."""
        self._clear()
        name = _fit(escaped(author), _WIDEST_NAME)
        self._column = max(self._column, _width(name) + _GAP)
        pad = " " * (self._column - _width(name))
        self._write(" " * self._column if author == self._author else self._styled(name, "name") + pad)
        self._author, self._blank = author, False
        self._at = self._column

    def _flow(self, text: str) -> None:
        """Write text that goes on, broken between words; what may be half of a word waits for the rest."""
        self._clear()
        for part in re.findall(r"\s+|\S+", text):
            if not part.isspace():
                self._word += part
                continue
            self._put_word()
            self._space += part

    def _put_word(self) -> None:
        """Write the word that is complete now, with the space before it: that at the end of a text is never written."""
        word, space = escaped(self._word), escaped(self._space.replace("\t", "    "), lines=True)
        if not word:
            return
        *breaks, space = space.split("\n")
        at = (self._column if breaks else self._at) + _width(space)
        if at + _width(word) > self._column + self._room() and at > self._column:
            breaks, space, at = [*breaks, ""], "", self._column
        self._write(f"\n{' ' * self._column}" * len(breaks) + space + word)
        self._at = at + _width(word)
        self._word = self._space = ""

    def _room(self) -> int:
        return max(_LEAST_ROOM, shutil.get_terminal_size().columns - self._column - 1)

    def _clear(self) -> None:
        if self._works:
            self._write("\r\x1b[K" if sys.stdout.isatty() else "\n")
        self._works = False

    def _styled(self, text: str, of: str, *, lines: bool = False) -> str:
        clean = escaped(text, lines=lines)
        styles: dict[str, dict[str, Any]] = {
            "quiet": {"dim": True},
            "bad": {"fg": "red"},
            "asks": {"bold": True},
            "name": {"fg": "cyan"},
        }
        return click.style(clean, **styles[of]) if self._colours and of in styles and clean.strip() else clean

    def _write(self, text: str) -> None:
        # click would take colours away by rules of its own.
        click.echo(text, nl=False, color=True)


def _lines(event: Event) -> Iterator[tuple[str, str]]:
    """Yield what an event does beside its text, and how that is shown."""
    actions = event.actions
    for call in event.get_function_calls():
        # A question is asked, and a hand-over told.
        if call.name not in QUESTIONS | {REQUEST_INPUT, _TRANSFER}:
            yield (
                f"→ {call.name}({', '.join(f'{key}={short(value)}' for key, value in (call.args or {}).items())})",
                "quiet",
            )
    asked = actions.requested_tool_confirmations.keys() | actions.requested_auth_configs.keys()
    for response in event.get_function_responses():
        if response.id not in asked and response.name != _TRANSFER:
            yield f"← {response.name} {short(response.response)}", "quiet"
    if actions.transfer_to_agent:
        yield f"hands over to {actions.transfer_to_agent}", "quiet"
    for name in actions.artifact_delta:
        yield f"saved {name}", "quiet"
    if event.error_code or event.error_message:
        yield f"{event.error_code or 'error'}: {event.error_message or ''}", "bad"


def short(value: Any) -> str:
    """Return a value as JSON, on a line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _fit(text: str, room: int) -> str:
    """Return a text of a line, cut to what has room."""
    text = escaped(text)
    if _width(text) <= room:
        return text
    found, used = "", 1
    for character in text:
        used += _width(character)
        if used > room:
            break
        found += character
    return f"{found}…"


def _width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
