"""Yields the calls that a function makes, by itself and through other functions of its author's."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, cast

from perdure.compiler.name_resolver import Found, Resolver, is_users, namespace_of, source_of


@dataclass(frozen=True)
class MadeCall:
    """A call in the source of a function."""

    where: str
    """`FILE:LINE`."""
    text: str
    """What is called, as it is written."""
    found: Found | None
    """What that is, if it can be told without running it."""
    keywords: frozenset[str] = frozenset()
    """The names of the arguments that are given by name."""


def calls_reached(code: Callable[..., Any]) -> Iterator[MadeCall]:
    """Yield the calls of a function, and those of the functions of the same author that it calls."""
    queue: list[Any] = [code]
    seen: set[int] = set()
    while queue:
        function = _function_of(queue.pop())
        if function is None or id(function) in seen or not is_users(function):
            continue
        seen.add(id(function))
        for call in _calls_in(function):
            yield call
            if call.found is not None:
                queue.append(call.found.value)


def _function_of(code: Any) -> FunctionType | None:
    if isinstance(code, partial):
        code = code.func
    if inspect.isfunction(code) or inspect.ismethod(code):
        code = inspect.unwrap(code)
    if isinstance(code, MethodType):
        code = code.__func__
    if not isinstance(code, FunctionType) and not inspect.isclass(code):
        code = getattr(cast(Any, type(code)), "__call__", None)  # noqa: B004 -- the function of its class is asked for
    return code if isinstance(code, FunctionType) else None


def _calls_in(function: FunctionType) -> Iterator[MadeCall]:
    source = source_of(function)
    if source is None or isinstance(source.node, ast.ClassDef):
        return
    resolver = Resolver(source.node, namespace_of(function))
    body = source.node.body if isinstance(source.node.body, list) else [source.node.body]
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                where = f"{source.file}:{node.lineno}"
                keywords = frozenset(keyword.arg for keyword in node.keywords if keyword.arg)
                yield MadeCall(where, ast.unparse(node.func), resolver.resolve(node.func), keywords)
