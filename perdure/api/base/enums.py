"""Refuses unknown names where google-genai's types know a set of them, and more parts than a content may have.

Those types take any text for a name, and write a warning with it, with which a sender could fill a log.
On anything but a text they fail. https://github.com/googleapis/python-genai/blob/main/google/genai/_common.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, cast, get_args

from google.genai import types
from pydantic import BaseModel, BeforeValidator

from perdure.journal.events import Event

__all__ = ["MAX_PARTS", "ClientContent", "ClientEvent", "check_names"]

MAX_PARTS = 1000
"""Parts of one content; they are checked one by one, and be they empty."""

_Kind = type[BaseModel] | type[Enum]


def check_names(kind: type[BaseModel], value: Any) -> Any:
    """Check, and return, a value that is to become one of google-genai's, or one that holds such values.

    Raises:
        ValueError: It holds a name that none of the set has, or too many parts.
    """
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        if issubclass(kind, types.Content):
            _check_number(given.get("parts"))
        for key, kinds in _fields(kind).items():
            for item in _items(given.get(key)):
                _check(key, item, kinds)
        return given
    return value


def _check_number(parts: Any) -> None:
    if isinstance(parts, list) and len(cast("list[Any]", parts)) > MAX_PARTS:
        raise ValueError(f"a content may have {MAX_PARTS} parts, and this one has {len(cast('list[Any]', parts))}")


def _check(key: str, item: Any, kinds: tuple[_Kind, ...]) -> None:
    for kind in kinds:
        if issubclass(kind, BaseModel):
            check_names(kind, item)
        elif not isinstance(item, str) or not {item, item.upper(), item.lower()} & kind.__members__.keys():
            raise ValueError(f"{key} is none of {', '.join(kind.__members__)}")


@cache
def _fields(kind: type[BaseModel]) -> Mapping[str, tuple[_Kind, ...]]:
    """Return the fields, by each of their names, that hold names of a set, or values that may."""
    found = {
        key: tuple(_kinds(field.annotation)) for name, field in kind.model_fields.items() for key in (name, field.alias)
    }
    return {key: kinds for key, kinds in found.items() if key is not None and kinds}


def _kinds(annotation: Any) -> Iterator[_Kind]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Enum):
        yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)


def _items(value: Any) -> Iterator[Any]:
    """Yield a field's value, or those in its list; nothing for none."""
    if isinstance(value, list):
        yield from (item for item in cast("list[Any]", value) if item is not None)
    elif value is not None:
        yield value


def _content(value: Any) -> Any:
    return check_names(types.Content, value)


def _event(value: Any) -> Any:
    return check_names(Event, value)


ClientContent = Annotated[types.Content, BeforeValidator(_content)]
"""A content that a client sends."""

ClientEvent = Annotated[Event, BeforeValidator(_event)]
"""An event that a client sends."""
