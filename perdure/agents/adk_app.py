"""`AdkApp`: a google.adk app, as Perdure serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.agents.broken import BrokenApp
from perdure.agents.definitions import App


@dataclass(frozen=True, eq=False)
class AdkApp:
    """A google.adk `App` under the name that it is served by."""

    name: str
    """The folder's name, as `adk web` has it; workflow type and task queue of its sessions."""
    app: Any
    """The `google.adk.apps.App`; a root agent without one is wrapped."""
    open: Callable[[AdkApp], Any]
    """Compiles it: returns the code behind its plan."""

    @property
    def is_resumable(self) -> bool:
        """Whether a long-running call pauses its invocation."""
        config = self.app.resumability_config
        return config is not None and bool(config.is_resumable)


AnyApp = App | AdkApp | BrokenApp
"""An app that a worker serves."""
