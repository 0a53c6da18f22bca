"""Limits on the parts, values, keys and messages of a session, checked in next to no time. Pure.

Temporal ends a workflow task that holds its thread for two seconds, and tries it again for ever; what a session was
sent must never come near that. So it is counted in its JSON, before anything is made of it. How many bytes it may have
stands in `journal/entries.py`, how many levels in `journal/nesting.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, cast

from pydantic_core import from_json

from perdure.errors import InvalidMessage
from perdure.journal.nesting import MAX_LEVELS

MAX_PARTS = 1_000
"""Parts in one content: texts, files, calls and responses of a message, an answer, or what a model answered."""

MAX_REQUEST_VALUES = 20_000
"""Lists and objects in a message, an answer or a change of state, and in what a model answered."""

MAX_RESULT_VALUES = 100_000
"""Lists and objects in what a tool or a function returned."""

MAX_STATE_KEYS = 10_000
"""Keys in a session's state, as far as users write them, and in what one tool writes."""

MAX_QUEUED = 100
"""Messages of one session whose turn has not come."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A text in JSON, or the rest of what is none; matched without going back, so in one pass."""
_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NO_NUMBERS = tuple(re.compile(word + rb"(?<![^\s\[,:-]" + word + rb")") for word in (b"NaN", b"Infinity"))
"""What JSON has not, where it could be a value: not behind a letter. It may stand in a text all the same."""


def excess(data: bytes, most: int) -> str | None:
    """Return the excess of JSON, as in `has 5 lists …`; `None` if it is within `most` values and the levels."""
    # Brackets in texts count here, so nearly all that is sent is through already.
    if data.count(b"[") + data.count(b"{") <= min(most, MAX_LEVELS):
        return None
    brackets = _TEXT.sub(b"", data).translate(None, _BRACKETS)
    values = brackets.count(b"[") + brackets.count(b"{")
    if values > most:
        return f"has {values:,} lists and objects, and {most:,} are the most"
    if max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0) > MAX_LEVELS:
        return f"has more than {MAX_LEVELS} lists and objects within each other"
    return None


def check_json(data: bytes) -> None:
    """Check the JSON of a request before it is parsed: in a workflow, and where it is sent.

    Raises:
        InvalidMessage: It has too many values, levels, parts or keys of state, or numbers that JSON has not.
    """
    problem = excess(data, MAX_REQUEST_VALUES)
    if problem is not None:
        raise InvalidMessage(f"the request {problem}; send a text, or a reference to the data")
    if any(word.search(data) for word in _NO_NUMBERS) and any(
        word.search(_TEXT.sub(b"", data)) for word in _NO_NUMBERS
    ):
        raise InvalidMessage("the request holds a number that JSON has not, NaN or an infinity; send it as a text")
    # Each part is an object, and each key has a colon behind it.
    if data.count(b"{") > MAX_PARTS or data.count(b":") > MAX_STATE_KEYS:
        _check_counts(data)


def _check_counts(data: bytes) -> None:
    try:
        request: object = from_json(data)
    except ValueError as error:
        # Its text could quote a value.
        raise InvalidMessage("the request is no JSON") from error
    if isinstance(request, list):
        check_parts(len(cast(list[Any], request)))
    if isinstance(request, dict):
        fields = cast(Mapping[str, object], request)
        content = fields.get("content")
        if isinstance(content, dict):
            parts = cast(Mapping[str, object], content).get("parts")
            check_parts(len(cast(list[Any], parts)) if isinstance(parts, list) else 0)
        for name in ("state", "state_delta"):
            state = fields.get(name)
            check_keys(len(cast(dict[str, Any], state)) if isinstance(state, dict) else 0)


def check_parts(count: int) -> None:
    """Check a number of parts.

    Raises:
        InvalidMessage: There are too many.
    """
    if count > MAX_PARTS:
        raise InvalidMessage(
            f"the content has {count:,} parts, and {MAX_PARTS:,} are the most; put texts together, or send several"
        )


def check_keys(count: int) -> None:
    """Check a number of keys of state.

    Raises:
        InvalidMessage: There are too many.
    """
    if count > MAX_STATE_KEYS:
        raise InvalidMessage(
            f"the state would have {count:,} keys, and {MAX_STATE_KEYS:,} are the most; put what belongs together under"
            " one key"
        )
