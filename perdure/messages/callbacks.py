"""What a step is asked that is no model call and no tool: callbacks, custom agents' code, and credentials."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import unsaid
from perdure.journal.events import Event
from perdure.journal.run_paths import RunPath
from perdure.messages.session import JournalSlice

CALL_BACK = "perdure:callback"

AgentCallback = Literal["before", "after"]
"""Which of an agent's callbacks: before its run begins, or behind its end."""

Callback = Literal[AgentCallback, "begin", "end", "event", "run", "graph", "tool", "authorize"]
"""Which callbacks: before an agent's run begins, or behind its end; or those of plugins around an invocation's turn, or
of an event that the workflow made; or a custom agent's own code; or nodes of a graph; or a tool that runs nodes; or
what takes up a credential."""

CALLBACK_NAMES: dict[Callback, str] = {
    "before": "before_agent_callback",
    "after": "after_agent_callback",
    "begin": "before_run_callback",
    "end": "after_run_callback",
    "event": "on_event_callback",
    "run": "_run_async_impl",
    "graph": "graph",
    "tool": "tool",
    "authorize": "auth_preprocessor",
}
"""What people know them by: ADK's names."""


class CallbackInput(BaseModel):
    """Activity `perdure:callback`: callbacks around a google.adk agent or a turn; custom agents' code; credentials."""

    model_config = ConfigDict(frozen=True)

    which: Callback
    agent: str
    invocation_id: str
    branch: str | None = None
    run: RunPath = ""
    scope: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """The calls of tools that run the agent, outermost first."""
    requests: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """The answered questions for credentials, by id."""
    event: Event | None = Field(default=None, exclude_if=unsaid)
    """What plugins are to look at before it is logged."""
    journal: JournalSlice
