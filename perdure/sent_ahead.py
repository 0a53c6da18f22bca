"""Requests too large for an update: a signal brings them, and the update that follows names them.

All updates that a session has in flight, ten at the most, travel in the answer to one workflow task, the refused ones
too, and Temporal ends a run whose answer has more than 4 MB. A signal is written by itself.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SEND_AHEAD = "send_ahead"
"""The signal; its arguments are the name and the request."""

NOT_HERE = "NotSentAhead"
"""Type of the failure of an update whose request is not there: another run of the session got it."""

MAX_UPDATE_BYTES = 25_000
"""What an update may carry itself. Ten of them leave room for what activities are given, and for held back results."""


class SentAhead(BaseModel):
    """Stands in an update for the request that a signal brought."""

    model_config = ConfigDict(frozen=True)

    sent_ahead: str
    """The request's name: fresh for each time that it is sent."""
