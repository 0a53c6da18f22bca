"""Follows changes of the file of `--auth` while the server runs."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.api.auth.authenticator import Authenticator
from perdure.api.auth.config import AuthConfig, files_of, read_auth
from perdure.errors import DefinitionError
from perdure.logs import get_logger

__all__ = ["EVERY", "AuthWatch"]

EVERY = 1.0
"""Seconds between two looks at the file."""

_PATIENCE = 2.0
"""Seconds that requests wait for a look, which a file system over a network may hold up."""

_COARSE = 2.0
"""Seconds within which some file systems give two contents one time; a file that young is read once more."""

_logger = get_logger("perdure.api")


@dataclass(frozen=True)
class _Mark:
    """A file's marks of change, which are had without reading it."""

    device: int
    inode: int
    mode: int
    size: int
    modified: int
    changed: int
    """Nanoseconds. Unlike the time before, no program can set it."""

    @classmethod
    def of(cls, path: Path) -> _Mark | None:
        """Return a file's mark; none, if it cannot be seen."""
        try:
            found = path.stat()
        except (OSError, ValueError):
            return None
        return cls(found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def is_older(self, seconds: float, now: float) -> bool:
        """Return whether it was made that long before `now`, in seconds since the epoch."""
        return all(abs(now - nanoseconds / 1e9) > seconds for nanoseconds in (self.modified, self.changed))


_Marks = Mapping[Path, _Mark | None]


@dataclass(frozen=True)
class _Look:
    """The result of one look at the files."""

    marks: _Marks
    settled: bool = False
    """As long as the marks stay, nothing has to be read again."""
    authenticator: Authenticator | None = None
    problem: str | None = None


class AuthWatch:
    """Holds the authenticator of the file's newest content. A broken file changes nothing."""

    def __init__(self, config: AuthConfig, path: Path | None = None) -> None:
        """Begin with the settings of access.

        Args:
            config: What holds from the start.
            path: The file that it was read from, which is looked at again as requests come. Default: none. A pipe,
                which can be read but once, counts as none.

        Raises:
            DefinitionError: The file of the issuer's keys cannot be read.
        """
        self._current = Authenticator(config)
        self._path = path if path is not None and (path.is_file() or not path.exists()) else None
        self._marks: _Marks = {}
        self._settled = False
        self._problem: tuple[_Marks, str] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked = 0.0

    @property
    def follows(self) -> bool:
        """Whether the settings of access may change."""
        return self._path is not None

    async def current(self) -> Authenticator:
        """Return the authenticator of what the file said a second ago, or later."""
        if self._path is None:
            return self._current
        now = time.monotonic()
        if self._looking is None or (self._looking.done() and now - self._looked >= EVERY):
            self._looked = now
            self._looking = asyncio.create_task(self._take_up(self._path))
        if not self._looking.done():
            # Whoever comes while a look goes on waits, too: the last one may be hours old.
            await asyncio.wait({self._looking}, timeout=max(0.0, self._looked + _PATIENCE - now))
            if not self._looking.done():
                self._complain({}, f"{str(self._path)!r} takes too long to be read")
        return self._current

    async def _take_up(self, path: Path) -> None:
        look = await asyncio.to_thread(self._look, path)
        if look is None:
            # What was in order and stays can only have been slow.
            self._problem = None
            return
        self._marks, self._settled = look.marks, look.settled
        if look.problem is not None:
            self._complain(look.marks, look.problem)
        elif look.authenticator is not None:
            self._adopt(look.authenticator)

    def _look(self, path: Path) -> _Look | None:
        """Read the file if it may say something else than before. Runs in a thread, as all that asks the disk."""
        now = time.time()
        marks = _marks_of(path, self._current.config)
        if self._settled and marks == self._marks:
            return None
        mark = marks[path]
        try:
            if mark is not None and not stat.S_ISREG(mark.mode):
                raise DefinitionError(f"{str(path)!r} is no regular file")
            found = Authenticator(read_auth(path), before=self._current)
        except DefinitionError as error:
            # A file that it names and that was missing may come back without a trace in the marks: never settled.
            return _Look(marks, problem=str(error))
        if _marks_of(path, self._current.config) != marks:
            # Somebody is writing, so this may be half of it.
            return _Look(marks)
        settled = all(mark is None or mark.is_older(_COARSE, now) for mark in marks.values())
        return _Look(marks, settled, found)

    def _adopt(self, found: Authenticator) -> None:
        old, new = self._current.config, found.config
        self._current = found
        if new == old and self._problem is None:
            return
        self._problem = None
        was, is_ = ({key.id: key for key in config.keys} for config in (old, new))
        _logger.info(
            "the file of --auth was read anew, and holds",
            added=sorted(is_.keys() - was.keys()),
            removed=sorted(was.keys() - is_.keys()),
            changed=sorted(id for id in was.keys() & is_.keys() if was[id] != is_[id]),
        )

    def _complain(self, marks: _Marks, problem: str) -> None:
        """Log what is wrong, once for each state of the file."""
        if self._problem != (marks, problem):
            self._problem = marks, problem
            _logger.error("the file of --auth is not taken up; what it said before goes on to hold", reason=problem)


def _marks_of(path: Path, config: AuthConfig) -> _Marks:
    return {file: _Mark.of(file) for file in files_of(path, config)}
