"""`Drafts`: what a step writes whose code says several things, for those who follow its session."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.streams.hub import Draft, TokenHub, Writer


@dataclass(frozen=True)
class Drafts:
    """Begins drafts of one step of one session."""

    hub: TokenHub
    session: str
    """Workflow id of the session."""
    invocation_id: str
    offset: int
    """Events in the log that the step began with."""
    attempt: int
    """Which attempt of the step it is."""

    def begin(self, id: str, *, author: str, branch: str | None, before: int, again: int) -> Writer | None:
        """Begin to write what is to be an event; `None` if nobody follows the session.

        Args:
            id: What the event's id will be.
            author: Who says it.
            branch: The branch on which.
            before: How many events the step logs before it, which readers are shown first.
            again: 0, or a number that is greater each time that the code begins at its top once more.
        """
        draft = Draft(
            session=self.session,
            id=id,
            attempt=again + self.attempt,
            offset=self.offset + before,
            author=author,
            invocation_id=self.invocation_id,
            branch=branch,
        )
        return self.hub.begin(draft)
