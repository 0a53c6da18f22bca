"""Finds the session of a route under `/v1`, and checks that its sender may touch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, HTTPException

from perdure.api.auth.identity import OPERATOR, Identity
from perdure.api.base.backend import BackendOf, KeyOf
from perdure.client import Runner
from perdure.messages.keys import SessionKey

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

    key: SessionKey
    runner: Runner


def check_operator(identity: Identity, what: str) -> None:
    """Check that a sender is an operator.

    Raises:
        HTTPException: 403.
    """
    if OPERATOR not in identity.roles:
        raise HTTPException(403, f"{what} is for operators only")


def _where(key: KeyOf, backend: BackendOf) -> Where:
    return Where(key, backend.runner_of(key))


WhereOf = Annotated[Where, Depends(_where)]
"""The session that a route is about; the sender may do there what the route does."""
