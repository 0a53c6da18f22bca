"""Shows tracebacks to those who wrote the code: their frames, and one line for all others.

It works on the text of a traceback, since that is what a history keeps, maybe of another machine. Whose a frame is, its
path tells.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import cast

from perdure.errors import shortened

__all__ = ["Raised", "folded", "folded_error", "is_of_app", "raised"]

_PACKAGE = Path(__file__).parent
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+)')
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD_LIBRARY = re.compile(r"/lib/python3\.\d+t?/")
_STANDARD_LIBRARY_HERE = Path(sysconfig.get_path("stdlib"))
_NAMESPACES = frozenset({"google"})
"""Packages that hold other people's packages."""
_OURS = frozenset({"perdure", "temporalio"})
_PYTHONS = "python"
_MOST_CAUSES = 10
_MOST_FRAMES = 50


@dataclass(frozen=True)
class Raised:
    """One exception: what it says, and where it was raised."""

    text: str
    """Its type and its text."""
    stack: str = ""
    """Its frames as Python prints them, the innermost last."""
    kind: str = ""
    """Its type's name."""

    @property
    def place(self) -> str | None:
        """The innermost place in the code of the app, as `FILE:LINE`; `None` if it is not there."""
        frames = [frame for frame in _split(self.stack) if _owner(frame) is None]
        found = _FRAME.match(frames[-1]) if frames else None
        return f"{_file_name(found['file'])}:{found['line']}" if found is not None else None

    def is_repeated_by(self, error: Raised) -> bool:
        """Return whether another exception says all that this one says, and so no more than where it passed."""
        words = self.text.partition(": ")[2]
        return bool(words) and error.text.endswith(words)


def folded(errors: Sequence[Raised]) -> str:
    """Return exceptions with their causes, in lines: what each says, its author's frames, and a line for the others.

    Of what only passed through, such as the words of another layer for the same failure, nothing is told where one of
    its causes was raised in the code of the app, or where it repeats what its cause says.

    Args:
        errors: The exception, its cause, the cause of that, and so on.
    """
    told = [error for error in errors if error.place is not None] or [
        error for error, cause in zip_longest(errors, errors[1:]) if cause is None or not cause.is_repeated_by(error)
    ]
    lines: list[str] = []
    for number, error in enumerate(told):
        lines.append(f"caused by {error.text}" if number else error.text)
        lines += _frames(error.stack)
    return "\n".join(lines)


def folded_error(error: BaseException) -> str:
    """Return an exception that was caught just now, with its causes, as `folded` does."""
    return folded(raised(error))


def raised(error: BaseException, *, texts: bool = True) -> list[Raised]:
    """Return an exception and its causes.

    Args:
        error: The exception.
        texts: Also tell what they say, which may quote anything; else their types alone.
    """
    found: list[Raised] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _MOST_CAUSES:
        seen.add(id(current))
        # Of a syntax error, the place in the source stands before the text.
        *place, text = traceback.format_exception_only(current)
        stack = [*traceback.format_tb(current.__traceback__, limit=-_MOST_FRAMES), *place]
        kind = type(current).__name__
        found.append(Raised(shortened(text.rstrip()) if texts else kind, "".join(stack), kind))
        current = _cause(current)
    return found


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    if isinstance(error, BaseExceptionGroup):
        # One of several tells most of what went wrong.
        return cast("BaseException", error.exceptions[0])  # pyright: ignore[reportUnknownMemberType] -- of any kind
    return None if error.__suppress_context__ else error.__context__


def is_of_app(file: str) -> bool:
    """Return whether a file is of nobody's package, by its path, so of an app."""
    return _owner_of(file) is None


def _frames(stack: str) -> list[str]:
    frames = [(_owner(frame), frame) for frame in _split(stack)]
    shown = [frame for owner, frame in frames if owner is None]
    if not shown:
        # Nobody's own code: then the place in a library says the most.
        shown = [frame for owner, frame in frames if owner not in (*_OURS, _PYTHONS)][-1:]
    others = Counter(owner or "" for owner, frame in frames if frame not in shown)
    if not others:
        return shown
    first, *more = [f"{count} {{}}of {owner}" for owner, count in others.items()]
    unit = "frame " if first.startswith("1 ") else "frames "
    return [*shown, f"  … {', '.join([first.format(unit), *(one.format('') for one in more)])}"]


def _split(stack: str) -> Iterator[str]:
    """Yield the frames of a stack, each with its lines of source."""
    frame: list[str] = []
    for line in stack.splitlines():
        if _FRAME.match(line) and frame:
            yield "\n".join(frame)
            frame = []
        # Of a stack that was shortened, the first lines may be the rest of a frame.
        if line.strip() and (frame or _FRAME.match(line)):
            frame.append(line.rstrip())
    if frame:
        yield "\n".join(frame)


def _owner(frame: str) -> str | None:
    """Return the name of the package that a frame is of; `None` if it is of nobody's package, but of an app."""
    found = _FRAME.match(frame)
    return _owner_of(found["file"]) if found is not None else None


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


@lru_cache(1000)
def _owner_of(file: str) -> str | None:
    if file.startswith("<"):
        return _PYTHONS
    path = PurePosixPath(file.replace("\\", "/"))
    for folder in _INSTALLED:
        if folder in path.parts:
            inside = path.parts[len(path.parts) - 1 - path.parts[::-1].index(folder) + 1 :]
            names = inside[:2] if inside[0] in _NAMESPACES else inside[:1]
            return ".".join(names).removesuffix(".py")
    if _is_ours(path):
        return "perdure"
    is_pythons = _STANDARD_LIBRARY.search(str(path)) or Path(file).is_relative_to(_STANDARD_LIBRARY_HERE)
    return _PYTHONS if is_pythons else None


def _is_ours(path: PurePosixPath) -> bool:
    """Return whether a file is one of Perdure's, wherever it is installed."""
    parts = path.parts
    places = [index for index, part in enumerate(parts) if part == _PACKAGE.name]
    return any(_PACKAGE.joinpath(*parts[index + 1 :]).is_file() for index in places if index + 1 < len(parts))
