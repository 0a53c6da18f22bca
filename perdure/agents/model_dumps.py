"""Writes a pydantic model, or pydantic's dataclass, by its own serializer: as a rule once, since that is a user's code.

Pydantic's JSON has bytes as UTF-8 where they happen to be that, has NaN of fields without a type as null, and keeps
one of two keys that are equal as texts. So a model is dumped as Python values, for the caller to write; as JSON only
where it has a serializer that asks for that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

_CONTAINERS = (list, tuple, set, frozenset, deque)
_BYTES_OR_TIMES = ("ser_json_bytes", "ser_json_timedelta", "ser_json_temporal", "ser_json_inf_nan")
_NO_SCHEMAS = frozenset({"metadata", "cls", "default", "function", "members", "expected"})


class OneName(ValueError):
    """Two fields of a model are written under one name, of which pydantic would keep one."""


@dataclass(frozen=True)
class _Kind:
    """What is known of a model's class."""

    names: tuple[str, ...]
    """Names that its fields are written under; none where a serializer of its own writes the whole."""
    json_only: bool
    """It, or a model in it, has a serializer that is told of JSON, or alone for JSON; or a config for JSON."""
    own_bytes: bool
    """Its config says how bytes are written as JSON."""


@dataclass
class _Found:
    json_only: bool = False
    loses: bool = False
    """JSON as pydantic writes it would not hold a value."""


def is_model(kind: type[Any]) -> bool:
    """Return whether values of a class have a serializer of pydantic's."""
    return hasattr(kind, "__pydantic_serializer__")


def dump(value: Any, fallback: Callable[[Any], Any]) -> Any:
    """Return what a model's serializer makes of it: plain Python values, with what pydantic does not know left in.

    Args:
        value: A model, or a dataclass of pydantic's.
        fallback: Writes, in JSON, what pydantic does not know.

    Raises:
        OneName: Two of its fields, or of a model's in it, are written under one name.
        Exception: Its own code raised.
    """
    kind = cast("type[Any]", type(value))
    serializer: Any = kind.__pydantic_serializer__
    if not _has_fields(value):
        return serializer.to_python(value, mode="json", by_alias=True, fallback=fallback)
    found = _look(value)
    if not found.json_only:
        return serializer.to_python(value, mode="python", by_alias=True)
    own_bytes = _kind(kind).own_bytes
    if not found.loses:
        return serializer.to_python(value, mode="json", by_alias=True, fallback=fallback)
    dumped = serializer.to_python(value, mode="python", by_alias=True)
    if not own_bytes and _loses(dumped):
        return dumped
    return _with_numbers(serializer.to_python(value, mode="json", by_alias=True, fallback=fallback), dumped)


def _look(model: Any) -> _Found:
    """Look at what a model holds, without any code of a user's, and refuse two fields of one name."""
    found = _Found()
    seen: set[int] = set()
    left: list[Any] = [model]
    while left:
        value = left.pop()
        if isinstance(value, float):
            found.loses |= not math.isfinite(value)
            continue
        found.loses |= isinstance(value, bytes | bytearray)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value)
            found.loses |= _loses_keys(items)
            left += [*items, *items.values()]
        elif isinstance(value, _CONTAINERS):
            left += cast(Iterable[Any], value)
        elif _has_fields(value):
            kind, extra = _kind(type(value)), _extra(value)
            found.json_only |= kind.json_only
            names = (*kind.names, *extra) if kind.names else ()
            if len(set(names)) < len(names):
                raise OneName
            left += [*_fields(value), *extra.values()]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            left += _fields(value)
    return found


def _has_fields(value: Any) -> bool:
    """Return whether a value is a model or a dataclass of pydantic's, and no other that it knows, such as a URL."""
    return hasattr(cast(Any, type(value)), "__pydantic_core_schema__") and not isinstance(value, type)


def _extra(model: Any) -> Mapping[str, Any]:
    return getattr(model, "__pydantic_extra__", None) or {}


def _fields(value: Any) -> Iterator[Any]:
    if isinstance(value, BaseModel):
        held = value.__dict__
        yield from (held[name] for name in type(value).model_fields if name in held)
    else:
        yield from (getattr(value, field.name, None) for field in dataclasses.fields(value))


