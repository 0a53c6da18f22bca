"""What a step of a google.adk agent adds to the journal, as it travels from an activity to the workflow."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import unsaid, unsaid_none
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


class StepLog(BaseModel):
    """What a step of a google.adk agent adds to the journal."""

    model_config = ConfigDict(frozen=True)

    events: tuple[Event, ...] = ()
    state: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    """What its code wrote into the state by other ways than an event; it lasts as the invocation does."""
    ended: bool = Field(default=False, exclude_if=unsaid)
    """The agent's run, or the turn, ends behind the events."""
    message: types.Content | None = Field(default=None, exclude_if=unsaid)
    """What the user's message is to be, if plugins changed it."""
    agents: tuple[NextAgent, ...] = Field(default=(), exclude_if=unsaid)
    """Of a custom agent's code: the sub-agents without which it does not go on, to be run at once."""
    passes_on: bool = Field(default=False, exclude_if=unsaid)
    """Of a custom agent's code: it ended by what a sub-agent had failed of."""
    returned: ToolOutput | None = Field(default=None, exclude_if=unsaid_none)
    """Of a tool's step that failed: what the tool had returned before that."""
    done: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """Of a graph: nodes that ended and left no event that tells so, by path."""
    goes_on: bool = Field(default=False, exclude_if=unsaid)
    """Of a graph: nodes of it are at work, or may go on once what this step adds is kept."""
