"""`Step`: the names of a step, which its activity fills in for whoever counts or traces it. No contents."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import time_ns
from typing import Any, Literal

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
    attempt: int = 0
    """Which attempt it is; 0: its activity's."""
    behind: list[Step] = field(default_factory=list["Step"])
    """Further steps that the same activity took."""
    began: int = 0
    ended: int = 0
    """Of a further step: nanoseconds since the epoch."""
    error: BaseException | None = None
    """What it raised."""
    result: Any = None
    """What a model call returned."""

    @property
    def at_work(self) -> Step:
        """The step at which its activity is."""
        return next((step for step in self.behind if not step.ended), self)


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


@contextmanager
def behind() -> Generator[None]:
    """Take a further step of the activity that runs: what is told inside of the block is of it."""
    above, step = _current.get(), Step(began=time_ns())
    if above is not None:
        above.behind.append(step)
    token = _current.set(step)
    try:
        yield
    except BaseException as error:
        step.error = error
        raise
    finally:
        _current.reset(token)
        step.ended = time_ns()


def tell(kind: StepKind, agent: str, name: str, *, invocation_id: str = "", call_id: str = "", model: str = "") -> None:
    """Say what the running activity is about, if anybody looks."""
    step = _current.get()
    if step is not None:
        step.kind, step.agent, step.name = kind, agent, name
        step.invocation_id, step.call_id, step.model = invocation_id, call_id, model


def tell_attempt(attempt: int) -> None:
    """Say which attempt of a step is made, where its activity is not the first that makes one."""
    step = _current.get()
    if step is not None:
        step.attempt = attempt


def tell_provider(provider: str) -> None:
    """Say who serves the model that the running activity asks."""
    step = _current.get()
    if step is not None:
        step.provider = provider


def tell_result(result: Any) -> None:
    """Say what the running model call returned."""
    step = _current.get()
    if step is not None:
        step.result = result
