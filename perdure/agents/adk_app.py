"""`AdkApp`: a google.adk app, as Perdure serves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from google.genai import types

from perdure.agents.broken import BrokenApp
from perdure.agents.definitions import App
from perdure.models.base import BaseLlm


class AdkModels(Protocol):
    """The models of a google.adk app's agents, as proofs and tests need them."""

    def by_name(self) -> dict[str, str]:
        """Return the agents whose model is known by its name only, and that name."""
        ...

    def replace(self, models: Mapping[str, BaseLlm]) -> Callable[[], None]:
        """Put models in the place of agents' own; returns what takes that back.

        Raises:
            DefinitionError: There is no such agent.
        """
        ...

    def watch(self, tell: Callable[[str, Sequence[types.Content]], None]) -> None:
        """Have `tell` called with each request: whose it is, and its contents."""
        ...


@dataclass(frozen=True, eq=False)
class AdkApp:
    """A google.adk `App` under the name that it is served by."""

    name: str
    """The folder's name, as `adk web` has it; workflow type and task queue of its sessions."""
    app: Any
    """The `google.adk.apps.App`; a root agent without one is wrapped."""
    open: Callable[[AdkApp], Any]
    """Compiles it: returns the code behind its plan."""
    models: Callable[[AdkApp], AdkModels]
    """Returns its agents' models."""
    look: Callable[[AdkApp], Any]
    """Returns what is known of its agents and tools before any runs, the refused ones too."""
    steps_per_activity: int = 1
    """As of `App`."""

    @property
    def is_resumable(self) -> bool:
        """Whether a long-running call pauses its invocation."""
        config = self.app.resumability_config
        return config is not None and bool(config.is_resumable)


AnyApp = App | AdkApp | BrokenApp
"""An app that a worker serves."""
