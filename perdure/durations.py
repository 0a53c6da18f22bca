"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from pydantic import TypeAdapter, ValidationError

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SHORT = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_NUMBER = re.compile(r"[\d\s.,+-]+")


def parse_duration(text: str) -> timedelta | None:
    """Return a duration that is longer than nothing: `90s`, `30min`, `2h`, `7d`, or ISO 8601; `None` if it is none.

    A bare number is none: who forgets the `h` would be told that nothing happened in two seconds.
    """
    short = _SHORT.fullmatch(text.strip())
    try:
        if short is not None:
            found = timedelta(seconds=float(short[1]) * _UNITS[short[2]])
        elif _NUMBER.fullmatch(text):
            return None
        else:
            found = TypeAdapter(timedelta).validate_python(text)
    except (ValidationError, OverflowError):
        return None
    return found if found > timedelta(0) else None
