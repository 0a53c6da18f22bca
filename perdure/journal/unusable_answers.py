"""Judges a model's answer that cannot be used (SEMANTICS.md, R14): ask again, or fail the turn. Pure.

ADK ends an agent with such an answer as if it had finished. Workflows and the rebuilding of a journal out of a history
both judge here, so that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.journal.events import Event
from perdure.plan.contents import types

MOST_ASKED = 3
"""How often a model is asked at the most that answers with what can come out otherwise."""

EMPTY = "EMPTY"
"""Stands for an answer that says nothing where it might: it is asked for once more."""

INVALID_OUTPUT = "INVALID_OUTPUT"
"""Stands for an answer that does not fit its agent's `output_schema`."""

_ANSWERS = frozenset({types.FinishReason.STOP, types.FinishReason.MAX_TOKENS})
_COMES_OUT_OTHERWISE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "OTHER", INVALID_OUTPUT})
"""Passing faults of models'; all else is a decision of the provider's, which it would take again."""

_MAX_MESSAGE = 500


@dataclass(frozen=True)
class Judgment:
    """The verdict on what a model returned."""

    event: Event
    """What is logged of it, if it is not asked for again."""
    again: str | None = None
    """Why the model is asked once more; nothing is logged."""
    failure: str | None = None
    """Why the turn fails, behind the event."""


def judge(event: Event, before: Sequence[str] = ()) -> Judgment:
    """Judge a model's return.

    Args:
        event: The event of it, as the activity made it.
        before: Why the model was asked again just before, each time.
    """
    code = _code(event)
    if code is not None:
        asked = 1 + sum(reason != EMPTY for reason in before)
        if code in _COMES_OUT_OTHERWISE and asked < MOST_ASKED:
            return Judgment(event, again=code)
        refused = event.model_copy(update={"content": None, "error_code": code})
        return Judgment(refused, failure=failure_of(refused))
    if event.finish_reason != types.FinishReason.MAX_TOKENS and _says_nothing(event):
        if EMPTY not in before:
            return Judgment(event, again=EMPTY)
        return Judgment(event.model_copy(update={"finish_reason": types.FinishReason.STOP}))
    return Judgment(event)


def is_refused(event: Event) -> bool:
    """Return whether an agent's event tells that its model gave no answer, so that the agent has not gone on by it."""
    return event.error_code is not None and not event.parts


def failure_of(event: Event) -> str:
    """Return why a turn fails whose model gave this instead of an answer."""
    code = event.error_code or "no reason given"
    times = f", {MOST_ASKED} times in a row" if code in _COMES_OUT_OTHERWISE else ""
    message = f" ({event.error_message[:_MAX_MESSAGE]})" if event.error_message else ""
    return f"the model gave no answer but {code}{message}{times}; a resume asks it again"


def _code(event: Event) -> str | None:
    if event.error_code is not None:
        return event.error_code
    reason = event.finish_reason
    return None if reason is None or reason in _ANSWERS else reason.value


def _says_nothing(event: Event) -> bool:
    return not any(_says_something(part) for part in event.parts)


def _says_something(part: types.Part) -> bool:
    if part.thought and not part.function_call:
        return False
    said = part.model_dump(exclude_none=True, exclude={"thought", "thought_signature", "text"})
    return bool(said) or bool((part.text or "").strip())
