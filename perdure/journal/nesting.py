"""Limits how deep a journal's JSON is nested: what is read again has to be within pydantic's own limit."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_core import from_json

from perdure.journal.compact_json import briefly

MAX_LEVELS = 150
"""Lists and objects within each other that a result or a request may hold."""

MAX_LOGGED_LEVELS = 175
"""The same of an event or an entry, which has some around those; a journal has a few more around its entries."""

_READ_LEVELS = 200


def is_too_deep(model: BaseModel, levels: int = MAX_LEVELS) -> bool:
    """Return whether a value has more lists and objects within each other, so that no journal could be read with it."""
    with briefly():
        text = model.model_dump_json(by_alias=True, exclude_none=True)
    if text.count("[") + text.count("{") <= levels:
        return False
    around = _READ_LEVELS - levels
    try:
        from_json(f"{'[' * around}{text}{']' * around}")
    except ValueError:
        return True
    return False
