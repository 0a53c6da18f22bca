"""Resolves the names in a piece of code, without running it."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

from perdure.compiler.impure import canonical_name

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property)


@dataclass(frozen=True)
class Found:
    """The meaning of an expression."""

    path: str
    """Its dotted name."""
    value: Any = None
    """The thing itself; `None` if it is unknown."""


@dataclass(frozen=True)
class InstanceOf:
    """Some instance of a class."""

    cls: type[Any]


@dataclass(frozen=True)
class Source:
    """A function or class in its file."""

    file: str
    node: _Function | ast.ClassDef


def is_users(value: Any) -> bool:
    """Return whether a function or class is the user's own: not Python's, not installed, not Perdure's."""
    module: str = getattr(value, "__module__", None) or ""
    file = _file_of(value)
    if file is None or module.partition(".")[0] == "perdure":
        return False
    return not (file.startswith(_STDLIB) or {"site-packages", "dist-packages"} & set(Path(file).parts))


_STDLIB = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def source_of(value: Any) -> Source | None:
    """Return where a Python function or class is written, or `None` if its source cannot be read."""
    file = _file_of(value)
    if file is None:
        return None
    linecache.checkcache(file)
    key = value.__code__.co_firstlineno if isinstance(value, FunctionType) else value.__qualname__
    node = _index(file, "".join(linecache.getlines(file))).get(key)
    return None if node is None else Source(file, node)


def _file_of(value: Any) -> str | None:
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
    else:
        file = getattr(sys.modules.get(value.__module__), "__file__", None) or "<unknown>"
    return None if file.startswith("<") else file


@functools.lru_cache(maxsize=64)
def _index(file: str, text: str) -> Mapping[int | str, _Function | ast.ClassDef]:
    """Return the functions of a file by their first line, and its classes by their qualified name."""
    found: dict[int | str, _Function | ast.ClassDef] = {}

    def visit(node: ast.AST, above: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = above
            match child:
                case ast.ClassDef(name=name):
                    found[above + name] = child
                    inside = f"{above}{name}."
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    first = child.decorator_list[0] if child.decorator_list else child
                    found[first.lineno] = child
                    inside = f"{above}{name}.<locals>."
                case ast.Lambda():
                    found.setdefault(child.lineno, child)
                case _:
                    pass
            visit(child, inside)

    visit(ast.parse(text, file), "")
    return found


class Resolver:
    """Resolves expressions of one function's body."""

    def __init__(self, node: ast.AST, namespace: Mapping[str, Any]) -> None:
        """Read the names that the code binds.

        Args:
            node: The function.
            namespace: Its module's globals, and the variables of functions around it.
        """
        self._namespace = namespace
        self._imports = dict(_imports(node))
        self._bound = set(_bound_names(node))
        self._assigned = _assigned_once(node)
        self._parameters = {arg.arg: arg.annotation for arg in _arguments(node)}

    def resolve(self, expression: ast.expr) -> Found | None:
        """Return the meaning of an expression, or `None` if only running it would tell."""
        match expression:
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute(value=value, attr=name):
                base = self.resolve(value)
                return None if base is None else _attribute(base, name)
            case ast.Call(func=function):
                return _result(self.resolve(function))
            case _:
                return None

    def _name(self, name: str) -> Found | None:
        if name in self._imports:
            path = self._imports[name]
            return Found(path, _imported(path))
        if name in self._parameters:
            annotation = self._parameters[name]
            found = self.resolve(annotation) if annotation is not None and name not in self._assigned else None
            return _result(found)
        if name in self._bound:
            value = self._assigned.pop(name, None)
            if value is None:
                return None
            # Out of the table while it is looked at, so that `a = a.b` ends.
            found = self.resolve(value)
            self._assigned[name] = value
            return found
        value = self._namespace.get(name, getattr(builtins, name, None))
        return None if value is None else Found(canonical_name(value), value)


def namespace_of(function: FunctionType) -> dict[str, Any]:
    """Return a function's namespace: its module's globals and the variables of the functions around it."""
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    return {**function.__globals__, **{name: _content(cell) for name, cell in closure.items()}}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _attribute(base: Found, name: str) -> Found | None:
    path = f"{base.path}.{name}"
    value = base.value
    if value is None:
        return Found(path)
    if isinstance(value, ModuleType | type):
        found = getattr(value, name, None)
        return Found(found.__name__ if isinstance(found, ModuleType) else path, found)
    cls: type[Any] = value.cls if isinstance(value, InstanceOf) else cast(type[Any], type(value))
    static = _function(inspect.getattr_static(cls, name, None))
    if isinstance(static, FunctionType):
        return Found(path, static)
    if isinstance(value, InstanceOf):
        return None
    own: dict[str, Any] = getattr(value, "__dict__", {})
    if own.get(name) is not None:
        return Found(canonical_name(own[name]), own[name])
    return Found(f"{canonical_name(cls)}.{name}") if static is not None else None


def _function(value: Any) -> Any:
    """Return the function inside of a static method, class method or property."""
    if not isinstance(value, _WRAPPERS):
        return value
    wrapper = cast(Any, value)
    return next(getattr(wrapper, name) for name in ("__func__", "fget", "func") if hasattr(wrapper, name))


def _result(function: Found | None) -> Found | None:
    """Return what calling something gives, where that is plain: a class gives an instance of it."""
    if function is None:
        return None
    cls: Any = function.value
    if inspect.isclass(cls) and is_users(cls):
        return Found(canonical_name(cls), InstanceOf(cls))
    return None


def _imported(path: str) -> Any:
    """Return what an import inside of a function gives, if its module is loaded; nothing is imported to look."""
    if path in sys.modules:
        return sys.modules[path]
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _arguments(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, _Function):
        return []
    arguments = node.args
    extra = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            for alias in child.names:
                yield alias.asname or alias.name, f"{child.module}.{alias.name}"


def _bound_names(node: ast.AST) -> Iterator[str]:
    outer = {name for child in ast.walk(node) if isinstance(child, ast.Global) for name in child.names}
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if name not in outer:
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.ExceptHandler(name=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if child is not node:
                    yield name
            case _:
                pass


def _assigned_once(node: ast.AST) -> dict[str, ast.expr]:
    values: dict[str, list[ast.expr | None]] = {}
    plain: set[int] = set()
    for child in ast.walk(node):
        match child:
            case (
                ast.Assign(targets=[ast.Name() as target], value=value)
                | ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value)
            ):
                plain.add(id(target))
                values.setdefault(target.id, []).append(value)
            case _:
                pass
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store) and id(child) not in plain:
            values.setdefault(child.id, []).append(None)
    return {name: found[0] for name, found in values.items() if len(found) == 1 and found[0] is not None}
