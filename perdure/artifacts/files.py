"""Artifacts in a folder, which several processes and, over NFS, several machines may share."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from perdure.artifacts.blobs import BlobArtifactService

_UNFINISHED = ".unfinished"
_RETRIES = 100


class FileArtifactService(BlobArtifactService):
    """Keeps artifacts in a folder. Its file system must know hard links, as all usual ones do.

    What is saved is on the disk before the save returns, and is seen whole or not at all. A process that dies in the
    middle leaves a file in `.unfinished`, which may be deleted.
    """

    def __init__(self, folder: str | Path) -> None:
        """Use a folder, which is made with the first save."""
        self._root = Path(folder).expanduser().absolute()

    def __repr__(self) -> str:
        return f"FileArtifactService({str(self._root)!r})"

    def create_blob(self, name: str, data: bytes) -> bool:  # noqa: D102 -- as in the base class
        path = self._root / name
        if path.exists():
            return False
        with self._written(data) as written:
            for attempt in range(_RETRIES):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # Unlike a rename, it never takes the place of a file that is there.
                    os.link(written, path)
                except (FileExistsError, FileNotFoundError):
                    if path.exists():
                        return False
                    # An artifact was deleted just now, with its folder; `mkdir`, too, finds it there and then not.
                    if attempt == _RETRIES - 1:
                        raise
                else:
                    _sync(path.parent)
                    return True
        raise AssertionError("the loop returns or raises")

    @contextmanager
    def _written(self, data: bytes) -> Generator[Path]:
        """Write a file that nobody else knows, for as long as the block runs."""
        path = self._root / _UNFINISHED / uuid.uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def read_blob(self, name: str) -> bytes | None:  # noqa: D102
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list_blobs(self, prefix: str) -> Iterable[str]:  # noqa: D102
        for folder, _, files in os.walk(self._root / prefix):
            parent = Path(folder).relative_to(self._root).as_posix()
            yield from (f"{parent}/{file}" for file in files)

    def delete_blob(self, name: str) -> None:  # noqa: D102
        path = self._root / name
        path.unlink(missing_ok=True)
        # Folders that are empty now go, too; one that is not refuses.
        with contextlib.suppress(OSError):
            while path.parent != self._root:
                path = path.parent
                path.rmdir()


def _sync(folder: Path) -> None:
    """Let a new name in a folder reach the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
