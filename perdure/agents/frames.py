"""Tells the frames of users' code in a traceback from those of Perdure and Temporal."""

from __future__ import annotations

from pathlib import PurePath

import temporalio

_FOLDERS = (PurePath(__file__).parent.parent, PurePath(str(temporalio.__file__)).parent)
"""Where the packages really are: a user's own folder may have a package's name."""


def is_users(filename: str) -> bool:
    """Return whether code of this file is neither Perdure's nor Temporal's, nor that of Python's import system."""
    return not filename.startswith("<") and not any(map(PurePath(filename).is_relative_to, _FOLDERS))
