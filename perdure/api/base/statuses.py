"""Maps Perdure's and Temporal's errors to HTTP statuses and texts."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from perdure.api.base.refusals import type_of
from perdure.errors import (
    ArtifactError,
    CallAnswered,
    CallNotFound,
    ConnectionFailed,
    InvalidMessage,
    InvalidTrajectory,
    InvocationFailed,
    InvocationFinished,
    InvocationNotFound,
    InvocationRunning,
    MixedInvocations,
    NotResumable,
    QueueFull,
    RequestIdTaken,
    RequestRefused,
    SessionExists,
    SessionFull,
    SessionNotFound,
    SessionStuck,
    SessionUnreadable,
    SharedStateFull,
)
from perdure.logs import get_logger
from perdure.plan.nodes import AdkRules


class ServerEnding(Exception):
    """The server ends while a client follows a run."""


class CredentialExpired(Exception):
    """A client's credential expires, or is taken back, while it follows a run."""


STATUSES: dict[type[Exception], int] = {
    ArtifactError: 400,
    RequestRefused: 400,
    InvalidMessage: 400,
    InvalidTrajectory: 400,
    MixedInvocations: 400,
    SessionNotFound: 404,
    InvocationNotFound: 404,
    CallNotFound: 404,
    SessionExists: 409,
    SessionFull: 409,
    QueueFull: 429,
    InvocationFinished: 409,
    InvocationRunning: 409,
    NotResumable: 409,
    CallAnswered: 409,
    RequestIdTaken: 409,
    SharedStateFull: 413,
    InvocationFailed: 500,
    ConnectionFailed: 503,
    SessionStuck: 503,
    SessionUnreadable: 503,
    TimeoutError: 503,
    ServerEnding: 503,
    CredentialExpired: 401,
}
"""By type, the nearest base class counts. What is not named is an internal error: 500, without a reason."""

INTERNAL = "Internal Server Error"

_RPC = {RPCStatusCode.INVALID_ARGUMENT: 400, RPCStatusCode.INTERNAL: 500, RPCStatusCode.PERMISSION_DENIED: 500}
"""Temporal's own errors; the others mean that it is away or overloaded."""

_SAID = {
    ConnectionFailed: "Temporal does not answer; try again",
    SessionStuck: (
        "no worker can go on with the session; its worker's log and the Temporal UI say why"
        " (`perdure resume` with the option --fresh may help)"
    ),
    TimeoutError: "no answer in time; if no worker of the app runs, start one (perdure worker), or try again",
}
"""What a client is told where the error's own text is for whoever runs the server."""

_logger = get_logger("perdure.api")


def status_and_detail(error: Exception) -> tuple[int, str] | None:
    """Return the status and the text that an error becomes; `None` for an internal error."""
    if isinstance(error, RPCError):
        status = _RPC.get(error.status, 503)
        text = "Temporal does not take the request" if status == 400 else "Temporal does not answer; try again"
        return None if status == 500 else (status, text)
    for cls in type(error).__mro__:
        if cls in STATUSES:
            return STATUSES[cls], _SAID.get(cls, str(error))
    return None


def log_internal(error: Exception, **about: Any) -> None:
    """Write a log line for an internal error: what and where, and nothing of what it was about."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    _logger.error("request failed", error=type(error).__name__, where=where, **about)


def kind_and_text(error: Exception, route: str) -> tuple[str, str]:
    """Return what a client is told of an error that ends a stream: its kind and words. An internal one is logged.

    Args:
        error: Why it breaks off.
        route: Where, for the log.
    """
    if isinstance(error, InvocationFailed):
        return type(error).__name__, str(error)
    known = status_and_detail(error)
    if known is None:
        log_internal(error, route=route)
        return "InternalError", INTERNAL
    return type(error).__name__, known[1]


def error_frame(error: Exception, adk: AdkRules | None = None) -> dict[str, Any]:
    """Return ADK's last frame of a stream that breaks off; an internal error is logged, not told.

    Args:
        error: Why it breaks off.
        adk: The rules of the app, if its agents are google.adk's: the frame is as in that version then.
    """
    if isinstance(error, InvocationFailed) and adk is not None:
        return _adk_frame(error, adk)
    kind, text = kind_and_text(error, "/run_sse")
    return {
        "error": f"{kind}: {text}",
        "type": type_of(error),
        "error_details": {"error_type": kind, "error_message": text, "timestamp": time.time()},
    }


def _adk_frame(error: InvocationFailed, adk: AdkRules) -> dict[str, Any]:
    """Return the frame of a failed step as google.adk has it: 1.x tells the error's text only."""
    kind, _, text = error.cause.partition(": ")
    if adk.major < 2:
        return {"error": text or kind}
    return {
        "error": error.cause,
        "error_details": {"error_type": kind, "error_message": text, "timestamp": time.time()},
    }
