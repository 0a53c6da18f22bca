"""Whether this process only shows sessions and sends to them, so that small types of contents do."""

from __future__ import annotations

_said: list[bool] = []


def only_show() -> None:
    """Say that this process serves no app and takes in no files; before what has contents is imported."""
    _said.append(True)


def only_shows() -> bool:
    """Return whether this process has said so."""
    return bool(_said)
