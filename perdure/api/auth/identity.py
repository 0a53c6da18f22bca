"""`Identity`: the sender of a request, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request

OPERATOR = "operator"
"""May do everything, for every user."""
APPROVER = "approver"
"""May read every user's sessions and answer what waits in them."""

SCOPE_KEY = "perdure.identity"
"""Where in an ASGI scope the identity stands, once it is known."""

Deed = Literal["read", "answer", "run"]
"""What a request does in a session: looks, answers what waits, or anything else."""


@dataclass(frozen=True)
class Identity:
    """The sender of a request: a subject and its roles."""

    subject: str | None = None
    """The user id that the request's credential is of; none if the server asks for no credentials."""
    roles: frozenset[str] = frozenset()

    def may_run(self, user_id: str) -> bool:
        """Return whether it may create, run, stop, resume and delete a user's sessions."""
        return OPERATOR in self.roles or user_id == self.subject

    def may_answer(self, user_id: str) -> bool:
        """Return whether it may read a user's sessions and answer the calls that wait in them."""
        return APPROVER in self.roles or self.may_run(user_id)

    def may(self, deed: Deed, user_id: str) -> bool:
        """Return whether it may do something in a user's sessions."""
        return self.may_run(user_id) if deed == "run" else self.may_answer(user_id)

    def may_for_all(self, deed: Deed) -> bool:
        """Return whether it may do something in every user's sessions."""
        return OPERATOR in self.roles or (deed != "run" and APPROVER in self.roles)


ANYONE = Identity(roles=frozenset({OPERATOR}))
"""Whoever calls a server that asks for no credentials."""

NOBODY = Identity()
"""Whoever shows no credential to a server that asks for one, on a path that is open to everybody."""


def _identity(request: Request) -> Identity:
    identity: Identity = request.scope.get(SCOPE_KEY, ANYONE)
    return identity


IdentityOf = Annotated[Identity, Depends(_identity)]
"""Who sends the request that a route answers."""
