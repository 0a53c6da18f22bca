"""A google.adk app to be proved: a resumable clerk with a long-running tool, and one below whose model is his."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.tools import LongRunningFunctionTool


def stock(item: str) -> dict[str, int]:
    """Say how many there are."""
    return {"left": len(item)}


def approve(item: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending"}


def pack(item: str) -> dict[str, Any]:
    """Pack it."""
    return {"packed": item}


packer = LlmAgent(name="packer", tools=[pack], output_key="packed")
clerk = LlmAgent(
    name="clerk",
    model="gemini-2.5-flash",
    tools=[stock, LongRunningFunctionTool(func=approve)],
    sub_agents=[packer],
)

app = App(name="shop", root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
