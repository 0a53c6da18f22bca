"""The model and the tool of the benchmarks' ADK agents, for each side that runs them. It imports nothing of Perdure."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

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
