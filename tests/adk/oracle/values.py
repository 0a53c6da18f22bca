"""JSON as the API sends it: fields that are missing, null or empty are all the same here."""

from __future__ import annotations

from typing import Any, cast

Json = dict[str, Any]

EMPTY: tuple[Any, ...] = ({}, [], None)
"""What says nothing in an event."""


def one(value: Json, key: str) -> Json:
    """Return the object under a key; an empty one if there is none."""
    return value.get(key) or {}


def many(value: Json, key: str) -> list[Json]:
    """Return the objects under a key; none if there are none."""
    return value.get(key) or []


def parts(event: Json) -> list[Json]:
    """Return the parts of an event's content."""
    return many(one(event, "content"), "parts")


def filled(value: Json) -> Json:
    """Return an object less its fields that say nothing."""
    return {key: item for key, item in value.items() if item not in EMPTY}


def as_object(value: Any) -> Json | None:
    """Return a value if it is an object."""
    return cast("Json", value) if isinstance(value, dict) else None


def as_list(value: Any) -> list[Any] | None:
    """Return a value if it is a list."""
    return cast("list[Any]", value) if isinstance(value, list) else None
