"""Reads a tool function's signature: what a model is told of it, and how the model's arguments become Python values."""

from __future__ import annotations

import functools
import inspect
import types as python_types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.genai import types
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.agents.context import ToolContext
from perdure.errors import DefinitionError, InvalidArguments

_CONTEXT_NAME = "tool_context"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Parameter:
    """A parameter that the model fills in."""

    name: str
    annotation: Any
    """The resolved annotation; `Any` without one."""
    adapter: TypeAdapter[Any]
    required: bool
    default: Any = None


@dataclass(frozen=True)
class Signature:
    """What a function takes."""

    parameters: tuple[Parameter, ...]
    context: str | None
    """Name of the parameter that takes the `ToolContext`."""
    accepts_any: bool
    """It has `**kwargs`."""


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of another callable, as ADK names tools."""
    return getattr(function, "__name__", None) or type(function).__name__


def function_doc(function: Callable[..., Any]) -> str:
    """Return a function's docstring without its indentation; empty if it has none."""
    doc = function.__doc__
    if not doc and not inspect.isroutine(function):
        doc = type(function).__call__.__doc__
    return inspect.cleandoc(doc or "")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def read_signature(function: Callable[..., Any], where: str) -> Signature:
    """Return what a function takes.

    Args:
        function: A function, a method, or an object that can be called.
        where: What the function is, for errors: `tool 'search'`.

    Raises:
        DefinitionError: A parameter's type cannot be declared to a model.
    """
    if isinstance(function, functools.partial):
        raise DefinitionError(f"{where}: a functools.partial has no name for the model; write a function around it")
    target = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise DefinitionError(f"{where} is a generator, but a tool gives one result; return a list instead")
    try:
        found = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"{where} has no signature to declare ({error}); write a function around it") from error
    namespace = getattr(inspect.unwrap(target), "__globals__", {})
    context = _context_parameter(found, namespace)
    return Signature(
        parameters=tuple(
            _parameter(parameter, namespace, where)
            for parameter in found.parameters.values()
            if parameter.name != context and parameter.kind not in _VARIADIC
        ),
        context=context,
        accepts_any=any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.parameters.values()),
    )


def declare(name: str, doc: str, parameters: tuple[Parameter, ...]) -> types.FunctionDeclaration:
    """Return what a model is told of a function, by google-genai's own schema generation."""

    def stand_in() -> None: ...

    stand_in.__name__, stand_in.__doc__ = name, doc
    stand_in.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    stand_in.__dict__["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=parameter.annotation,
                default=_declared_default(parameter),
            )
            for parameter in parameters
        ]
    )
    declaration = types.FunctionDeclaration.from_callable_with_api_option(
        callable=stand_in, api_option="GEMINI_API", use_json_schema=True
    )
    schema = declaration.parameters_json_schema
    if schema is not None:
        # google-genai takes a parameter of any type for optional.
        schema["required"] = [parameter.name for parameter in parameters if parameter.required]
    return declaration


def schema_of(answer: Any, where: str) -> dict[str, Any]:
    """Return the JSON schema of a type.

    Raises:
        DefinitionError: It has none.
    """
    try:
        return TypeAdapter[Any](answer).json_schema()
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise DefinitionError(
            f"{where}: response is {inspect.formatannotation(answer)}, which has no JSON schema; give a pydantic model,"
            " a TypedDict, or a type such as bool or Literal"
        ) from error


def convert(parameters: tuple[Parameter, ...], args: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a model's arguments as the function takes them; what it does not take is dropped. ADK: `function_tool.py`.

    Raises:
        InvalidArguments: A mandatory one is missing, or one does not fit its annotation.
    """
    missing = [parameter.name for parameter in parameters if parameter.required and parameter.name not in args]
    if missing:
        names = "\n".join(missing)
        raise InvalidArguments(
            f"Invoking `{name}()` failed as the following mandatory input parameters are not present:\n{names}\n"
            "Call it again with a value for each of them."
        )
    values: dict[str, Any] = {}
    problems: list[str] = []
    for parameter in parameters:
        if parameter.name not in args:
            continue
        try:
            values[parameter.name] = parameter.adapter.validate_python(args[parameter.name])
        except ValidationError as error:
            problems.extend(_explain(parameter.name, error))
    if problems:
        listed = "\n".join(problems)
        raise InvalidArguments(
            f"Invoking `{name}()` failed as the following input parameters have the wrong form:\n{listed}\n"
            "Call it again with values of the declared types."
        )
    return values


def _context_parameter(signature: inspect.Signature, namespace: dict[str, Any]) -> str | None:
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        if isinstance(annotation, str) and annotation.split("|")[0].strip().endswith(ToolContext.__name__):
            # It may be imported for type checkers only.
            return parameter.name
        try:
            annotation = _resolve(parameter, namespace)
        except (NameError, TypeError, AttributeError, SyntaxError):
            continue
        is_union = typing.get_origin(annotation) in (typing.Union, python_types.UnionType)
        for option in typing.get_args(annotation) if is_union else (annotation,):
            if inspect.isclass(option) and issubclass(option, ToolContext):
                return parameter.name
    return _CONTEXT_NAME if _CONTEXT_NAME in signature.parameters else None


def _resolve(parameter: inspect.Parameter, namespace: dict[str, Any]) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    holder = python_types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    return typing.get_type_hints(holder, globalns=namespace, include_extras=True)[parameter.name]


def _parameter(parameter: inspect.Parameter, namespace: dict[str, Any], where: str) -> Parameter:
    name = parameter.name
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise DefinitionError(f"{where}: parameter {name!r} is positional-only, but a model names its arguments")
    try:
        annotation = _resolve(parameter, namespace)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise DefinitionError(
            f"{where}: parameter {name!r} has an annotation {parameter.annotation!r} that cannot be resolved "
            f"({error}); import the type at module level, not under TYPE_CHECKING"
        ) from error
    required = parameter.default is inspect.Parameter.empty
    try:
        adapter = TypeAdapter[Any](annotation)
        found = Parameter(name, annotation, adapter, required, None if required else parameter.default)
        # By itself, so that the error can name it.
        declare("check", "", (found,))
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise DefinitionError(
            f"{where}: parameter {name!r} has the type {inspect.formatannotation(annotation)}, which cannot be "
            "declared to a model; use str, int, float, bool, list, dict, Literal, an Enum, a datetime or a pydantic "
            "model, or annotate it ToolContext if it is the context"
        ) from error
    return found


def _declared_default(parameter: Parameter) -> Any:
    if parameter.required or parameter.default is None:
        return inspect.Parameter.empty
    try:
        return to_jsonable_python(parameter.default)
    except PydanticSerializationError:
        # The model does not need it: the parameter is not required, and the function has it.
        return inspect.Parameter.empty


def _explain(name: str, error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(map(str, (name, *problem['loc'])))}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False)
    ]
