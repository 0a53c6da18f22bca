"""What a step that is no model call and no tool adds to the journal, as it travels from an activity to the workflow."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import unsaid, unsaid_none
from perdure.journal.entries import Failure
from perdure.journal.events import Event
from perdure.journal.node_runs import NodeRun
from perdure.journal.tool_output import ToolOutput
from perdure.plan.contents import types


class NextAgent(BaseModel):
    """A sub-agent that a custom agent's code waits for."""

    model_config = ConfigDict(frozen=True)

    agent: str
    nth: int = Field(default=1, ge=1)
    """The n-th run of it since the custom agent's last checkpoint."""
    branch: str | None = Field(default=None, exclude_if=unsaid)
    node: NodeRun | None = Field(default=None, exclude_if=unsaid)
    """Of a graph: the node as which it runs."""


class NextCall(BaseModel):
    """A function of `run_activity` that a custom agent's code waits for."""

    model_config = ConfigDict(frozen=True)

    name: str
    args: tuple[Any, ...] = Field(default=(), exclude_if=unsaid)
    kwargs: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    arguments: str
    """Digest of the arguments."""
    nth: int = Field(default=1, ge=1)
    """The n-th call of it with equal arguments since the custom agent's last checkpoint."""


class CodeFailure(BaseModel):
    """A failure of another step, by which a custom agent's code has ended."""

    model_config = ConfigDict(frozen=True)

    failures: tuple[Failure, ...] = Field(min_length=1)
    """The failure, and those beside it."""
    silent: bool = Field(default=False, exclude_if=unsaid)
    """As in `EffectFailed`."""
    again: tuple[int, ...] = Field(default=(), exclude_if=unsaid)
    """Which failures that the code was given are tried again by a resume: as in `FailureCaught`."""


class StepLog(BaseModel):
    """What such a step adds to the journal; or a model call of google.adk's."""

    model_config = ConfigDict(frozen=True)

    events: tuple[Event, ...] = ()
    state: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    """What its code wrote into the state by other ways than an event; it lasts as the invocation does."""
    ended: bool = Field(default=False, exclude_if=unsaid)
    """The agent's run, or the turn, ends behind the events."""
    message: types.Content | None = Field(default=None, exclude_if=unsaid)
    """What the user's message is to be, if plugins changed it."""
    agents: tuple[NextAgent, ...] = Field(default=(), exclude_if=unsaid)
    """Of a custom agent's code: the sub-agents that it waits for, those that run already, too."""
    calls: tuple[NextCall, ...] = Field(default=(), exclude_if=unsaid)
    """Of a custom agent's code: the functions that it waits for, those that run already, too."""
    failed: CodeFailure | None = Field(default=None, exclude_if=unsaid)
    """Of a custom agent's code: the failure by which it has ended."""
    returned: ToolOutput | None = Field(default=None, exclude_if=unsaid_none)
    """Of a tool's step that failed: what the tool had returned before that."""
    done: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """Of a graph: nodes that ended and left no event that tells so, by path."""
    output: ToolOutput | None = Field(default=None, exclude_if=unsaid_none)
    """Of a tool that runs nodes: its output, once its code has ended."""
    goes_on: bool = Field(default=False, exclude_if=unsaid)
    """The code is at work besides: of a graph, nodes of it are, or may go on once what this step adds is kept."""
    wakes_in: float | None = Field(default=None, exclude_if=unsaid)
    """A timer of the code's own is due in so many seconds."""
