"""An open call, and the statuses of invocations and sessions. Pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import unsaid

InvocationStatus = Literal["queued", "running", "waiting", "failed", "stopped", "finished"]


SessionStatus = Literal["running", "failed", "waiting", "stopped", "idle"]


class PendingCall(BaseModel):
    """A long-running call that waits for the user's answer."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    agent: str
    invocation_id: str
    branch: str | None = None
    since: float
    """Seconds since the epoch at which the call was logged."""
    deadline: float | None = None
    """Seconds since the epoch at which the session answers for the person, or fails the invocation."""
    about: str = Field(default="", exclude_if=unsaid)
    """Of a question for a credential: the tool, or toolset, that needs it."""
    message: str = Field(default="", exclude_if=unsaid)
    """The beginning of what the user wrote that started its invocation; only where open calls are listed."""
    plan: str | None = Field(default=None, exclude_if=unsaid)
    """Digest of the plan that its invocation is pinned to; only where open calls are listed."""
