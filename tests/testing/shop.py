"""The app of these tests: a worker process of a proof loads it, too."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from perdure import (
    AnswerWith,
    App,
    FunctionTool,
    LlmAgent,
    LongRunningFunctionTool,
    ResumabilityConfig,
    ToolContext,
)

REMINDED: list[str] = []
STARTED = threading.Event()
GO_ON = threading.Event()
RUNS: list[str] = []


def look_up(order: str) -> dict[str, str]:
    """Look up an order."""
    if order == "0":
        raise LookupError("there is no order 0")
    return {"order": order, "status": "shipped"}


def refund(order: str) -> dict[str, str]:
    """Pay an order back."""
    return {"paid": order}


def approve(order: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending"}


class Offer(TypedDict):
    """What a dealer offers."""

    price: int
    note: NotRequired[str]


def ask_dealer(order: str) -> None:
    """Ask a dealer for a price."""


def ask_colour(order: str) -> None:
    """Ask a person which colour it is to be."""


def remind(order: str) -> None:
    """Remind the person."""
    REMINDED.append(order)


def deliver(order: str, tool_context: ToolContext) -> str:
    """Deliver slowly: its first run is held until the test lets it go."""
    RUNS.append(tool_context.idempotency_key)
    if len(RUNS) == 1:
        STARTED.set()
        GO_ON.wait(20)
    tool_context.state["user:delivered"] = order
    return "delivered"


expert = LlmAgent(name="expert", description="Knows orders.", tools=[look_up])
clerk = LlmAgent(
    name="clerk",
    model="gemini-2.5-flash",
    instruction="Help the customers of {shop?}.",
    sub_agents=[expert],
    tools=[
        look_up,
        deliver,
        LongRunningFunctionTool(ask_dealer, response=Offer),
        LongRunningFunctionTool(ask_colour, response=Literal["red", "blue"]),
        FunctionTool(refund, require_confirmation=True),
        LongRunningFunctionTool(
            approve,
            expires_in=timedelta(days=3),
            on_expiry=AnswerWith("nobody came"),
            remind_in=timedelta(days=1),
            reminder=remind,
        ),
    ],
    output_key="said",
)
app = App(name="shop", root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
lone = LlmAgent(name="lone", tools=[look_up])
