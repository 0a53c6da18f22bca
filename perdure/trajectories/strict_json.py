"""Reads JSON from outside, once and strictly: what is not understood is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from pydantic_core import from_json

from perdure.errors import InvalidTrajectory, shortened

MAX_READ_LEVELS = 190
"""Lists and objects within each other that are read at all; the same with every version of Python."""

_READER_LEVELS = 201
"""What pydantic's reader takes of them."""


def parse_json(data: bytes, where: str) -> Any:
    """Return the value of a JSON text in UTF-8.

    Args:
        data: The text.
        where: How messages name it, as in `line 3`.

    Raises:
        InvalidTrajectory: It is no JSON, is too deep, holds an object with one key twice, half characters (lone
            surrogates), or numbers that no journal could hold.
    """
    try:
        # It refuses half characters, and bytes that are no UTF-8, which `json` takes, or takes for another encoding.
        from_json(data, allow_inf_nan=False)
        _check_levels(data)
        return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidTrajectory(f"{where} is no JSON: {error}") from error


def _check_levels(data: bytes) -> None:
    if data.count(b"[") + data.count(b"{") <= MAX_READ_LEVELS:
        return
    try:
        around = _READER_LEVELS - MAX_READ_LEVELS
        from_json(b"[" * around + data + b"]" * around, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"it has more than {MAX_READ_LEVELS} lists and objects within each other") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object holds the key {shortened(repr(twice))} twice")
    return found


def _no_number(name: str) -> float:
    # Python takes NaN and Infinity for JSON; a journal would lose them, and could not be read again.
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)
