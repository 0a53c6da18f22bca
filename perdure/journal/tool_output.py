"""`ToolOutput`: the result of a tool's activity, as the journal keeps it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import unsaid, unsaid_none, unsaid_one
from perdure.journal.events import Event, EventActions, no_actions
from perdure.plan.contents import types


class RunTimes(BaseModel):
    """The times at which a tool's function began and ended."""

    model_config = ConfigDict(frozen=True)

    attempt: int = Field(default=1, exclude_if=unsaid_one)
    """Which attempt came back, from 1."""
    started: float
    """Seconds since the epoch at which the first attempt started; of a retried one, at which it was scheduled."""
    ended: float
    """Seconds since the epoch at which the last one ended."""


class LocalCall(BaseModel):
    """The call that a local tool's result belongs to: its input stands in no history."""

    model_config = ConfigDict(frozen=True)

    invocation_id: str
    call_id: str
    confirmed: bool = False
    """It ran with a person's decision."""


class AgentAsked(BaseModel):
    """What an agent is told that a tool runs, and where the tool stood as it was to run it. Of google.adk's."""

    model_config = ConfigDict(frozen=True)

    content: types.Content
    """The message to the agent."""
    state: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    """What of its state differs from the session's."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    """The tool's arguments, as callbacks left them."""
    actions: EventActions = Field(default=EventActions(), exclude_if=no_actions)
    """What callbacks had set through the tool's context."""


class ToolOutput(BaseModel):
    """The result of a tool's activity."""

    model_config = ConfigDict(frozen=True)

    result: Any = None
    """The function's return value, as JSON."""
    actions: EventActions = Field(default=EventActions(), exclude_if=no_actions)
    """What the function set through its context; its `state_delta` may hold `temp:` keys."""
    content: types.Content | None = Field(default=None, exclude_if=unsaid)
    """What google.adk made of the return value, in place of `result`; `None` without a response, too."""
    after: tuple[Event, ...] = Field(default=(), exclude_if=unsaid)
    """Events that google.adk logs behind the response event."""
    state: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    """What google.adk's code wrote into the state by other ways than the actions; it lasts as the invocation does."""
    written_over: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """Keys of `state_delta` that another call of the answer had written since: its value is the newer one."""
    ends_agent: bool = Field(default=False, exclude_if=unsaid)
    """The code set `end_invocation`: the agent's run ends behind the response."""
    asks: AgentAsked | None = Field(default=None, exclude_if=unsaid)
    """The tool runs an agent, which is to run first."""
    task_result: Any = Field(default=None, exclude_if=unsaid_none)
    """The result of the agent's task, which the call has ended."""
    callback_args: dict[str, Any] | None = Field(default=None, exclude_if=unsaid_none)
    """The arguments as callbacks behind a google.adk tool see them, where these have still to run: one raised."""
    needs_confirmation: bool = Field(default=False, exclude_if=unsaid)
    """The predicate of `require_confirmation` said so; the function has not run."""
    times: RunTimes | None = None
    """When the function ran; `None` if it was never started, or once `ToolRan` holds it."""
    call: LocalCall | None = None
    """Whose result it is, if the tool ran as a local activity; the workflow drops it."""

    @property
    def awaits_callbacks(self) -> bool:
        """Whether the tool has run, and callbacks behind it have still to: one of them raised."""
        return self.callback_args is not None
