"""Apps to be proved: three that can be cut anywhere, and two whose tools say something else each time."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

from google.genai import types
from pydantic import BaseModel

from perdure.agents import (
    AgentTool,
    App,
    BaseAgent,
    InvocationContext,
    LlmAgent,
    LongRunningFunctionTool,
    ResumabilityConfig,
    SequentialAgent,
)
from perdure.journal.events import Event
from perdure.steps.code.code_runs import PATIENCE_LOGGED_SECONDS

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


class Hurried(BaseAgent):
    """Takes its time where the file is not there yet that the state names: only then its code takes another step."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name, content=types.ModelContent("begun"))
        with suppress(FileExistsError):
            await asyncio.to_thread(Path(ctx.session.state["been_here"]).touch, exist_ok=False)
            await asyncio.sleep(3 * PATIENCE_LOGGED_SECONDS / 2)


hurried = App(name="hurried", root_agent=Hurried(name="courier"))

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
