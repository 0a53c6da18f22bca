"""`BrokenApp`: an app that cannot be served, beside others that can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RefusedAt = Literal["import", "compile"]
"""Where an app was refused: its code cannot be imported, or Perdure cannot run what it defines."""


@dataclass(frozen=True, eq=False)
class BrokenApp:
    """Stands for an app of a folder that cannot be served; its runs fail with the reason."""

    name: str
    """The folder's name."""
    reason: str
    """What happened, where, and what to do."""
    step: RefusedAt = "import"
    """Where it was refused."""
    trace: str = ""
    """The error with the frames of the user's code, in lines, if its code raised it."""

    @property
    def is_resumable(self) -> bool:
        """Whether a long-running call pauses its invocation: there is none."""
        return False
