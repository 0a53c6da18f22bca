"""Apps to be proved: two that can be cut anywhere, and two whose tools say something else each time."""

from __future__ import annotations

import itertools
import uuid

from pydantic import BaseModel

from perdure.agents import AgentTool, App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig, SequentialAgent

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


def draw() -> str:
    """Draw a lot: another one at every run in any process."""
    return uuid.uuid4().hex


app = App(
    name="shop",
    root_agent=LlmAgent(
        name="clerk", model="gemini-2.5-flash", tools=[stock, LongRunningFunctionTool(approve)], output_key="said"
    ),
    resumability_config=ResumabilityConfig(is_resumable=True),
)


class Parcel(BaseModel):
    item: str
    weight: int


def weigh(item: str) -> int:
    """Weigh an item."""
    return len(item)


packer = LlmAgent(
    name="packer",
    model="gemini-2.5-flash",
    input_schema=Parcel,
    tools=[weigh, LongRunningFunctionTool(approve)],
    output_key="packed",
)
labeller = LlmAgent(
    name="labeller", model="gemini-2.5-flash", tools=[weigh], output_schema=list[Parcel], output_key="labels"
)

depot = App(
    name="depot",
    root_agent=LlmAgent(
        name="clerk",
        model="gemini-2.5-flash",
        tools=[stock, AgentTool(SequentialAgent(name="packing", sub_agents=[packer, labeller]))],
    ),
    resumability_config=ResumabilityConfig(is_resumable=True),
)

careless = App(
    name="careless",
    root_agent=LlmAgent(name="clerk", model="gemini-2.5-flash", tools=[ticket]),
    resumability_config=ResumabilityConfig(is_resumable=True),
)

lottery = App(
    name="lottery",
    root_agent=LlmAgent(name="clerk", model="gemini-2.5-flash", tools=[draw]),
    resumability_config=ResumabilityConfig(is_resumable=True),
)
