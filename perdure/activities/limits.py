"""Failures told in words: a payload that Temporal would refuse without end, and code that this worker lacks."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio.exceptions import ApplicationError

from perdure.agents.registry import NotRegistered
from perdure.journal import MAX_PAYLOAD_BYTES, payload_size
from perdure.messages import Rollout


def check_size(value: BaseModel, what: str) -> None:
    """Check that a value fits into one payload.

    Raises:
        ApplicationError: It does not. Not retried.
    """
    size = payload_size(value)
    if size > MAX_PAYLOAD_BYTES:
        raise ApplicationError(
            f"{what} has {size / 1e6:.1f} MB, and Temporal takes {MAX_PAYLOAD_BYTES / 1e6:.1f} MB at the most;"
            " store it elsewhere and return a reference to it",
            type="PayloadTooLarge",
            non_retryable=True,
        )


def not_registered(error: NotRegistered, rollout: Rollout) -> ApplicationError:
    """Return the failure of an activity whose code this worker lacks; the workflow looks for it again, as told."""
    return ApplicationError(str(error), rollout, type="NotRegistered", non_retryable=True)