@functools.lru_cache(maxsize=256)
def _kind(kind: type[Any]) -> _Kind:
    schema: Any = kind.__pydantic_core_schema__
    own = _own_schema(schema)
    names = () if "serialization" in own else tuple(_names(own.get("schema", {})))
    return _Kind(names, _is_json_only(schema), "ser_json_bytes" in own.get("config", {}))


def _own_schema(schema: Any) -> Any:
    """Return the part of a class's schema that is the model's or dataclass's; others around it validate."""
    referred: dict[str, Any] = {each["ref"]: each for each in schema.get("definitions", ()) if "ref" in each}
    while schema["type"] not in ("model", "dataclass"):
        inner: Any = referred.get(schema.get("schema_ref", ""), schema.get("schema"))
        if inner is None:
            return {}
        schema = inner
    return schema


def _names(fields: Any) -> Iterator[str]:
    """Return the names that the fields of a model or a dataclass are written under."""
    while "schema" in fields:
        # What validates it stands around it.
        fields = fields["schema"]
    listed: Any = fields.get("fields", ())
    if isinstance(listed, dict):
        listed = [{"name": name, **field} for name, field in cast("dict[str, Any]", listed).items()]
    for field in cast("Sequence[Any]", listed):
        if not field.get("serialization_exclude") and "serialization_exclude_if" not in field:
            yield field.get("serialization_alias", field["name"])
    for field in fields.get("computed_fields", ()):
        yield field.get("alias", field["property_name"])


def _is_json_only(schema: Any) -> bool:
    if isinstance(schema, dict):
        found = cast("dict[str, Any]", schema)
        if any(word in found.get("config", {}) for word in _BYTES_OR_TIMES):
            return True
        serialization: Any = found.get("serialization", {})
        if serialization.get("type") in ("function-plain", "function-wrap") and (
            serialization.get("info_arg") or serialization.get("when_used", "always").startswith("json")
        ):
            return True
        # Without a type it is no schema, but several, under the names of fields.
        skipped: frozenset[str] = _NO_SCHEMAS if isinstance(found.get("type"), str) else frozenset()
        return any(_is_json_only(value) for key, value in found.items() if key not in skipped)
    if isinstance(schema, list | tuple):
        return any(map(_is_json_only, cast(Sequence[Any], schema)))
    return False


def _loses_keys(items: Mapping[Any, Any]) -> bool:
    """Return whether pydantic's JSON would keep one of two keys, or write half of a character as another one."""
    if all(type(key) is str and key.isascii() for key in items):
        return False
    texts = {key if isinstance(key, str) else str(key) for key in items}
    return len(texts) < len(items) or any(text != text.encode(errors="replace").decode() for text in texts)


def _loses(dumped: Any) -> bool:
    """Return whether pydantic's JSON of a model would depend on bytes' values, or keep one of two keys."""
    if isinstance(dumped, bytes | bytearray):
        return True
    if isinstance(dumped, Mapping):
        items = cast(Mapping[Any, Any], dumped)
        return _loses_keys(items) or any(map(_loses, items.values()))
    return any(map(_loses, cast(Iterable[Any], dumped))) if isinstance(dumped, _CONTAINERS) else False


def _with_numbers(written: Any, dumped: Any) -> Any:
    """Return pydantic's JSON of a model with the numbers that it has as null, where it knows no type of a field."""
    if written is None:
        return dumped if isinstance(dumped, float) and not math.isfinite(dumped) else None
    if isinstance(written, dict) and isinstance(dumped, Mapping):
        found, values = cast("dict[Any, Any]", written), cast(Mapping[Any, Any], dumped).values()
        if len(found) == len(values):
            return {key: _with_numbers(one, other) for (key, one), other in zip(found.items(), values, strict=True)}
    elif isinstance(written, list) and isinstance(dumped, _CONTAINERS):
        items, others = cast("list[Any]", written), cast("Sequence[Any]", dumped)
        if len(items) == len(others):
            return [_with_numbers(one, other) for one, other in zip(items, others, strict=True)]
    return cast(Any, written)
