"""Secrets in a folder, a file for each, which only its owner may read; several processes may share it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path

from perdure.artifacts.names import encode_name
from perdure.credentials.store import CredentialStore, Owner

_FOLDER, _FILE = 0o700, 0o600


class FileCredentialStore(CredentialStore):
    """Keeps secrets in a folder. Where histories are encrypted, a worker encrypts these with the same keys."""

    def __init__(self, folder: str | Path) -> None:
        """Use a folder, which is made with the first save."""
        self._root = Path(folder).expanduser().absolute()

    def __repr__(self) -> str:
        return f"FileCredentialStore({str(self._root)!r})"

    async def save(self, owner: Owner, name: str, value: str) -> None:  # noqa: D102 -- as in the base class
        await asyncio.to_thread(self._write, self._folder(owner) / encode_name(name), value)

    async def load(self, owner: Owner, name: str) -> str | None:  # noqa: D102
        return await asyncio.to_thread(self._read, self._folder(owner) / encode_name(name))

    async def delete(self, owner: Owner, prefix: str) -> None:  # noqa: D102
        await asyncio.to_thread(self._remove, self._folder(owner), encode_name(prefix))

    def _folder(self, owner: Owner) -> Path:
        return self._root / encode_name(owner.app) / encode_name(owner.user)

    def _write(self, path: Path, value: str) -> None:
        path.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
        draft = path.with_name(f".{secrets.token_hex(8)}")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE), "w") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def _read(self, path: Path) -> str | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return path.read_text()
        return None

    def _remove(self, folder: Path, prefix: str) -> None:
        for path in folder.glob("*"):
            if path.name.startswith(prefix):
                path.unlink(missing_ok=True)
