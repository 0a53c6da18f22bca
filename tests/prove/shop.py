"""An app to be proved: one that can be cut anywhere, and one whose tool says something else each time."""

from __future__ import annotations

import itertools

from perdure.agents import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig

_counter = itertools.count(1)


def stock(item: str) -> dict[str, int]:
    """Say how many there are."""
    return {"left": len(item)}


def approve(item: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending"}


def ticket() -> int:
    """Draw a number: another one at every run in a process."""
    return next(_counter)


app = App(
    name="shop",
    root_agent=LlmAgent(
        name="clerk", model="gemini-2.5-flash", tools=[stock, LongRunningFunctionTool(approve)], output_key="said"
    ),
    resumability_config=ResumabilityConfig(is_resumable=True),
)

careless = App(
    name="careless",
    root_agent=LlmAgent(name="clerk", model="gemini-2.5-flash", tools=[ticket]),
    resumability_config=ResumabilityConfig(is_resumable=True),
)
