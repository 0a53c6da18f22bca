"""Outcomes of a long-running call that nobody answers by its deadline. Values for `LongRunningFunctionTool`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AnswerWith:
    """The session answers for the person, with a value."""

    value: Any
    """JSON; anything but an object arrives as `{"result": value}`."""


@dataclass(frozen=True)
class AnswerError:
    """The session answers with an error, which the model is told."""

    message: str
    """The model gets `{"error": message}`."""


@dataclass(frozen=True)
class FailInvocation:
    """The invocation fails, and names tool and deadline. A resume waits for the answer again, without a deadline."""


OnExpiry = AnswerWith | AnswerError | FailInvocation
