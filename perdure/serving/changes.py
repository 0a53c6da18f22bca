"""Watches the code of apps, and what it has read: tells which of these files were saved, added or removed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from watchfiles import Change, awatch  # pyright: ignore[reportUnknownVariableType] -- trio's type, which is not here

from perdure.serving.read_files import is_below

__all__ = ["Changes"]

_CODE = frozenset({".py", ".yaml", ".yml"})
_SETTINGS = ".env"
_STEP = 30
"""Milliseconds without a change after which those that came are told."""


class Changes:
    """Tells of changes, as a block: `async with Changes([folder]) as changes: await changes.next()`."""

    def __init__(self, folders: Collection[Path]) -> None:
        """Make it.

        Args:
            folders: All code in these counts, in folders below them, too.
        """
        self._folders = [folder.resolve() for folder in folders]
        self._beside: frozenset[Path] = frozenset()
        """Folders of code that is in none of the others."""
        self._read: frozenset[Path] = frozenset()
        """Files that the code has read."""
        self._come: set[Path] = set()
        self._news = asyncio.Event()
        self._failure: OSError | None = None
        self._tasks: dict[bool, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        """Begin to watch."""
        if self._folders:
            self._watch(self._folders, recursive=True)
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def know(self, code: Iterable[Path] | None = None, read: Iterable[Path] = ()) -> None:
        """Tell of these files, too, wherever they are.

        Args:
            code: The files of the apps' code, for those known before; what is code beside them counts, too. Without
                it those stay, and so do the files that were read.
            read: Other files that the code has read, for those known before; these alone count.
        """
        watched = self._elsewhere()
        if code is None:
            self._read |= frozenset(read)
        else:
            self._read = frozenset(read)
            self._beside = frozenset(file.resolve().parent for file in code if not self._is_inside(file.resolve()))
        if self._elsewhere() != watched:
            self._watch(self._elsewhere(), recursive=False)

    def _elsewhere(self) -> frozenset[Path]:
        """Return the folders outside those that were named first in which a file counts."""
        folders = {*self._beside, *(file.parent for file in self._read if not self._is_watched(file))}
        return frozenset(folder for folder in folders if folder.is_dir())

    async def next(self) -> frozenset[Path]:
        """Wait for changes, and return the files of all that were not told of yet.

        Raises:
            OSError: The system does not tell of more.
        """
        await self._news.wait()
        if self._failure is not None:
            raise self._failure
        self._news.clear()
        come, self._come = frozenset(self._come), set[Path]()
        return come

    def _watch(self, folders: Collection[Path], *, recursive: bool) -> None:
        old = self._tasks.pop(recursive, None)
        if old is not None:
            old.cancel()
        if folders:
            self._tasks[recursive] = asyncio.create_task(self._listen(folders, recursive=recursive))

    async def _listen(self, folders: Collection[Path], *, recursive: bool) -> None:
        try:
            async for changes in awatch(*folders, watch_filter=self._counts, step=_STEP, recursive=recursive):
                self._come.update(file for _, path in changes for file in self._files_of(Path(path)))
                if self._come:
                    self._news.set()
        except OSError as error:
            self._failure = error
            self._news.set()

    def _counts(self, change: Change, path: str) -> bool:
        file = Path(path)
        if file in self._read:
            return True
        if change is Change.added and file.is_dir():
            return self._is_inside(file / _SETTINGS)
        is_code = file.suffix in _CODE and not file.name.startswith(".")
        if not is_code and not file.name.startswith(_SETTINGS):
            return False
        return file.parent in self._beside or self._is_inside(file)

    def _files_of(self, path: Path) -> Iterator[Path]:
        """Yield what changed: of a folder that was added, the files that were in it before it was watched."""
        if not path.is_dir():
            yield path
            return
        for file in path.rglob("*"):
            if file.is_file() and self._counts(Change.added, str(file)):
                yield file

    def _is_inside(self, file: Path) -> bool:
        return is_below(file, self._folders)

    def _is_watched(self, file: Path) -> bool:
        return any(file.is_relative_to(folder) for folder in self._folders)
