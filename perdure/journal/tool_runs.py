"""Counts and times the runs of a session's tools: the part of the fold that the ledger is made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perdure.journal.entries import ToolRan

Outcome = Literal[
    "running",
    "done",
    "failed",
    "interrupted",
    "in doubt",
    "awaits approval",
    "rejected",
    "waiting",
    "answered",
    "expired",
    "not run",
]
"""What became of a tool call: see `Effect.outcome`."""


@dataclass(frozen=True)
class ToolRuns:
    """The runs of a tool for one call."""

    attempts: int
    started: float
    """Seconds since the epoch of the first start."""
    ended: float
    """Seconds since the epoch of the last end."""
    outcome: Literal["failed", "stopped", "lost"] | None
    """Of the last one; `None` if it returned."""
    cause: str | None
    """Why the last one failed."""
    invocation_id: str | None
    """If it ran in another invocation than the one that called it."""
    key_salt: str
    """What its idempotency key began with."""


def idempotency_key(invocation_id: str, call_id: str, salt: str = "") -> str:
    """Return what a tool hands on so that a call takes effect once: no other call has it, nor another import of it."""
    key = f"{invocation_id}/{call_id}"
    return f"{salt}/{key}" if salt else key


def add_run(runs: dict[str, ToolRuns], entry: ToolRan) -> None:
    """Add an entry to the runs by call id."""
    if entry.outcome == "not_started":
        return
    known = runs.get(entry.call_id)
    runs[entry.call_id] = ToolRuns(
        attempts=entry.attempts + (known.attempts if known else 0),
        started=known.started if known else entry.started,
        ended=entry.ended,
        outcome=entry.outcome,
        cause=entry.cause,
        invocation_id=entry.invocation_id,
        key_salt=entry.key_salt,
    )
