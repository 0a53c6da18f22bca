"""Reads a tool function's signature: a declaration for the model, and conversion of the model's arguments."""

from __future__ import annotations

import functools
import inspect
import re
import types as python_types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from google.genai import types
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from perdure.agents.context import ToolContext
from perdure.agents.declaration import Arguments, arguments, json_schema, problems_of, reason_of
from perdure.agents.plain_values import is_small_json
from perdure.errors import DefinitionError, InvalidArguments, error_text, shortened

_CONTEXT_NAME = "tool_context"
_CONTEXT = re.compile(rf"(?<![\w\"'])(?:\w+\.)*{ToolContext.__name__}(?!\w)")

_UNRESOLVED = (NameError, TypeError, AttributeError, SyntaxError)

_JSON_TYPES = (Any, str, int, float, bool, type(None), list, dict)

_MOST_PROBLEMS = 20
"""Places of wrong arguments that a model is told; a list of a thousand may have as many."""


@dataclass(frozen=True)
class Signature:
    """The parameters of a function that a model may call."""

    arguments: Arguments
    """What the model fills in."""
    context: str | None
    """Name of the parameter that takes the `ToolContext`."""
    taken: frozenset[str]
    """Names that are the function's own, such as `self`, and that no `**kwargs` may hold."""
    may_run_users_code: bool = True
    """To convert arguments may run code of the user's: a type, or a default, is not one of JSON's."""


@dataclass(frozen=True)
class Interest:
    """The parameters of a function that is called about a tool's arguments, and whether it takes a context."""

    names: frozenset[str]
    context: str | None
    accepts_any: bool
    """It has `**kwargs`."""

    def of(self, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Return keyword arguments for the function, out of those of the tool."""
        chosen = {name: value for name, value in values.items() if self.accepts_any or name in self.names}
        return chosen if self.context is None else chosen | {self.context: context}


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of another callable, as ADK names tools."""
    if isinstance(function, functools.partial):
        return function_name(function.func)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- of anything
    name = getattr(function, "__name__", None)
    return name if name and isinstance(name, str) else type(function).__name__


def function_doc(function: Callable[..., Any]) -> str:
    """Return a function's docstring without its indentation; empty if it has none."""
    if isinstance(function, functools.partial) and "__doc__" not in vars(function):
        # Otherwise it would be that of all partials.
        return function_doc(function.func)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- of anything
    function = cast("Callable[..., Any]", function)
    doc = function.__doc__
    if not doc and not inspect.isroutine(function):
        doc = type(function).__call__.__doc__
    return inspect.cleandoc(doc or "")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def read_signature(function: Callable[..., Any], where: str) -> Signature:
    """Return the signature of a tool's function.

    Args:
        function: A function, a method, or an object that can be called.
        where: What the function is, for errors: `tool 'search'`.

    Raises:
        DefinitionError: A parameter's type cannot be declared to a model.
    """
    target = _target(function)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise DefinitionError(f"{where} is a generator, but a tool gives one result; return a list instead")
    found = _parameters(function, where)
    _check_by_name(function, found, where)
    _check_bound(target, found, where)
    for parameter in found.values():
        _check_kind(parameter, where)
    namespace = _namespace(target)
    context = _context_parameter(found, namespace)
    resolved = [_resolved(parameter, namespace, where) for name, parameter in found.items() if name != context]
    declared = _arguments(resolved, where)
    code = getattr(inspect.unwrap(target), "__code__", None)
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()
    may_run_users_code = not all(
        _is_json_type(each.annotation) and _is_quick_default(each.default) for each in resolved
    )
    return Signature(declared, context, frozenset(own) - set(declared.names), may_run_users_code)


def read_interest(function: Callable[..., Any], where: str, offered: Signature) -> Interest:
    """Return the parameters of a function that is called about the arguments of a tool with the signature `offered`.

    Raises:
        DefinitionError: It needs an argument that the tool does not have.
    """
    found = _parameters(function, where)
    _check_by_name(function, found, where)
    context = _context_parameter(found, _namespace(_target(function)))
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: parameter for name, parameter in found.items() if parameter.kind not in variadic}
    known = {context, *offered.arguments.names}
    for name, parameter in named.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise DefinitionError(f"{where}: parameter {name!r} is positional-only, but is given by its name")
        needed = parameter.default is parameter.empty and name not in known
        if needed and not offered.arguments.keywords:
            names = ", ".join(offered.arguments.names) or "none"
            raise DefinitionError(
                f"{where}: parameter {name!r} is none of the tool's ({names}); name it like one of those, or give it a"
                " default"
            )
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values())
    return Interest(frozenset(named), context, accepts_any)


