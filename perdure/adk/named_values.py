"""What an app's code names: the values that it may use, and the functions of the app's that it may call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

__all__ = ["Reached", "reached"]

_MOST_FUNCTIONS = 200
"""Looked at for one function."""
_MOST_VALUES = 1000
"""Of one function."""
_NOT_THE_APPS = sys.stdlib_module_names | {"google", "perdure", "pydantic"}


class Reached(NamedTuple):
    """A function of the app's."""

    code: FunctionType
    names: frozenset[str]
    """The names in its code, and in the functions within it; attributes, too."""
    values: tuple[Any, ...]
    """What they stand for: globals, variables around it, the object whose method it is; and attributes of these."""


def reached(function: Any) -> Iterator[Reached]:
    """Yield a function, and the app's functions that it, and these, name."""
    seen: set[FunctionType] = set()
    left: list[Any] = [function]
    while left and len(seen) < _MOST_FUNCTIONS:
        given = left.pop()
        code = inspect.unwrap(getattr(given, "__func__", given)) if callable(given) else None
        if not isinstance(code, FunctionType) or code in seen or not _is_the_apps(code.__module__):
            continue
        seen.add(code)
        names = frozenset(_names(code.__code__))
        values = tuple(_values(code, names, getattr(given, "__self__", None)))
        yield Reached(code, names, values)
        left += [value for value in values if callable(value)]


def _is_the_apps(module: object) -> bool:
    return str(module).partition(".")[0] not in _NOT_THE_APPS


def _values(function: FunctionType, names: frozenset[str], owner: object) -> Iterator[Any]:
    left = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            left.append(cell.cell_contents)
        except ValueError:
            # It has no value yet.
            continue
    left += [owner] if owner is not None else []
    seen: set[int] = set()
    while left and len(seen) < _MOST_VALUES:
        value = left.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if _is_the_apps(_module_of(value)):
            left += _attributes(value, names)


def _module_of(value: object) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    return value.__module__ if isinstance(value, type) else type(value).__module__


def _attributes(value: object, names: frozenset[str]) -> Iterator[Any]:
    """Yield an object's attributes of some names; none that code works out."""
    for name in names:
        try:
            static = inspect.getattr_static(value, name)
        except AttributeError:
            continue
        if not isinstance(static, property):
            yield getattr(value, name, static)


def _names(code: CodeType) -> set[str]:
    within = (one for one in code.co_consts if isinstance(one, CodeType))
    return {*code.co_names}.union(*map(_names, within))
