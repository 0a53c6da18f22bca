"""`SessionKey`: names one session everywhere behind the public doors, and its workflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import quote, unquote

__all__ = ["SessionArguments", "SessionKey"]


class SessionArguments(TypedDict):
    """The arguments by which a `Runner` finds a session of its app."""

    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names a session by its app, its user and its own id."""

    app: str
    user: str
    session: str

    @property
    def workflow_id(self) -> str:
        """The id of the session's workflow: `app/user/session`, each part percent-encoded."""
        return "/".join(quote(part, safe="") for part in (self.app, self.user, self.session))

    @property
    def arguments(self) -> SessionArguments:
        """The arguments by which a `Runner` of the app finds the session."""
        return {"user_id": self.user, "session_id": self.session}

    @classmethod
    def parse(cls, workflow_id: str) -> SessionKey:
        """Return the key of the session that a workflow id names.

        Raises:
            ValueError: This is no id of a session's workflow.
        """
        parts = workflow_id.split("/")
        if len(parts) != 3:
            raise ValueError(f"{workflow_id!r} is no session's workflow id; expected APP/USER/SESSION")
        return cls(*map(unquote, parts))
