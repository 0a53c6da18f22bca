"""Checks the deadline and the reminder of a long-running tool, and makes plain data of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from perdure.agents.expiry import AnswerError, AnswerWith, FailInvocation, OnExpiry
from perdure.agents.plain_values import NotPlain, to_plain
from perdure.errors import DefinitionError
from perdure.plan.nodes import Expiry

_LONGEST = timedelta(days=36_500)


def plan_expiry(where: str, expires_in: timedelta | None, on_expiry: OnExpiry | None) -> Expiry | None:
    """Return a deadline as a plan holds it.

    Raises:
        DefinitionError: It is not positive, or more than a century; it is missing where `on_expiry` is given; or the
            answer is no JSON.
    """
    if expires_in is None:
        if on_expiry is not None:
            raise DefinitionError(f"{where}: on_expiry needs a deadline; set expires_in")
        return None
    if expires_in <= timedelta(0):
        raise DefinitionError(f"{where}: expires_in is {expires_in!r}; it must be longer than nothing")
    if expires_in > _LONGEST:
        raise DefinitionError(
            f"{where}: expires_in is {expires_in!r}, more than a century; leave it out for a call without a deadline"
        )
    match on_expiry or AnswerError(f"Nobody answered within {expires_in}, so the call has expired."):
        case AnswerWith(value):
            return Expiry(after=expires_in, how="answer", answer=_plain(where, "AnswerWith", value))
        case AnswerError(message):
            return Expiry(after=expires_in, how="answer", answer={"error": _plain(where, "AnswerError", message)})
        case FailInvocation():
            return Expiry(after=expires_in, how="fail")


def _plain(where: str, of: str, value: Any) -> Any:
    """Return the value of an outcome as JSON, as what tools return becomes it."""
    try:
        return to_plain(value)
    except NotPlain as error:
        raise DefinitionError(f"{where}: the value of {of} is no JSON: {error}") from error


def check_reminder(
    where: str, expires_in: timedelta | None, remind_in: timedelta | None, reminder: Callable[..., Any] | None
) -> None:
    """Check a reminder.

    Raises:
        DefinitionError: Its time or its function is missing, or its time is not between the call and the deadline.
    """
    if (remind_in is None) != (reminder is None):
        raise DefinitionError(f"{where}: a reminder takes both remind_in and reminder")
    if remind_in is None:
        return
    if remind_in <= timedelta(0):
        raise DefinitionError(f"{where}: remind_in is {remind_in!r}; it must be longer than nothing")
    if remind_in > _LONGEST:
        raise DefinitionError(f"{where}: remind_in is {remind_in!r}, more than a century; leave it out for no reminder")
    if expires_in is not None and remind_in >= expires_in:
        raise DefinitionError(
            f"{where}: the reminder comes after {remind_in}, and the deadline after {expires_in}; remind before it"
        )
