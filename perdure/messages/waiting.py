"""What waits in a session, beside its search attributes: lists of what waits ask no session and read no history."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from perdure.journal.open_calls import PendingCall

WAITING_MEMO = "perdure:waiting"
"""The key of the workflow's memo. It counts only as long as the search attributes say that something waits."""

MOST_WAITING_BYTES = 8_000
"""What waits in a session stands in the memo up to here, as JSON; more is read from the session's history."""


class WaitingCalls(BaseModel):
    """The calls of a session that wait, all of them."""

    model_config = ConfigDict(frozen=True)

    calls: tuple[PendingCall, ...]
