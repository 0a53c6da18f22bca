"""Notes which files this process opens to read, whatever opens them: an app's prompts, beside its code."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Reads", "is_below"]

_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

_COMPILED = (".py", ".pyc", ".so", ".pyd")
"""Python's own: it tells of modules itself."""


class Reads:
    """The files that were read in its blocks: `with reads.noted(): load()`."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._written: set[str] = set()

    @property
    def files(self) -> frozenset[Path]:
        """Those that were opened to read, there or not, and never to write."""
        return frozenset(Path(file).resolve() for file in self._read - self._written)

    @contextmanager
    def noted(self) -> Generator[None]:
        """Note what is opened until the block ends."""
        noting = True

        def note(event: str, about: tuple[Any, ...]) -> None:
            if noting and event == "open":
                self._note(*about)

        # Python takes no such function back.
        sys.addaudithook(note)
        try:
            yield
        finally:
            noting = False

    def _note(self, path: object, mode: object, flags: int) -> None:
        if not isinstance(path, str | bytes) or not path:
            return  # A descriptor: it was opened before.
        file = os.path.abspath(os.fsdecode(path))
        if not file.endswith(_COMPILED):
            (self._written if flags & (os.O_WRONLY | os.O_RDWR) else self._read).add(file)


def is_below(file: Path, folders: Iterable[Path]) -> bool:
    """Return whether a file is below one of some folders, and no folder between is hidden or holds others' code."""
    for folder in folders:
        if file.is_relative_to(folder):
            between = file.relative_to(folder).parts[:-1]
            if not any(part in _PASSED_OVER or part.startswith(".") for part in between):
                return True
    return False
