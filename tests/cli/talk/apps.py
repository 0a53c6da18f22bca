"""Apps that the tests of conversations talk to; a worker process serves them, too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from perdure.agents import (
    App,
    FunctionTool,
    LlmAgent,
    LongRunningFunctionTool,
    ParallelAgent,
    ResumabilityConfig,
    ToolContext,
)
from perdure.models.scripted import ScriptedModel

RESUMABLE = ResumabilityConfig(is_resumable=True)
EVIL = "\x1b[2J\x1b]0;owned\x07\u202e"
"""Clears a screen, names a window, rings and turns the order of letters."""


class Address(BaseModel):
    street: str
    floor: int | None = None


class Approval(BaseModel):
    approved: bool = Field(description=f"Whether it may be booked.{EVIL}")
    seats: int = Field(2, ge=1, le=9)
    fare: Literal["economy", "business"] = "economy"
    note: str = ""
    home: Address | None = None
    tags: list[str] = Field(default_factory=list[str])


def ask_manager(flight: str) -> None:
    """Ask the manager."""


def ask_anybody(question: str) -> None:
    """Ask anybody."""


def ask_other(question: str) -> None:
    """Ask the other one."""


def pay(price: int) -> str:
    """Pay."""
    return f"paid {price}"


def reserve(seat: str, tool_context: ToolContext) -> str:
    """Reserve a seat, which a person completes."""
    decision = tool_context.tool_confirmation
    if decision is None:
        tool_context.request_confirmation(hint="Which seat?", payload={"seat": seat})
        return "asked"
    return f"reserved {decision.payload}"


def work(seconds: float) -> str:
    """Work."""
    time.sleep(seconds)
    return f"worked{EVIL}"


def pay_once(price: int) -> dict[str, int]:
    """Pay; the first time it never comes back."""
    begun = Path("begun")
    if not begun.exists():
        begun.touch()
        time.sleep(600)
    return {"paid": price}


def payer(name: str) -> App:
    """Return an app whose tool runs once at the most."""
    script = ScriptedModel([{"calls": [{"name": "pay_once", "args": {"price": 240}}]}, {"text": "It is paid."}])
    agent = LlmAgent(name="clerk", model=script, tools=[FunctionTool(pay_once, at_most_once=True)])
    return App(name=name, root_agent=agent, resumability_config=RESUMABLE)


def travel(name: str) -> App:
    """Return an app whose agent asks for everything that a conversation can be asked for."""
    script = ScriptedModel(
        [
            {"text": "Let me look at it.", "calls": [{"name": "ask_manager", "args": {"flight": f"SK{EVIL}"}}]},
            {"calls": [{"name": "pay", "args": {"price": 240}}, {"name": "reserve", "args": {"seat": "3A"}}]},
            {"calls": [{"name": "ask_anybody", "args": {"question": "Whose name?"}}]},
            {"text": f"All is booked.{EVIL}"},
        ]
    )
    tools = [
        LongRunningFunctionTool(ask_manager, response=Approval),
        LongRunningFunctionTool(ask_anybody),
        FunctionTool(pay, require_confirmation=True),
        reserve,
    ]
    return App(name=name, root_agent=LlmAgent(name="clerk", model=script, tools=tools), resumability_config=RESUMABLE)


def thinker(name: str) -> App:
    """Return an app whose agent takes long to answer, fails, and answers."""
    script = ScriptedModel(
        [
            {"text": "one two three four five six seven eight nine ten " * 3, "delay": 9},
            {"text": "Thought."},
            {"error": "the model is down"},
            {"text": "Back again."},
        ]
    )
    return App(name=name, root_agent=LlmAgent(name="clerk", model=script), resumability_config=RESUMABLE)


def asker(name: str) -> App:
    """Return an app whose agent asks one question for each message."""
    steps = [step for number in range(4) for step in (_ask("ask_anybody", f"Question {number}?"), {"text": "Thanks."})]
    tools = [LongRunningFunctionTool(ask_anybody)]
    agent = LlmAgent(name="clerk", model=ScriptedModel(steps), tools=tools)
    return App(name=name, root_agent=agent, resumability_config=RESUMABLE)


def fan(name: str) -> App:
    """Return an app of parallel agents: two ask, one works."""
    left = LlmAgent(
        name="left",
        model=ScriptedModel([_ask("ask_anybody", "left?"), {"text": "Left is done."}]),
        tools=[LongRunningFunctionTool(ask_anybody)],
    )
    right = LlmAgent(
        name="right",
        model=ScriptedModel([_ask("ask_other", "right?"), {"text": "Right is done."}]),
        tools=[LongRunningFunctionTool(ask_other, response=bool)],
    )
    busy = LlmAgent(
        name="busy",
        model=ScriptedModel([{"calls": [{"name": "work", "args": {"seconds": 6}}]}, {"text": "Busy is done."}]),
        tools=[work],
    )
    agents = ParallelAgent(name="fan", sub_agents=[left, right, busy])
    return App(name=name, root_agent=agents, resumability_config=RESUMABLE)


def _ask(tool: str, question: str) -> dict[str, object]:
    return {"calls": [{"name": tool, "args": {"question": question}}]}
