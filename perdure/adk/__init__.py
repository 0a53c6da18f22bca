"""Runs google.adk's own agents: compiles them into a plan, and does their steps by ADK's own code.

Needs the extra `adk`. Nothing outside of this folder and `programs` imports google.adk. `Runner` and `InMemoryRunner`
are for programs that build one of google.adk's: `from perdure.adk import Runner`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.programs.runner import InMemoryRunner, Runner

__all__ = ["InMemoryRunner", "Runner"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: a worker needs neither.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("perdure.programs.runner"), name)
