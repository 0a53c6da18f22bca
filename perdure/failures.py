"""Why an activity failed, in words: the same for a workflow, and for whoever reads its history."""

from __future__ import annotations

from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure

from perdure.doubts import REFUSED
from perdure.messages import NOT_REGISTERED

_SENTENCES = frozenset({NOT_REGISTERED, "ModelError", "DefinitionError", "PayloadTooLarge", "NotJson"}) | REFUSED
"""Perdure's own errors; anything else is known by its type."""


def error_text(kind: str | None, message: str) -> str:
    """Return what an error of a type says."""
    return message if not kind or kind in _SENTENCES else f"{kind}: {message}"


def timeout_text(kind: str) -> str:
    """Return that an activity timed out, by the name of Temporal's timeout, such as `START_TO_CLOSE`."""
    return f"timed out ({kind.lower().replace('_', '-')} timeout)"


def failure_text(failure: Failure) -> str:
    """Return what stands in history as the failure of an activity."""
    if failure.HasField("timeout_failure_info"):
        return timeout_text(TimeoutType.Name(failure.timeout_failure_info.timeout_type).removeprefix("TIMEOUT_TYPE_"))
    return error_text(failure.application_failure_info.type, failure.message)
