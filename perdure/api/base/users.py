"""Says whose session is meant by protocols that know no users."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from perdure.api.auth.identity import IdentityOf

ANONYMOUS = "user"
"""The user of who does not say it, where the server asks for no credentials. As in ADK's own page."""


def _user(
    identity: IdentityOf,
    user_id: Annotated[str | None, Query(alias="userId", min_length=1, description="Default: the sender.")] = None,
) -> str:
    return user_id or identity.subject or ANONYMOUS


UserOf = Annotated[str, Depends(_user)]
"""The user of a request's session: the query's `userId`, or else who sends it. `check_users` looks at the query."""
