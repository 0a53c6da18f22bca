"""The ledger of a session's tool calls, as the query `effects` returns it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from perdure.journal.tool_runs import Outcome


class Effect(BaseModel):
    """A tool call in the ledger of its session."""

    model_config = ConfigDict(frozen=True)

    call_id: str
    tool: str
    agent: str
    branch: str | None = None
    invocation_id: str
    """The invocation in which the model called it."""
    idempotency_key: str
    """What the tool got as `tool_context.idempotency_key`, and passed on."""
    attempts: int = 0
    """Attempts that are known to have started its function, over all resumes; one that still runs is not counted."""
    called: float
    """Seconds since the epoch at which the model's call was logged; so are the next two."""
    started: float | None = None
    ended: float | None = None
    outcome: Outcome
    """`running`: at work, or about to be.
    `done`: it returned, or somebody who knows said that it had taken effect.
    `failed`: it raised or timed out; a resume runs it again, unless the model was told of it (`on_failure`).
    `interrupted`: its run was cut off; a resume runs it again.
    `in doubt`: an at-most-once tool was cut off or raised; a person decides, or is asked at the resume.
    `awaits approval`, `rejected`: a person must approve it, or has refused.
    `waiting`, `answered`, `expired`: a long-running tool whose answer is awaited, has come, or came by its deadline.
    `not run`: the model got a response without a run, or none is recorded, as in a log from elsewhere.
    """
    cause: str | None = None
    """Why the last run failed."""


class EffectsPage(BaseModel):
    """Query `effects`: a page of the ledger, in the order of the calls."""

    model_config = ConfigDict(frozen=True)

    effects: tuple[Effect, ...]
    total: int
    """Calls in the whole ledger."""
