"""Tests of one's own agents: the pytest fixture `perdure`, scripts for models, and checks of what agents did.

Here belongs what a test of agents needs; pytest finds the plugin by itself where Perdure is installed. Each name is
loaded at its first use: pytest comes here at its start, also where no test is about agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.calls import assert_calls
    from perdure.testing.conversation import Conversation
    from perdure.testing.fixture import Perdure
    from perdure.testing.prompts import Prompt
    from perdure.testing.script import call, fail, say
    from perdure.testing.turn import Turn

__all__ = ["Conversation", "Perdure", "Prompt", "Turn", "assert_calls", "call", "fail", "say"]

_MODULES = {
    "Conversation": "perdure.testing.conversation",
    "Perdure": "perdure.testing.fixture",
    "Prompt": "perdure.testing.prompts",
    "Turn": "perdure.testing.turn",
    "assert_calls": "perdure.testing.calls",
    "call": "perdure.testing.script",
    "fail": "perdure.testing.script",
    "say": "perdure.testing.script",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not importlib: a test module may be loaded afresh by Temporal's sandbox, whose importer sees __import__ only.
    value = globals()[name] = getattr(__import__(_MODULES[name], fromlist=["_"]), name)
    return value
