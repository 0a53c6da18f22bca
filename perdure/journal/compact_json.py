"""Leaves fields that say nothing out of what Temporal stores, and only there: readers get ADK's JSON whole.

A field of a model is declared `exclude_if=unsaid`; it is then left out while `briefly()` is on, if its value is empty.
Only for fields whose default is that empty value, so that leaving it out and reading it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_BRIEF: ContextVar[bool] = ContextVar("perdure_brief", default=False)


@contextmanager
def briefly() -> Generator[None]:
    """Leave fields that say nothing out of the JSON that is made inside."""
    token = _BRIEF.set(True)
    try:
        yield
    finally:
        _BRIEF.reset(token)


def is_brief() -> bool:
    """Return whether fields that say nothing are left out now."""
    return _BRIEF.get()


def unsaid(value: Any) -> bool:
    """Return whether a field of this value is to be left out now: it is empty, zero or false."""
    return not value and _BRIEF.get()


def unsaid_none(value: Any) -> bool:
    """Return whether a field whose default is `None`, and may be any JSON, is to be left out now."""
    return value is None and _BRIEF.get()


def unsaid_one(value: int) -> bool:
    """Return whether a field whose default is 1 is to be left out now."""
    return value == 1 and _BRIEF.get()
