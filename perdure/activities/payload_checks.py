"""Checks the size of results, which Temporal would refuse without end, and words failures of user code."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError
from temporalio.exceptions import ApplicationError

from perdure.compiler.registry import NotRegistered
from perdure.errors import InvalidMessage, message_of
from perdure.journal.compact_json import payload_bytes
from perdure.messages.rollout import Rollout
from perdure.messages.session import NOT_REGISTERED, ModelOutput
from perdure.messages.step_log import StepLog
from perdure.rules.bounds import MAX_REQUEST_VALUES, MAX_RESULT_VALUES, check_parts, excess
from perdure.rules.large_results import MAX_RESULT_BYTES
from perdure.steps.base import StepOutput

MAX_LOCAL_BYTES = 250_000
"""What a local activity may return: several results go to the server in one message, of 4 MB at the most."""


def check_size(value: BaseModel, what: str) -> None:
    """Check that the log takes a value, and that it can be read again.

    Raises:
        ApplicationError: It does not, or it cannot be written at all. Not retried.
    """
    try:
        data = payload_bytes(value)
    except PydanticSerializationError as error:
        # Text may hold half of a character (a lone surrogate), which no payload takes.
        raise ApplicationError(f"{what} is no JSON: {error}", type="NotJson", non_retryable=True) from error
    problem = _problem(value, data)
    if problem is not None:
        raise ApplicationError(f"{what} {problem}", type="NotJson", non_retryable=True)
    check_bytes(len(data), MAX_RESULT_BYTES, what)


def check_bytes(size: int, most: int, what: str) -> None:
    """Check a size.

    Raises:
        ApplicationError: It is too large. Not retried.
    """
    if size > most:
        raise ApplicationError(
            f"{what} has {size / 1e6:.2f} MB, and the log takes {most / 1e6:.2f} MB at the most; store it elsewhere and"
            " return a reference to it",
            type="PayloadTooLarge",
            non_retryable=True,
        )


def step_log(output: StepOutput) -> StepLog:
    """Return what a step adds to the log, as it travels."""
    return StepLog(
        events=tuple(output.events),
        state=dict(output.state),
        ended=output.ended,
        message=output.message,
        agents=output.agents,
        returned=output.returned,
        calls=output.calls,
        failed=output.failed,
        done=output.done,
        output=output.output,
        goes_on=output.goes_on,
        wakes_in=output.wakes_in,
    )


def told(error: Exception, *details: object, non_retryable: bool = False) -> ApplicationError:
    """Return an error for what user code raised: its type, and its text in a bearable length.

    Args:
        error: What was raised. An `ApplicationError` says itself whether and when it is retried.
        details: What is put behind its own details.
        non_retryable: Whether there is no other attempt.
    """
    if isinstance(error, ApplicationError):
        failure = ApplicationError(
            error.message,
            *error.details,
            *details,
            type=error.type,
            non_retryable=error.non_retryable or non_retryable,
            next_retry_delay=error.next_retry_delay,
            category=error.category,
        )
    else:
        failure = ApplicationError(message_of(error), *details, type=type(error).__name__, non_retryable=non_retryable)
    return failure.with_traceback(error.__traceback__)


def _problem(value: BaseModel, data: bytes) -> str | None:
    """Return what a value has too much of, so that a workflow would take too long over it."""
    most = MAX_RESULT_VALUES
    if isinstance(value, ModelOutput):
        most = MAX_REQUEST_VALUES
        try:
            check_parts(len(value.answer.parts))
        except InvalidMessage as error:
            return f"is too much: {error}"
    problem = excess(data, most)
    return f"{problem}; return less of them, or a text" if problem is not None else None


def not_registered(error: NotRegistered, rollout: Rollout) -> ApplicationError:
    """Return the failure of an activity whose code this worker lacks; the workflow looks for it again."""
    return ApplicationError(str(error), rollout, type=NOT_REGISTERED, non_retryable=True)
