"""Declares functions by pydantic: the JSON schema that a model is told, and the arguments that a function gets.

Both come from one schema of pydantic's, made as `validate_call` makes it. It is fitted to calls that arrive as JSON in
three places: bytes are base64, an iterable is read to its end, and an enum's member is known by its value.
"""

from __future__ import annotations

import enum
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, cast, get_args, get_origin

from pydantic import ConfigDict, EncodedBytes, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import (
    CoreConfig,
    PydanticSerializationError,
    SchemaValidator,
    core_schema,
    to_json,
    to_jsonable_python,
)

_CONFIG = ConfigDict(val_json_bytes="base64", validate_by_name=True, validate_by_alias=True)
_CORE_CONFIG = CoreConfig(val_json_bytes="base64", validate_by_name=True, validate_by_alias=True)

_REST = "perdure_rest"
"""Takes what a function without `**kwargs` does not."""

_BASE64 = "perdure:base64"
"""Marks, in the metadata of a schema, bytes that are read from base64."""

_PLAIN = frozenset({"metadata", "serialization", "config", "default", "cls", "function", "members"})
"""Parts of a schema that hold no schema."""

_NUMBERS = frozenset({"default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "examples"})
"""Words of JSON schema whose values may be numbers that are none in JSON."""

_MAX_REASON = 300


@dataclass(frozen=True)
class Arguments:
    """Declares and converts a function's arguments."""

    declared: dict[str, Any]
    """JSON schema of an object that has them as properties."""
    names: tuple[str, ...]
    """Names of the parameters, `**kwargs` left out."""
    keywords: bool
    """It has `**kwargs`."""
    _validator: SchemaValidator

    def convert(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments, made of JSON as a model gave it; defaults are filled in, each call has its own.

        Raises:
            ValidationError: They do not fit.
            pydantic_core.PydanticSerializationError: They are no JSON.
        """
        # As JSON, since that is what they are: a date may be strict, and is a text all the same.
        found = self._validator.validate_json(to_json(args, inf_nan_mode="constants", bytes_mode="base64"))
        return found if self.keywords else {name: found[name] for name in self.names if name in found}


def arguments(parameters: Sequence[inspect.Parameter]) -> Arguments:
    """Return the declaration of parameters with resolved annotations.

    Raises:
        Exception: They cannot be declared; of many types, since a user's own type may have a hook that raises any.
    """

    def stand_in(**values: Any) -> dict[str, Any]:
        return values

    keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    rest = () if keywords else (inspect.Parameter(_REST, inspect.Parameter.VAR_KEYWORD),)
    given = [_keyword(parameter) for parameter in parameters]
    stand_in.__dict__["__signature__"] = inspect.Signature([*given, *rest])
    stand_in.__annotations__ = {parameter.name: parameter.annotation for parameter in given}
    schema = _for_calls(cast(Any, TypeAdapter[Any](cast(Any, stand_in), config=_CONFIG).core_schema))
    declared = _finite(_Declaring().generate(schema))
    for each in declared["properties"].values():
        if each.get("default", ...) is None:
            # It says no more than that the parameter is not required.
            del each["default"]
    if not keywords:
        # What the function does not know is dropped.
        declared.pop("additionalProperties", None)
    names = tuple(parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)
    return Arguments(declared, names, keywords, SchemaValidator(schema, _CORE_CONFIG))


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, with the titles that forms show; raises as `arguments` does."""
    return _finite(TypeAdapter[Any](annotation).json_schema())


def declared_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of a type in the words that models are told; raises as `arguments` does."""
    return _finite(_Declaring().generate(cast(Any, TypeAdapter[Any](annotation).core_schema)))


def _finite(schema: Any) -> Any:
    """Return a schema without infinity and NaN as a default or a limit: JSON, and so providers, has none of them.

    Nothing is lost: no limit is what an infinite one says, and the function has its default.
    """
    if isinstance(schema, dict):
        words = cast(dict[str, Any], schema).items()
        return {word: _finite(value) for word, value in words if word not in _NUMBERS or _is_finite(value)}
    return [_finite(one) for one in cast("list[Any]", schema)] if isinstance(schema, list) else schema


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, cast(dict[Any, Any], value).values()))
    if isinstance(value, list):
        return all(map(_is_finite, cast("list[Any]", value)))
    return not isinstance(value, float) or math.isfinite(value)


def reason_of(error: Exception) -> str:
    """Return why pydantic refuses a type, without its advice, which is for who writes models."""
    text = str(error)
    # Of a schema that cannot be built, the last line says why; the others, where.
    lines = text.splitlines()[-1:] if type(error).__name__ == "SchemaError" else re.split(r"\. Set |\n\n", text)[:1]
    return " ".join(" ".join(lines).split())[:_MAX_REASON] or type(error).__name__


def problems_of(error: ValidationError, most: int) -> list[tuple[tuple[int | str, ...], str, str]]:
    """Return place, kind and words of the first problems that pydantic found."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [(problem["loc"], problem["type"], problem["msg"]) for problem in found[:most]]


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as a model fills it in: by name, and with null where `None` is the default."""
    if parameter.kind is parameter.VAR_KEYWORD:
        return parameter
    annotation = parameter.annotation
    pieces: list[Any] = list(get_args(annotation)) if get_origin(annotation) is Annotated else [annotation]
    fields = [piece for piece in pieces[1:] if isinstance(piece, FieldInfo)]
    given = [one.default for one in (parameter.default, *fields) if isinstance(one, FieldInfo)]
    if any(one is None for one in (parameter.default, *given)) and annotation is not Any:
        rules = [piece for piece in pieces[1:] if not isinstance(piece, FieldInfo)]
        # What checks a value has nothing to say to null, yet the outermost alone can have another name.
        inner = Annotated[(pieces[0], *rules)] if rules else pieces[0]
        annotation = Annotated[(Optional[inner], *fields)] if fields else Optional[inner]  # noqa: UP045 -- any type
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=annotation)


def _for_calls(schema: Any) -> Any:
    """Return a schema of pydantic's as it suits arguments that arrive as JSON; it is pydantic's own otherwise."""
    kind = schema["type"]
    if _is_model(schema):
        # It reads what belongs to it by its own rules.
        _check_no_iterators(schema, schema["cls"])
        return schema
    if kind == "generator":
        return _for_calls({**schema, "type": "list"})
    if kind == "bytes":
        return {**schema, "metadata": {**schema.get("metadata", {}), _BASE64: True}}
    if kind == "literal":
        return _literal(schema)
    if kind == "enum":
        return _by_json(schema)
    if kind == "function-after" and isinstance(getattr(schema["function"]["function"], "__self__", None), EncodedBytes):
        # It decodes by itself, and wants the text.
        return {**schema, "schema": core_schema.no_info_after_validator_function(str.encode, core_schema.str_schema())}
    return {key: value if key in _PLAIN else _each(value) for key, value in schema.items()}


def _each(value: Any) -> Any:
    """Return a part of a schema, with the schemas that are in it, by name or one by one, fitted to calls."""
    if isinstance(value, dict):
        found = cast(dict[str, Any], value)
        if isinstance(found.get("type"), str):
            return _for_calls(found)
        return {key: _each(one) for key, one in found.items()}
    if isinstance(value, list | tuple):
        each = [_each(one) for one in cast(Sequence[Any], value)]
        return tuple(each) if isinstance(value, tuple) else each
    return value


def _literal(schema: Any) -> Any:
    members = [one for one in schema["expected"] if isinstance(one, enum.Enum)]
    if not members:
        return schema
    classes = dict.fromkeys(map(type, members))
    choices: list[Any] = [core_schema.enum_schema(cls, [one for one in members if type(one) is cls]) for cls in classes]
    choices = [_by_json(choice) for choice in choices]
    others = [one for one in schema["expected"] if not isinstance(one, enum.Enum)]
    return core_schema.union_schema([*([core_schema.literal_schema(others)] if others else []), *choices])


def _by_json(schema: Any) -> Any:
    """Return an enum's schema that knows members, too, whose values are none of JSON, by what is declared of them."""
    odd = [one for one in schema["members"] if not isinstance(one.value, str | int | float | None)]
    if not odd:
        return schema
    members = {to_json(one.value): one for one in reversed(odd)}

    def member(value: Any) -> Any:
        return members.get(to_json(value), value)

    return core_schema.no_info_before_validator_function(member, schema)


def _is_model(schema: Any) -> bool:
    """Return whether a schema is that of a model or dataclass of pydantic's."""
    cls = schema.get("cls")
    return isinstance(cls, type) and "__pydantic_validator__" in vars(cls)


def _check_no_iterators(schema: Any, owner: type) -> None:
    if isinstance(schema, dict):
        found = cast(dict[str, Any], schema)
        owner = found["cls"] if _is_model(found) else owner
        if found.get("type") == "generator":
            raise TypeError(
                f"{owner.__name__} has a field of the type Iterable, which pydantic reads when the tool does, and once;"
                " make it a list or a Sequence"
            )
        for value in (value for key, value in found.items() if key not in _PLAIN):
            _check_no_iterators(value, owner)
    elif isinstance(schema, list | tuple):
        for value in cast(Sequence[Any], schema):
            _check_no_iterators(value, owner)


def _stands_in(value: Any, values: list[Any]) -> bool:
    """Return whether a value is among others, where true is not 1."""
    return any(one == value and type(one) is type(value) for one in values)


class _Declaring(GenerateJsonSchema):
    """Pydantic's JSON schema, in the words that providers take, and whole: what it would leave out is an error."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind == "skipped-choice":
            raise PydanticInvalidForJsonSchema(detail)
        # A default that is no JSON need not be told: the function has it.

    def encode_default(self, dft: Any) -> Any:
        modes: tuple[Literal["constants", "null"], ...] = ("constants", "null")
        if len({to_json(dft, bytes_mode="base64", inf_nan_mode=mode) for mode in modes}) > 1:
            raise PydanticSerializationError("it has a number that JSON has not")
        return to_jsonable_python(dft, bytes_mode="base64") if isinstance(dft, bytes) else super().encode_default(dft)

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        found = super().bytes_schema(schema)
        return {**found, "format": "base64"} if _BASE64 in schema.get("metadata", {}) else found

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        odd = [one for one in schema["expected"] if isinstance(one, bytes)]
        if odd:
            return self.handle_invalid_for_json_schema(schema, f"with {odd[0]!r}: JSON has no bytes; make it a text")
        found = super().literal_schema(schema)
        if "const" in found:
            # Gemini knows no `const`.
            found["enum"] = [found.pop("const")]
        return found

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        if not schema["members"]:
            raise PydanticInvalidForJsonSchema(f"{schema['cls'].__name__} has no members")
        found = super().enum_schema(schema)
        if "enum" in found:
            # An alias is another name of a member, and providers refuse a value that stands there twice.
            found["enum"] = [
                one for index, one in enumerate(found["enum"]) if not _stands_in(one, found["enum"][:index])
            ]
        return found

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "of a class: JSON has none")

    def arguments_schema(self, schema: core_schema.ArgumentsSchema) -> JsonSchemaValue:
        if schema.get("var_kwargs_mode") != "unpacked-typed-dict":
            declared = super().arguments_schema(schema)
            if schema.get("var_kwargs_mode") == "uniform":
                declared.setdefault("additionalProperties", True)
            return declared
        declared = self.kw_arguments_schema(schema["arguments_schema"], None)
        unpacked = self.generate_inner(cast(Any, schema.get("var_kwargs_schema")))
        if "$ref" in unpacked:
            unpacked = self.get_schema_from_definitions(unpacked["$ref"]) or {}
        properties = {**declared["properties"], **unpacked.get("properties", {})}
        required = [*declared.get("required", ()), *unpacked.get("required", ())]
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}