def declare(name: str, doc: str, declared: Arguments) -> types.FunctionDeclaration:
    """Return a function's declaration for a model."""
    schema = declared.declared if declared.names or declared.keywords else None
    return types.FunctionDeclaration(name=name, description=doc, parameters_json_schema=schema)


def schema_of(answer: Any, where: str) -> dict[str, Any]:
    """Return the JSON schema of a type.

    Raises:
        DefinitionError: It has none.
    """
    try:
        return json_schema(answer)
    except Exception as error:  # A type's own hooks may raise anything.
        raise DefinitionError(
            f"{where}: response is {inspect.formatannotation(answer)}, which has no JSON schema ({reason_of(error)});"
            " give a pydantic model, a TypedDict, or a type such as bool or Literal"
        ) from error


def convert(signature: Signature, args: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a model's arguments as the function takes them; what it does not take is dropped. ADK: `function_tool.py`.

    Raises:
        InvalidArguments: A mandatory one is missing, or one does not fit its annotation.
    """
    given = {key: value for key, value in args.items() if key not in signature.taken and key != signature.context}
    try:
        return signature.arguments.convert(given)
    except ValidationError as error:
        raise InvalidArguments(_explained(name, error)) from error
    except PydanticSerializationError as error:
        raise InvalidArguments(f"Invoking `{name}()` failed as the arguments are no JSON: {error}") from error
    except Exception as error:
        # A type's own validator or constructor raised what pydantic does not know.
        raise InvalidArguments(
            f"Invoking `{name}()` failed as the arguments cannot be taken: {error_text(error)}\n"
            "Call it again with other values."
        ) from error


def _explained(name: str, error: ValidationError) -> str:
    """Return what a model is told of wrong arguments: what ADK says of those that are missing, and pydantic's words."""
    missing: list[str] = []
    problems: list[str] = []
    for loc, kind, words in problems_of(error, _MOST_PROBLEMS):
        if kind.startswith("missing") and len(loc) == 1:
            missing.append(str(loc[0]))
        else:
            problems.append(f"{'.'.join(map(str, loc))}: {words}" if loc else words)
    parts: list[str] = []
    if missing:
        parts.append("the following mandatory input parameters are not present:\n" + "\n".join(missing))
    if problems:
        parts.append("the following input parameters have the wrong form:\n" + "\n".join(problems))
    if error.error_count() > _MOST_PROBLEMS:
        parts[-1] += f"\nand {error.error_count() - _MOST_PROBLEMS} more"
    said = shortened("\n".join(f"Invoking `{name}()` failed as {part}" for part in parts))
    advice = "values of the declared types" if problems else "a value for each of them"
    return f"{said}\nCall it again with {advice}."


def _parameters(function: Callable[..., Any], where: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that a caller fills in, without those that a partial has filled in."""
    bound: set[str] = set()
    if isinstance(function, functools.partial):
        bound = set(function.keywords)
        # A plain one: what `functools.update_wrapper` wrote into it would hide what is bound.
        function = cast(Any, functools.partial(function.func, *function.args, **function.keywords))
    try:
        found = inspect.signature(_unbound_call(function)).parameters
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"{where} has no signature to declare ({error}); write a function around it") from error
    return {name: parameter for name, parameter in found.items() if name not in bound}


def _unbound_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, or an object's `__call__`.

    `inspect` would leave out the first parameter of one without a `self`, and from Python 3.13 on asks the object for a
    signature, which one with a `__getattr__` for everything has.
    """
    call = inspect.getattr_static(type(function), "__call__", None)
    told = any(inspect.getattr_static(function, name, None) is not None for name in ("__signature__", "__wrapped__"))
    own = isinstance(call, staticmethod | classmethod) or (inspect.isfunction(call) and not told)
    return function.__call__ if own else function


def _target(function: Callable[..., Any]) -> Any:
    """Return the function that is called in the end, which knows its module's names."""
    if isinstance(function, functools.partial):
        return _target(function.func)  # pyright: ignore[reportUnknownMemberType] -- of anything
    if inspect.isclass(function):
        return function.__init__
    return function if inspect.isroutine(function) else type(function).__call__


def _namespace(target: Any) -> dict[str, Any]:
    """Return the names that annotations are made of, and those that may be imported for type checkers only."""
    inner = inspect.unwrap(target)
    typed = {parameter.__name__: parameter for parameter in getattr(inner, "__type_params__", ())}
    known = {name: getattr(typing, name) for name in ("Annotated", "Any", "Optional", "Union")}
    return {ToolContext.__name__: ToolContext, **known, **getattr(inner, "__globals__", {}), **typed}


def _check_bound(target: Any, found: Mapping[str, inspect.Parameter], where: str) -> None:
    first = next(iter(found.values()), None)
    if first is None or first.name != "self" or first.annotation is not first.empty or "." not in target.__qualname__:
        return
    if not target.__qualname__.rpartition(".")[0].endswith("<locals>"):
        raise DefinitionError(
            f"{where}: {target.__qualname__} is a method without its object, which no model can give; make the object,"
            f" and give its method: {target.__qualname__.replace('.', '().')}"
        )


def _check_by_name(function: Callable[..., Any], found: Mapping[str, inspect.Parameter], where: str) -> None:
    """Refuse what says that it has parameters of these names, and cannot be called by them."""
    if isinstance(function, functools.partial):
        if not function.args:
            _check_by_name(function.func, found, where)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- of anything
        return
    if not hasattr(function, "__wrapped__"):
        return
    if callable(getattr(function, "register", None)):
        raise DefinitionError(
            f"{where} chooses by the type of its first argument (singledispatch), which has no name there, but a model"
            " names its arguments; write a function around it"
        )
    if not inspect.isfunction(function.__func__ if inspect.ismethod(function) else function):
        return
    own = inspect.signature(function, follow_wrapped=False).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
        return
    for name in found:
        if name not in own:
            raise DefinitionError(
                f"{where}: its decorator takes no argument {name!r}, but a model names its arguments; give what it"
                " returns the parameters *args, **kwargs"
            )


def _check_kind(parameter: inspect.Parameter, where: str) -> None:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise DefinitionError(
            f"{where}: parameter {parameter.name!r} is positional-only, but a model names its arguments; leave out "
            "the /"
        )
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise DefinitionError(
            f"{where}: parameter '*{parameter.name}' takes arguments without names, but a model names its arguments;"
            f" make it a list: {parameter.name}: list[…]; a decorator needs functools.wraps"
        )


def _context_parameter(found: Mapping[str, inspect.Parameter], namespace: dict[str, Any]) -> str | None:
    for parameter in found.values():
        try:
            annotation = _resolve(parameter, namespace)
        except _UNRESOLVED:
            written = parameter.annotation
            # Its module may be imported for type checkers only.
            if isinstance(written, str) and _CONTEXT.search(written):
                return parameter.name
            continue
        if any(inspect.isclass(option) and issubclass(option, ToolContext) for option in _options(annotation)):
            return parameter.name
    return _CONTEXT_NAME if _CONTEXT_NAME in found else None


def _options(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation itself."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _options(inner[0])
    if origin in (typing.Union, python_types.UnionType):
        return [option for one in inner for option in _options(one)]
    return [annotation]


def _is_json_type(annotation: Any) -> bool:
    """Return whether an annotation is of JSON's own values, which pydantic checks by itself."""
    if typing.get_origin(annotation) in (typing.Union, python_types.UnionType, list, dict):
        return all(map(_is_json_type, typing.get_args(annotation)))
    return any(annotation is known for known in _JSON_TYPES)


def _is_quick_default(default: Any) -> bool:
    """Return whether to fill a default in runs nothing: pydantic calls factories, and copies what can change."""
    return default is inspect.Parameter.empty or (is_small_json(default) and not isinstance(default, list | dict))


def _resolve(parameter: inspect.Parameter, namespace: dict[str, Any]) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    holder = python_types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    return typing.get_type_hints(holder, globalns=namespace, include_extras=True)[parameter.name]


def _resolved(parameter: inspect.Parameter, namespace: dict[str, Any], where: str) -> inspect.Parameter:
    try:
        return parameter.replace(annotation=_resolve(parameter, namespace))
    except _UNRESOLVED as error:
        raise DefinitionError(
            f"{where}: parameter {parameter.name!r} has an annotation {parameter.annotation!r} that cannot be resolved "
            f"({error}); import the type at module level, not under TYPE_CHECKING"
        ) from error


def _arguments(parameters: Sequence[inspect.Parameter], where: str) -> Arguments:
    try:
        return _declared(parameters, f"{where} has parameters")
    except DefinitionError:
        for each in parameters:
            # By itself, so that the error can name it.
            written = inspect.formatannotation(each.annotation)
            _declared([each], f"{where}: parameter {each.name!r} has the type {written}")
        raise


def _declared(parameters: Sequence[inspect.Parameter], what: str) -> Arguments:
    try:
        return arguments(parameters)
    except Exception as error:  # A type's own hooks may raise anything.
        raise DefinitionError(
            f"{what}, which cannot be declared to a model: {reason_of(error)}; use str, int, float, bool, list, dict, "
            "Literal, an Enum, a datetime, a dataclass or a pydantic model, or annotate it ToolContext if it is the "
            "context"
        ) from error
