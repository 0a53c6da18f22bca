"""The model and the tool of the benchmarks' ADK agents, for each side that runs them. It imports nothing of Perdure."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

TEXT = " ".join((Path(__file__).parents[1] / "LICENSE").read_text().split())
"""Prose, since history is packed: one letter repeated would flatter, random letters are what no tool returns."""


class ScriptedLlm(BaseLlm):
    """Calls the tool as often as its name says, and then says that it is done."""

    @classmethod
    def supported_models(cls) -> list[str]:
        return [r"scripted-\d+-\d+"]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        _, rounds, size = (llm_request.model or self.model).split("-")
        parts = [part for content in llm_request.contents for part in content.parts or []]
        done = sum(part.function_response is not None for part in parts)
        if done < int(rounds):
            part = types.Part(function_call=types.FunctionCall(name="look_up", args={"size": int(size)}))
        else:
            part = types.Part(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def look_up(size: int) -> str:
    """Look something up."""
    return TEXT[:size]


class Rounds(BaseAgent):
    """Has two sub-agents speak, as often as it says."""

    rounds: int

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for _ in range(self.rounds):
            for agent in self.sub_agents:
                async for event in agent.run_async(ctx):
                    yield event


def _speaker(name: str, model: BaseLlm | None) -> LlmAgent:
    return LlmAgent(name=name, model=model or ScriptedLlm(model="scripted-0-0"))


def make_custom_agent(rounds: int) -> BaseAgent:
    """Return a custom agent."""
    return Rounds(name="rounds", rounds=rounds, sub_agents=[_speaker("first", None), _speaker("second", None)])


def make_graph(model: BaseLlm | None = None) -> Any:
    """Return a graph of ten nodes, one behind the other: eight functions and two agents."""
    from google.adk.workflow import FunctionNode, Workflow

    def step(node_input: Any) -> str:
        return TEXT[: len(str(node_input)) % 200 + 10]

    steps = [FunctionNode(func=step, name=f"step_{number}") for number in range(8)]
    one, two = _speaker("first", model), _speaker("second", model)
    return Workflow(name="chain", edges=[("START", *steps[:3], one, *steps[3:6], two, *steps[6:])])
