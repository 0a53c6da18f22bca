"""Reads the `.env` of an app into the environment before its code is imported, as google.adk does for its agents."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from dotenv import dotenv_values

__all__ = ["read_env"]

_NAME = ".env"
_LEFT_ALONE = "ADK_DISABLE_LOAD_DOTENV"
"""Set to `1` or `true`, no file is read: google.adk's own variable."""


def read_env(folder: Path) -> None:
    """Read the `.env` of a folder, or of the nearest one above that has one.

    What the environment had from elsewhere stays; what an earlier `.env` said, a later one may say otherwise.
    """
    given = _given()
    if os.environ.get(_LEFT_ALONE, "").lower() in ("1", "true"):
        return
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        if (place / _NAME).is_file():
            said = dotenv_values(place / _NAME)
            os.environ.update({key: value for key, value in said.items() if value is not None and key not in given})
            return


@cache
def _given() -> frozenset[str]:
    """Return the names that the environment had before the first file was read."""
    return frozenset(os.environ)
