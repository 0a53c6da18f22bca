"""Tells folders of agents from others by their files, without importing any."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["AGENT_NAMES", "YAML", "agents_in", "imports_adk", "imports_perdure", "is_agent"]

AGENT_NAMES = ("app", "root_agent")
"""The names that are looked for in a module, in this order."""

YAML = "root_agent.yaml"
"""The file of a google.adk agent that is configuration only."""

_ADK_IMPORT = re.compile(r"^[ \t]*(?:(?:from|import)[ \t]+google\.adk\b|from[ \t]+google[ \t]+import\b.*\badk\b)", re.M)
_PERDURE_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+perdure\b", re.M)
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


def is_agent(folder: Path) -> bool:
    """Return whether a folder is one agent's: it has `agent.py`, `root_agent.yaml`, or an `__init__.py` with an app."""
    if any((folder / name).is_file() for name in ("agent.py", YAML)):
        return True
    init = folder / "__init__.py"
    return init.is_file() and _defines_app(init)


def agents_in(folder: Path) -> list[Path]:
    """Return the agents' folders in a folder of agents, by name; none if the folder is an agent's itself."""
    if is_agent(folder):
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and _is_visible(path.name) and is_agent(path))


def imports_adk(path: Path) -> bool:
    """Return whether a Python file, or one in a folder, imports google.adk."""
    return any(_ADK_IMPORT.search(text) for text in _sources(path))


def imports_perdure(path: Path) -> bool:
    """Return whether a Python file, or one in a folder, imports Perdure."""
    return any(_PERDURE_IMPORT.search(text) for text in _sources(path))


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name not in _PASSED_OVER


def _sources(path: Path) -> Iterator[str]:
    if path.is_file():
        yield path.read_text(errors="replace")
        return
    for at, folders, files in os.walk(path):
        folders[:] = sorted(filter(_is_visible, folders))
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(at, name).read_text(errors="replace")


def _defines_app(init: Path) -> bool:
    """Return whether an `__init__.py` binds one of the names, or may do so: by `*`, or by what is no Python."""
    try:
        body: list[ast.AST] = [*ast.parse(init.read_text(errors="replace")).body]
    except (SyntaxError, ValueError):
        return True
    # Within `if` and `try`, too, but in no function or class.
    while body:
        statement = body.pop()
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if any(name in (*AGENT_NAMES, "*") for name in _bound(statement)):
            return True
        body += [inner for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt | ast.ExceptHandler)]
    return False


def _bound(statement: ast.AST) -> Iterator[str]:
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)
        case ast.Assign(targets=targets):
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case _:
            return
