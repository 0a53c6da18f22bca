"""Runs google.adk's own agents: compiles them into a plan, and does their steps by ADK's own code.

Needs the extra `adk`. Nothing outside of this folder and `programs` imports google.adk. `Runner`, `InMemoryRunner` and
`get_fast_api_app` are for programs that use google.adk's of the same names: `from perdure.adk import Runner`. What a
custom agent's code gets of a sub-agent that failed is `SubAgentFailed`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.adk.code.adk_code import SubAgentFailed
    from perdure.programs.fast_api import get_fast_api_app
    from perdure.programs.runner import InMemoryRunner, Runner

__all__ = ["InMemoryRunner", "Runner", "SubAgentFailed", "get_fast_api_app"]

_MODULES = {
    "InMemoryRunner": "perdure.programs.runner",
    "Runner": "perdure.programs.runner",
    "SubAgentFailed": "perdure.adk.code.adk_code",
    "get_fast_api_app": "perdure.programs.fast_api",
}


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: a worker needs neither.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
