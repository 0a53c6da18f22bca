"""Builds the fields of a form from the JSON schema of an answer, and the answer from filled fields. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.views.forms.declared import read_json
from perdure.views.forms.schema_check import choices_of, problem_of, resolved

Kind = Literal["text", "long text", "integer", "number", "boolean", "choice", "json", "group"]

_SHORT_TEXT = 120
"""Characters up to which a text is asked for on a single line."""
_DEPTH = 2
"""Objects within objects are fields down to here; below, they are asked for as JSON."""
_MANY = 60
"""Properties of an object that are too many for fields."""
_TYPES: dict[str, Kind] = {"integer": "integer", "number": "number", "boolean": "boolean"}


@dataclass(frozen=True)
class Field:
    """A field, or a group of them."""

    key: str
    """Its name in the form: a path of positions, since a property may have any name."""
    name: str
    """The property's name."""
    label: str
    kind: Kind
    required: bool
    nullable: bool = False
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """Of a choice: each value as JSON, and as it is shown."""
    default: str = ""
    """What stands in it at first."""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    root: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Where the schema's references point into."""
    inner: tuple[Field, ...] = ()
    """Of a group."""


class NotFilledIn(Exception):
    """Fields are empty or hold what they cannot."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        """Tell of the errors, by the field's key."""
        super().__init__(f"{len(errors)} fields")
        self.errors = dict(errors)


@dataclass(frozen=True)
class Form:
    """The fields of an answer."""

    fields: tuple[Field, ...]
    is_object: bool
    """The answer is an object of the fields; else it is the one field's value."""

    def read(self, given: Mapping[str, str]) -> Any:
        """Return the answer.

        Raises:
            NotFilledIn: Fields lack a value, or hold a wrong one.
        """
        errors: dict[str, str] = {}
        values = dict(_read_all(self.fields, given, errors))
        if errors:
            raise NotFilledIn(errors)
        return values if self.is_object else values.get("")


def form_of(schema: Mapping[str, Any] | None) -> Form | None:
    """Return the fields that a JSON schema asks for; `None` if it asks for nothing that fields can hold."""
    if not schema:
        return None
    reader = _Reader(schema)
    bare, nullable = reader.bare(schema)
    if bare.get("type") == "object" and not nullable:
        fields = reader.fields(bare, "f", 1)
        return Form(fields, is_object=True) if fields else None
    found = reader.field("f0", "", schema, required=True, depth=_DEPTH)
    return None if found.kind == "json" else Form((found,), is_object=False)


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def bare(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Return a schema without reference and without `null`, and whether it takes `null`."""
        nullable = False
        for _ in range(10):
            options = schema.get("anyOf") or schema.get("oneOf")
            if isinstance(schema.get("$ref"), str):
                schema = resolved(schema, self._root)
            elif isinstance(options, list):
                rest = [option for option in _mappings(options) if option.get("type") != "null"]  # pyright: ignore[reportUnknownArgumentType] -- JSON
                nullable |= len(rest) < len(options)  # pyright: ignore[reportUnknownArgumentType] -- JSON
                if len(rest) != 1:
                    return {key: schema[key] for key in ("title", "description", "default") if key in schema}, nullable
                schema = {**rest[0], **{key: schema[key] for key in schema if key not in ("anyOf", "oneOf")}}
            else:
                break
        return schema, nullable

    def fields(self, schema: Mapping[str, Any], key: str, depth: int) -> tuple[Field, ...]:
        properties: Any = schema.get("properties")
        required: Any = schema.get("required") or ()
        if not isinstance(properties, Mapping) or len(properties) > _MANY:  # pyright: ignore[reportUnknownArgumentType] -- JSON
            return ()
        named: list[tuple[str, Any]] = [(str(name), value) for name, value in properties.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType] -- JSON
        return tuple(
            self.field(f"{key}{index}", name, dict(value), required=name in required, depth=depth)  # pyright: ignore[reportUnknownArgumentType] -- JSON
            for index, (name, value) in enumerate(named)
            if isinstance(value, Mapping)
        )

    def field(self, key: str, name: str, schema: Mapping[str, Any], *, required: bool, depth: int) -> Field:
        bare, nullable = self.bare(schema)
        inner: tuple[Field, ...] = ()
        choices = _choices(bare)
        kind: Kind = "choice" if choices else _kind(bare)
        if bare.get("type") == "object" and depth < _DEPTH:
            inner = self.fields(bare, f"{key}_", depth + 1)
            kind = "group" if inner else "json"
        return Field(
            key=key,
            name=name,
            label=_label(name, schema.get("title") or (not name and bare.get("title"))),
            kind=kind,
            required=required,
            nullable=nullable,
            help=str(bare.get("description") or ""),
            choices=choices,
            default=_shown(bare["default"], kind) if bare.get("default") is not None else "",
            schema=bare,
            root=self._root,
            inner=inner,
        )


def _label(name: str, title: Any) -> str:
    """Return a field's label: the title that somebody gave it, or else its name in words."""
    if isinstance(title, str) and title and title != name.replace("_", " ").title():
        return title
    words = name.replace("_", " ").strip()
    return f"{words[:1].upper()}{words[1:]}" or "Answer"


def _mappings(values: list[Any]) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)]


