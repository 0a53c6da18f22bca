"""Checks a JSON value against the JSON schema of an answer. Pure.

It knows what types of Python say in a schema: types, choices, limits, patterns, fields, items and unions. Anything else
in a schema is let pass, since a form helps a person and does not guard the session.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

Schema = Mapping[str, Any]

_MOST_UNIONS = 8
"""Unions within unions that are looked into; a type may be a union with itself."""

_TYPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "array": (lambda value: isinstance(value, list), "a list, such as [1, 2]"),
    "object": (lambda value: isinstance(value, dict), 'an object, such as {"key": "value"}'),
    "string": (lambda value: isinstance(value, str), 'a text in quotes, such as "yes"'),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "integer": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number, such as 12"),
    "number": (lambda value: is_number(value), "a number, such as 12.5"),
    "null": (lambda value: value is None, "null"),
}
_LIMITS: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "maximum": (operator.le, "at most"),
    "exclusiveMinimum": (operator.gt, "more than"),
    "exclusiveMaximum": (operator.lt, "less than"),
}


def is_number(value: Any) -> bool:
    """Return whether a value is a number that JSON has."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def problem_of(value: Any, schema: Schema, root: Schema | None = None, unions: int = 0) -> str | None:
    """Return what keeps a value from being of a schema, as a sentence that says what to give; `None` if it is of it.

    Args:
        value: JSON.
        schema: The schema.
        root: Where the schema's references point into. Default: the schema itself.
        unions: How many unions it stands in.
    """
    root = schema if root is None else root
    schema = resolved(schema, root)
    if options := _all_of(schema, "anyOf", "oneOf"):
        found = _problem_of_union(value, options, root, unions)
        if found is not None:
            return found
    return next(_problems(value, schema, root), None)


def resolved(schema: Schema, root: Schema) -> Schema:
    """Return a schema with what its reference points to; what points nowhere takes anything."""
    for _ in range(10):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        found: Any = root
        for part in reference.removeprefix("#/").split("/") if reference != "#" else ():
            found = cast("Schema", found).get(part) if isinstance(found, Mapping) else None
        named = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        schema = {**named, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _problem_of_union(value: Any, options: list[Schema], root: Schema, unions: int) -> str | None:
    if unions >= _MOST_UNIONS:
        return None
    found = [problem_of(value, option, root, unions + 1) for option in options]
    if None in found:
        return None
    telling = [
        text for text, option in zip(found, options, strict=True) if resolved(option, root).get("type") != "null"
    ]
    return telling[0] if len(telling) == 1 else "Give a value of one of its types."


def _problems(value: Any, schema: Schema, root: Schema) -> Iterator[str]:
    expected: Any = schema.get("type")
    names = cast("list[Any]", expected) if isinstance(expected, list) else [expected]
    kinds = [_TYPES[name] for name in names if isinstance(name, str) and name in _TYPES]
    choices = choices_of(schema)
    chosen = any(_same(value, choice) for choice in choices or ())
    # Of what is listed the type is not asked: 2.0 is the choice 2, as pydantic takes it.
    if kinds and not chosen and not any(holds(value) for holds, _ in kinds):
        yield f"Give {' or '.join(words for _, words in kinds)}."
        return
    if choices is not None and not chosen:
        yield "Choose one of the values."
    match value:
        case str():
            yield from _problems_of_text(value, schema)
        case dict():
            yield from _problems_of_object(cast("dict[str, Any]", value), schema, root)
        case list():
            yield from _problems_of_list(cast("list[Any]", value), schema, root)
        case _ if is_number(value):
            yield from _problems_of_number(value, schema)
        case _:
            pass


def choices_of(schema: Schema) -> list[Any] | None:
    """Return the values that a schema lists; `None` if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values: Any = schema.get("enum")
    return cast("list[Any]", values) if isinstance(values, list) else None


def _same(one: Any, other: Any) -> bool:
    if is_number(one) and is_number(other):
        return one == other
    # For Python 1 is True.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _problems_of_text(text: str, schema: Schema) -> Iterator[str]:
    least, most, pattern = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if isinstance(least, int) and len(text) < least:
        yield f"Give {least} characters at least; it has {len(text)}."
    if isinstance(most, int) and len(text) > most:
        yield f"Give {most} characters at the most; it has {len(text)}."
    if isinstance(pattern, str) and not _has_form(pattern, text):
        yield f"It does not have the form {pattern}."


def _has_form(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        # JSON schemas have ECMAScript's expressions, some of which Python does not know.
        return True


def _problems_of_number(value: float, schema: Schema) -> Iterator[str]:
    for name, (holds, words) in _LIMITS.items():
        limit = schema.get(name)
        if is_number(limit) and not holds(value, cast("float", limit)):
            yield f"Give a number that is {words} {limit}."


def _problems_of_object(value: dict[str, Any], schema: Schema, root: Schema) -> Iterator[str]:
    required: Any = schema.get("required")
    properties: Any = schema.get("properties")
    others: Any = schema.get("additionalProperties")
    named = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
    for name in cast("list[Any]", required) if isinstance(required, list) else ():
        if name not in value:
            yield f"Give {name!r}; it is required."
    for name, inner in value.items():
        of = named.get(name, others)
        if of is False:
            yield f"{name!r} is none of its fields: {', '.join(named)}."
        elif isinstance(of, Mapping) and (found := problem_of(inner, cast("Schema", of), root)) is not None:
            yield f"{name}: {found}"


def _problems_of_list(value: list[Any], schema: Schema, root: Schema) -> Iterator[str]:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if isinstance(least, int) and len(value) < least:
        yield f"Give {least} items at least; it has {len(value)}."
    if isinstance(most, int) and len(value) > most:
        yield f"Give {most} items at the most; it has {len(value)}."
    first, rest = _all_of(schema, "prefixItems"), schema.get("items")
    for number, inner in enumerate(value):
        of = first[number] if number < len(first) else rest
        if isinstance(of, Mapping) and (found := problem_of(inner, cast("Schema", of), root)) is not None:
            yield f"item {number + 1}: {found}"


def _all_of(schema: Schema, *keys: str) -> list[Schema]:
    """Return the schemas that stand in lists under some keys."""
    found: list[Any] = []
    for key in keys:
        value: Any = schema.get(key)
        found += cast("list[Any]", value) if isinstance(value, list) else []
    return [one for one in found if isinstance(one, Mapping)]
