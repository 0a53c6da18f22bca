"""`Findings`: what is known of an app before it runs, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Verdict = Literal["durable", "coarser", "refused"]
"""`durable`: each thing that it does is a recorded step. `coarser`: all of it is one step, which is done again from its
begin if it is cut off. `refused`: Perdure does not run it."""

HazardKind = Literal[
    "module_state",
    "client_at_import",
    "clock_or_randomness",
    "own_model_calls",
    "own_nodes",
    "in_memory_memory",
    "credentials",
]


class Part(BaseModel):
    """An agent, or one of its tools, and how durable it is."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: str
    """Names from the root on, with slashes; of a tool, its agent's with its own behind it."""
    kind: str
    """Its class."""
    tool: bool = False
    verdict: Verdict = "durable"
    reason: str | None = None
    """Why it is not durable."""
    remedy: str | None = None
    """What to do about that."""


class Hazard(BaseModel):
    """Something that works in one process that never ends, and not with workers that come and go."""

    model_config = ConfigDict(frozen=True)

    kind: HazardKind
    where: str
    """`FILE:LINE`, or the agent and tool."""
    words: str
    remedy: str


class Findings(BaseModel):
    """All that `perdure check` says of an app."""

    model_config = ConfigDict(frozen=True)

    app: str
    refused: str | None = None
    """Why the app cannot be served: the first reason, or why it cannot be imported."""
    parts: tuple[Part, ...] = ()
    hazards: tuple[Hazard, ...] = ()


@dataclass(frozen=True)
class UserCode:
    """A function that an app's author wrote and that Perdure will call."""

    role: Literal["callback", "tool", "agent", "node"]
    name: str
    """As its author reads it: `before_model_callback of agent 'clerk'`."""
    function: Callable[..., Any]


@dataclass
class Seen:
    """What a look at an app's objects has found."""

    parts: list[Part] = field(default_factory=list[Part])
    code: list[UserCode] = field(default_factory=list[UserCode])
    remembers: list[str] = field(default_factory=list[str])
    """Who uses the memory service."""
    asks_credentials: list[str] = field(default_factory=list[str])
    """Who may ask a person for a credential."""

    @property
    def refused(self) -> Part | None:
        """The first part that Perdure does not run."""
        return next((part for part in self.parts if part.verdict == "refused"), None)
