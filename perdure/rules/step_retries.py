"""Decides whether a step that failed behind others, in the activity of these, is tried again, and when. Pure."""

from __future__ import annotations

from datetime import timedelta

from perdure.messages.stretches import FailedStep
from perdure.plan.nodes import ToolOptions


def is_final(failed: FailedStep, options: ToolOptions) -> bool:
    """Return whether a step is not tried again: Temporal would say the same of an activity."""
    is_used_up = 0 < options.max_attempts <= failed.attempts
    return failed.non_retryable or is_used_up or failed.error_type in options.non_retryable


def pause_behind(failed: FailedStep, options: ToolOptions) -> float:
    """Return the seconds until the next attempt: what the failure says, or what the options do."""
    return failed.pause if failed.pause is not None else _pause(options, failed.attempts).total_seconds()


def options_left(options: ToolOptions, attempts: int) -> ToolOptions:
    """Return the options of a step of which so many attempts were made."""
    left = max(options.max_attempts - attempts, 1) if options.max_attempts else 0
    return options.model_copy(update={"max_attempts": left, "initial_interval": _pause(options, attempts + 1)})


def _pause(options: ToolOptions, attempts: int) -> timedelta:
    # The power of a large number may be too large for a time.
    behind = min(options.backoff ** min(attempts - 1, 50), 1e6)
    return min(options.initial_interval * behind, options.max_interval)
