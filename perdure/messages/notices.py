"""What a session asks to have told to people, and what the workflow of a notice has its activity send. Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from pydantic import BaseModel, ConfigDict

NOTIFY = "perdure:notify"
SEND_NOTICE = "perdure:send_notice"
NOTICE_WORKFLOW = "perdure:notice"

Happening = Literal["call.waiting", "call.due", "invocation.failed"]
"""A call waits for an answer; it still does, and is due; an invocation has failed."""

Channel = Literal["webhook", "mail"]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class NotifyInput(_Message):
    """Activity `perdure:notify`: what has happened in the session that schedules it."""

    happened: Happening
    invocation_id: str
    call_id: str | None = None
    """Of a call that waits."""
    entry: int
    """Length of the journal with what has happened; tells one failure of an invocation from the next."""


class NoticeInput(_Message):
    """The argument of a notice's workflow. It names what is told; the text is made when it is sent."""

    session_id: str
    """Id of the session's workflow."""
    happened: Happening
    invocation_id: str
    call_id: str | None = None
    entry: int = 0
    channels: tuple[Channel, ...]


class SendNoticeInput(_Message):
    """Activity `perdure:send_notice`: tells by one channel."""

    notice: NoticeInput
    happened: Happening
    channel: Channel


class SendNoticeResult(_Message):
    """The result of `perdure:send_notice`."""

    still: bool
    """It is so still: the call waits, the invocation has failed. Else nothing was sent."""
    due: float | None = None
    """Seconds since the epoch at which to tell of the call once more, if it waits then."""


def notice_id(session_id: str, request: NotifyInput) -> str:
    """Return the id of a notice's workflow, by which the same thing is told once."""
    what = f"{request.happened}/{request.invocation_id}/{request.call_id or request.entry}"
    return f"{NOTICE_WORKFLOW}/{session_id}/{sha256(what.encode(errors='replace')).hexdigest()[:16]}"
