"""`CredentialStore`: what must be there to keep secrets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Owner:
    """Whose secrets: those of one user of one app. No other user's session opens them."""

    app: str
    user: str


class CredentialStore(ABC):
    """Keeps secrets by name: those of credentials that google.adk's tools ask users for, and ADK's saved credentials.

    The same for every worker of an app, and for the clients and the HTTP API that take answers. Its values are texts.
    """

    @abstractmethod
    async def save(self, owner: Owner, name: str, value: str) -> None:
        """Keep a value under a name, in the place of one that is there; returns once it is safe."""

    @abstractmethod
    async def load(self, owner: Owner, name: str) -> str | None:
        """Return a value; `None` if there is none of this name."""

    @abstractmethod
    async def delete(self, owner: Owner, prefix: str) -> None:
        """Forget the values whose names begin so; none is no error."""
