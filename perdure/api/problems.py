"""How refusals stand in the API's description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Problem(BaseModel):
    """A refusal."""

    detail: str
    """What is wrong, and what to do."""


_WHY = {
    400: "A name that no app, user or session can have, or a request that a session does not take.",
    403: "This takes a role that the sender has not.",
    404: "There is no such session, invocation, call or app; or it is another user's.",
    409: "The session exists, the call is answered, the invocation has finished or cannot be resumed, or the"
    " Idempotency-Key is that of another request.",
    413: "The body, or what it writes, is too large.",
    503: "No worker, or no Temporal, answers; a message may have arrived all the same.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return a route's refusals for its description; 400, 404 and 503 any of them may give."""
    return {status: {"model": Problem, "description": _WHY[status]} for status in sorted({400, 404, 503, *statuses})}
