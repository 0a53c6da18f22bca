"""Temporal's payload limit, told in words before the server refuses the payload without end."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio.exceptions import ApplicationError

from perdure.journal import MAX_PAYLOAD_BYTES, payload_size


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
