"""`Step`: the names of a step, which its activity fills in for whoever counts or traces it. No contents."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

StepKind = Literal["model", "tool", "function"]
"""A model call, a tool run, or a function that a custom agent gave to `run_activity`."""


@dataclass
class Step:
    """One attempt of a model call, tool or function."""

    kind: StepKind | None = None
    """`None`: an activity of Perdure's own, which is no step of an agent."""
    agent: str = ""
    name: str = ""
    """`model`, or the name of the tool or function."""
    model: str = ""
    """A model call: the model that was asked."""
    provider: str = ""
    """A model call: who serves the model, by the names of OpenTelemetry's conventions where they have one."""
    invocation_id: str = ""
    call_id: str = ""
    """A tool run: the id of its function call."""


_current: ContextVar[Step | None] = ContextVar("perdure_step", default=None)


@contextmanager
def observed() -> Generator[Step]:
    """Give the activity that runs inside of the block a step to fill in; several who look share one."""
    step = _current.get()
    if step is not None:
        yield step
        return
    step = Step()
    token = _current.set(step)
    try:
        yield step
    finally:
        _current.reset(token)


def tell(kind: StepKind, agent: str, name: str, *, invocation_id: str = "", call_id: str = "", model: str = "") -> None:
    """Say what the running activity is about, if anybody looks."""
    step = _current.get()
    if step is not None:
        step.kind, step.agent, step.name = kind, agent, name
        step.invocation_id, step.call_id, step.model = invocation_id, call_id, model


def tell_provider(provider: str) -> None:
    """Say who serves the model that the running activity asks."""
    step = _current.get()
    if step is not None:
        step.provider = provider
