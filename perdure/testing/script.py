"""The steps of a scripted model, as a test writes them: `say`, `call` and `fail`."""

from __future__ import annotations

from typing import Any

from perdure.models.scripted import ScriptedCall, ScriptedStep

__all__ = ["call", "fail", "say"]


def say(text: str) -> ScriptedStep:
    """Return the answer of a model that says something."""
    return ScriptedStep(text=text)


def call(tool: str, /, **args: Any) -> ScriptedStep:
    """Return the answer of a model that calls a tool; `+` joins several answers to one, as in two calls at once.

    Example:
        >>> step = say("One moment.") + call("book", city="Oslo") + call("book", city="Rome")
    """
    return ScriptedStep(calls=(ScriptedCall(name=tool, args=args),))


def fail(message: str) -> ScriptedStep:
    """Return the failure of a model call, which is not tried again."""
    return ScriptedStep(error=message)
