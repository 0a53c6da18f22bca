"""Reads the modules of an app: state that its functions change, and connections that are made at import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from perdure.compiler.check.findings import Hazard

_CONTAINERS = frozenset(
    {"list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque", "WeakValueDictionary"}
)
_CHANGING = frozenset(
    {
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "add", "discard", "update"),
        *("setdefault", "popitem", "appendleft", "extendleft", "popleft", "rotate", "subtract"),
        *("intersection_update", "difference_update", "symmetric_difference_update"),
    }
)
_CONNECTING = ("Client", "ClientSession", "Session", "Connection", "ConnectionPool", "Redis", "OpenAI", "Anthropic")
"""How names of classes end whose objects hold connections."""
_CONNECTING_FUNCTIONS = frozenset(
    {"connect", "create_engine", "create_async_engine", "create_pool", "client", "resource"}
)
_NO_CONNECTION = frozenset({"datetime", "InMemorySession"})
_PASSED_OVER = frozenset({"site-packages", "dist-packages", "__pycache__"})


def app_modules(folder: Path) -> list[Path]:
    """Return the files of the modules that are imported from an app's folder, or the file that an app is."""
    files: set[Path] = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        inside = path == folder or path.is_relative_to(folder)
        if inside and not any(_is_hidden(part) for part in path.relative_to(folder).parts):
            files.add(path)
    return sorted(files)


def _is_hidden(part: str) -> bool:
    return part in _PASSED_OVER or part.startswith(".")


def module_hazards(file: Path) -> Iterator[Hazard]:
    """Yield what of a module does not survive a worker."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"), str(file))
    except (OSError, SyntaxError, ValueError):
        return
    yield from _changed_state(file, tree)
    yield from _connections(file, tree)


def _changed_state(file: Path, tree: ast.Module) -> Iterator[Hazard]:
    held = set(_containers(tree))
    told: set[str] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        own = _locals(function)
        for name, line in _changes(function, held):
            if name in own or name in told:
                continue
            told.add(name)
            yield Hazard(
                kind="module_state",
                where=f"{file}:{line}",
                words=f"{function.name}() changes {name}, which each worker has for itself and loses when it ends",
                remedy="keep it in the session's state, or in a database",
            )


def _containers(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds to something that can be changed in place."""
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                names = [name]
            case _:
                continue
        if _is_container(value):
            yield from names


def _is_container(value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in _CONTAINERS
        case _:
            return False


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = function.args
    given = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    names = {argument.arg for argument in given}
    shared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    names |= {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in shared
    }
    return names


def _changes(function: ast.AST, held: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the module's names that a function changes, each with the line."""
    for node in ast.walk(function):
        match node:
            case ast.Global(names=names, lineno=line):
                yield from ((name, line) for name in names)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del(), lineno=line) if name in held:
                yield name, line
            case ast.Call(func=ast.Attribute(value=base, attr=method), lineno=line) if method in _CHANGING:
                while isinstance(base, ast.Subscript):
                    base = base.value
                if isinstance(base, ast.Name) and base.id in held:
                    yield base.id, line
            case _:
                pass


def _connections(file: Path, tree: ast.Module) -> Iterator[Hazard]:
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            text = ast.unparse(call.func)
            if _connects(text):
                yield Hazard(
                    kind="client_at_import",
                    where=f"{file}:{call.lineno}",
                    words=f"{text}() is called when the module is imported: in each process that loads the app, and"
                    " before there is an event loop",
                    remedy="make it at its first use, in a function",
                )


def _connects(text: str) -> bool:
    last = text.rpartition(".")[2]
    if last in _CONNECTING_FUNCTIONS:
        # `connect` by itself may be anybody's.
        return "." in text or last.startswith("create_")
    return last.endswith(_CONNECTING) and last not in _NO_CONNECTION
