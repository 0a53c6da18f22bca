"""Leaves fields that say nothing out of what Temporal stores, and only there: readers get ADK's JSON whole.

A field of a model is declared `exclude_if=unsaid`; it is then left out while `briefly()` is on, if its value is empty.
Only for fields whose default is that empty value, so that leaving it out and reading it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import local
from typing import Any

from pydantic import BaseModel


class _Thread(local):
    """Whether this thread makes brief JSON now; no context variable, as CPython 3.11 may crash where one is set often.

    There garbage collection runs inside of `ContextVar.set`, and what it ends may set one too (cpython #148891).
    """

    brief = False


_THREAD = _Thread()


@contextmanager
def briefly() -> Generator[None]:
    """Leave fields that say nothing out of the JSON that is made inside, which awaits nothing."""
    before, _THREAD.brief = _THREAD.brief, True
    try:
        yield
    finally:
        _THREAD.brief = before


def is_brief() -> bool:
    """Return whether fields that say nothing are left out now."""
    return _THREAD.brief


def unsaid(value: Any) -> bool:
    """Return whether a field of this value is to be left out now: it is empty, zero or false."""
    return not value and _THREAD.brief


def unsaid_none(value: Any) -> bool:
    """Return whether a field whose default is `None`, and may be any JSON, is to be left out now."""
    return value is None and _THREAD.brief


def unsaid_one(value: int) -> bool:
    """Return whether a field whose default is 1 is to be left out now."""
    return value == 1 and _THREAD.brief


def payload_bytes(model: BaseModel) -> bytes:
    """Return a value as it stands in a payload.

    Raises:
        PydanticSerializationError: It is no JSON: text may hold half of a character (a lone surrogate).
    """
    with briefly():
        return model.model_dump_json(by_alias=True, exclude_none=True).encode()


def payload_size(model: BaseModel) -> int:
    """Return the bytes that a value takes in a payload; text that is not ASCII takes more of them than characters."""
    return len(payload_bytes(model))
