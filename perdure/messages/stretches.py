"""What the activity of a model call did behind it: further steps of the same agent (`App.steps_per_activity`)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import unsaid, unsaid_none, unsaid_one
from perdure.journal.entries import Entry
from perdure.journal.tool_output import RunTimes
from perdure.messages.step_log import StepLog

BEGIN_WITHIN = 10.0
"""Seconds behind the first model call of an attempt within which further steps begin: what is kept, and not in history,
is lost where the workflow is terminated or reset."""


class FailedStep(BaseModel):
    """A step that failed behind others, whose attempts its session counts as those of an activity."""

    model_config = ConfigDict(frozen=True)

    call_id: str | None = None
    """The tool's call; `None`: the model."""
    attempts: int = Field(default=1, exclude_if=unsaid_one)
    answer_id: str | None = Field(default=None, exclude_if=unsaid_none)
    """Of the model: the event under which it was streamed, by id."""
    error_type: str | None = None
    message: str
    left: StepLog | None = Field(default=None, exclude_if=unsaid_none)
    """Of google.adk's: what it leaves in the log."""
    times: RunTimes | None = Field(default=None, exclude_if=unsaid_none)
    """Of a tool: when it ran."""
    non_retryable: bool = Field(default=False, exclude_if=unsaid)
    pause: float | None = None
    """Seconds until the next attempt, where the failure says."""


def cut_off(answer_id: str) -> FailedStep:
    """Return a model call whose worker was lost, or ended, before it was answered."""
    return FailedStep(answer_id=answer_id, error_type="TimeoutError", message="the worker was lost, or ended")


class Stretch(BaseModel):
    """Steps that were taken behind each other, and what the journal gains of them."""

    model_config = ConfigDict(frozen=True)

    steps: int = 0
    """Model calls and tool runs, all before these included."""
    took: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """What these are, for whoever looks at the activity in Temporal's UI: `model`, or a tool's name."""
    entries: tuple[Entry, ...] = ()
    next_answer_id: str | None = Field(default=None, exclude_if=unsaid_none)
    """What comes behind them is a model call: the event under which it would be streamed, by id."""
    failed: tuple[FailedStep, ...] = Field(default=(), exclude_if=unsaid)
    """Steps behind them that failed."""
