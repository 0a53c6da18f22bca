"""What a step's activity failed of: its words, its kind, and what attempts are left."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError

from perdure.errors import EffectFailed
from perdure.journal.entries import Failure
from perdure.messages.rollout import Rollout
from perdure.messages.session import NOT_REGISTERED
from perdure.messages.step_log import StepLog
from perdure.messages.stretches import FailedStep
from perdure.rules.failures import error_text, timeout_text
from perdure.rules.in_doubt import NOT_STARTED, is_silent


def told(failed: EffectFailed) -> Iterator[Failure]:
    """Yield the journal's failures of an error: its own, and those of other branches."""
    yield Failure(agent=failed.agent, step=failed.step, cause=failed.cause)
    for other in failed.beside:
        yield from told(other)


def _inner(error: FailureError) -> BaseException | None:
    """Return what an activity failed of; a local one's own error comes without a wrapping."""
    return error.cause if isinstance(error, ActivityError) else error


def error_type(error: FailureError) -> str | None:
    """Return the type that an activity's error names, if it is one of the activity's own."""
    cause = _inner(error)
    return cause.type if isinstance(cause, ApplicationError) else None


def rollout_of(error: FailureError) -> Rollout | None:
    """Return how long to look for code that a worker lacks, as that worker says; `None` for any other failure."""
    cause = _inner(error)
    if not isinstance(cause, ApplicationError) or cause.type != NOT_REGISTERED:
        return None
    return Rollout.model_validate(cause.details[0]) if cause.details else Rollout()


def step_failed(agent: str, step: str, error: FailureError) -> EffectFailed:
    """Return the failure of an agent's step by which its activity failed."""
    kind = error_type(error)
    silent = is_silent(kind, timed_out=isinstance(_inner(error), TimeoutError))
    failed = EffectFailed(agent, step, cause_of(error), silent=silent, not_started=kind in NOT_STARTED)
    failed.left = _left(error)
    return failed


def _left(error: FailureError) -> StepLog | None:
    """Return what a failed step of google.adk's leaves in the log, from the details of its error."""
    cause = _inner(error)
    details = cause.details if isinstance(cause, ApplicationError) else ()
    given = details[0] if details else None
    if not isinstance(given, dict) or "events" not in given:
        return None
    try:
        return StepLog.model_validate(given)
    except ValidationError:
        return None


def cause_of(error: FailureError) -> str:
    """Return why an activity failed, in words."""
    cause = _inner(error)
    if isinstance(cause, ApplicationError):
        return error_text(cause.type, cause.message)
    if isinstance(cause, TimeoutError):
        return timeout_text(cause.type.name if cause.type else "unknown")
    return str(cause or error)


def last_failure(failed: FailedStep) -> ApplicationError:
    """Return the error of a step that failed behind others, and is not tried again."""
    details = [told.model_dump(mode="json", by_alias=True) for told in (failed.left, failed.times) if told is not None]
    return ApplicationError(failed.message, *details, type=failed.error_type, non_retryable=True)