def _choices(schema: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    shown = [value for value in choices_of(schema) or () if value is not None]
    return tuple(
        (json.dumps(value, ensure_ascii=False), value if isinstance(value, str) else json.dumps(value))
        for value in shown
    )


def _kind(schema: Mapping[str, Any]) -> Kind:
    found: Any = schema.get("type")
    if found == "string":
        longest = schema.get("maxLength")
        is_short = schema.get("format") is not None or (isinstance(longest, int) and longest <= _SHORT_TEXT)
        return "text" if is_short else "long text"
    return _TYPES.get(found, "json") if isinstance(found, str) else "json"


def _shown(value: Any, kind: Kind) -> str:
    if isinstance(value, str) and kind in ("text", "long text"):
        return value
    return json.dumps(value, ensure_ascii=False)


def _read_all(fields: tuple[Field, ...], given: Mapping[str, str], errors: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the values by their properties' names; what is wrong goes into `errors`."""
    for one in fields:
        if one.kind == "group":
            if not one.required and not any(given.get(inner.key, "").strip() for inner in one.inner):
                continue
            yield one.name, dict(_read_all(one.inner, given, errors))
            continue
        text = given.get(one.key, "").replace("\r\n", "\n")
        if not text.strip():
            if one.required and not one.nullable:
                errors[one.key] = "Give a value; it is required."
            elif one.required:
                yield one.name, None
            continue
        try:
            yield one.name, _value(one, text)
        except ValueError as error:
            errors[one.key] = str(error)


def _value(one: Field, text: str) -> Any:
    """Return a field's value.

    Raises:
        ValueError: It is none; the text says what is expected.
    """
    value = _parsed(one, text)
    problem = problem_of(value, one.schema, one.root)
    if problem is not None:
        raise ValueError(problem)
    return value


def _parsed(one: Field, text: str) -> Any:
    match one.kind:
        case "text" | "long text":
            return text
        case "integer" | "number":
            return _number(one, text.strip())
        case "boolean":
            if text not in ("true", "false"):
                raise ValueError("Choose yes or no.")
            return text == "true"
        case "choice":
            if text not in (value for value, _ in one.choices):
                raise ValueError("Choose one of the values.")
            return json.loads(text)
        case "json" | "group":
            return read_json(text)


def _number(one: Field, text: str) -> int | float:
    try:
        value: int | float = int(text) if one.kind == "integer" else float(text)
    except ValueError:
        what = "a whole number, such as 12" if one.kind == "integer" else "a number, such as 12.5"
        raise ValueError(f"Give {what}.") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("Give a number that is finite.")
    return value
