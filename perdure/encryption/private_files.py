"""Writes files that only their owner may read, whole: whoever reads one sees the old text or the new."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

OWNER_ONLY = 0o600


def replace_file(path: Path, text: str, mode: int = OWNER_ONLY) -> None:
    """Write a file in the place of the one that is there, if any.

    Raises:
        OSError: It cannot be written; what was there still is.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
