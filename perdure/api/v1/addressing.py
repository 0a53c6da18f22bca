"""Finds the session of a route under `/v1`, and checks that its sender may touch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, HTTPException

from perdure.api.auth.identity import OPERATOR, Identity
from perdure.api.base.backend import BackendOf, Segment
from perdure.client import Runner
from perdure.sessions.inspecting import SessionKeys

SESSION = "/apps/{app_name}/users/{user_id}/sessions/{session_id}"
INVOCATION = SESSION + "/invocations/{invocation_id}"

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="A repetition with the same key counts once and is told the same; another request's key is 409.",
    ),
]


@dataclass(frozen=True)
class Where:
    """A session, and the runner that reaches it."""

    app_name: str
    user_id: str
    session_id: str
    runner: Runner

    @property
    def keys(self) -> SessionKeys:
        """The arguments by which the runner finds it."""
        return SessionKeys(user_id=self.user_id, session_id=self.session_id)

    @property
    def names(self) -> tuple[str, str, str]:
        """App, user and session id."""
        return self.app_name, self.user_id, self.session_id


def check_operator(identity: Identity, what: str) -> None:
    """Check that a sender is an operator.

    Raises:
        HTTPException: 403.
    """
    if OPERATOR not in identity.roles:
        raise HTTPException(403, f"{what} is for operators only")


def _where(app_name: Segment, user_id: Segment, session_id: Segment, backend: BackendOf) -> Where:
    return Where(app_name, user_id, session_id, backend.runner(app_name, user_id, session_id))


WhereOf = Annotated[Where, Depends(_where)]
"""The session that a route is about; the sender may do there what the route does."""
