"""Reads which files an app's code is in, without importing it; and the digest by which a worker says what it serves."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.compiler.folders import is_agent

if TYPE_CHECKING:
    from perdure.agents.adk_app import AnyApp

__all__ = ["code_digest", "digest_of", "note_code", "sources_here", "sources_of", "where_it_begins"]

_ENTRIES = ("__init__.py", "agent.py")
_CONFIGURATION = ("*.yaml", "*.yml")
_DIGITS = 12

_noted: dict[str, tuple[AnyApp, str]] = {}
"""By name, each app that was loaded here, and the digest of its code as it was then."""


def note_code(app: AnyApp, digest: str) -> None:
    """Remember the digest of the code that an app was loaded from."""
    _noted[app.name] = app, digest


def digest_of(app: AnyApp) -> str | None:
    """Return the digest of the code that an app was loaded from; `None` if it was made in a program."""
    known, digest = _noted.get(app.name, (None, None))
    return digest if known is app else None


def sources_here(app: str) -> Path | None:
    """Return the folder or file that an app of this name has in the working directory, or in a folder of it."""
    here = Path.cwd()
    for place in (here, *sorted(path for path in here.iterdir() if path.is_dir() and not path.name.startswith("."))):
        folder, file = place / app, place / f"{app}.py"
        if folder.is_dir() and is_agent(folder):
            return folder
        if place == here and file.is_file():
            return file
    return None


def where_it_begins(file: Path) -> Path:
    """Return what an app is whose module is a file: the file's folder, if it is one that begins there."""
    return file.parent if file.name in _ENTRIES else file


def code_digest(path: Path) -> str:
    """Return a digest of the files of an app: the same on every machine that has the same code.

    Args:
        path: The app's folder, or the file that it is.
    """
    folder = path if path.is_dir() else path.parent
    found = hashlib.sha256()
    for file in sources_of(path):
        content = file.read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()[:_DIGITS]


def sources_of(path: Path) -> list[Path]:
    """Return the files of an app: where it begins, and what is imported from there out of its folder, by name.

    What is imported in some other way than by an `import` in the source is not found.

    Args:
        path: The app's folder, or the file that it is.
    """
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    begin = [folder / name for name in _ENTRIES] if is_folder else [path]
    if is_folder:
        begin += [file for pattern in _CONFIGURATION for file in folder.glob(pattern)]
    queue = [file for file in begin if file.is_file()]
    found: set[Path] = set()
    while queue:
        file = queue.pop()
        if file not in found:
            found.add(file)
            queue += _imported(file, folder) if file.suffix == ".py" else ()
    return sorted(found)


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files in a folder that a file imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(alias.name.split("."), (folder.parent, folder, file.parent), folder)
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            bases = (folder.parent, folder, file.parent)
            if node.level:
                bases = (file.parents[min(node.level, len(file.parents)) - 1],)
            for alias in node.names:
                yield from _modules([*parts, alias.name], bases, folder)


def _modules(parts: list[str], bases: tuple[Path, ...], folder: Path) -> Iterator[Path]:
    """Yield the modules on the way to a name, as far as they are in the folder."""
    for base in bases:
        for end in range(1, len(parts) + 1):
            at = base.joinpath(*parts[:end])
            for file in (at / "__init__.py", at.with_name(f"{at.name}.py")):
                if file.is_relative_to(folder) and file.is_file():
                    yield file
