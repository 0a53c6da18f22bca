"""A model of google.adk that answers from a script, so that the example needs no key."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types


class Script(BaseLlm):
    """Gives an agent its answers one after the other, and then again from the first."""

    answers: list[Mapping[str, Any]]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer; the request's contents tell how often the agent was asked before."""
        asked = sum(content.role == "model" for content in llm_request.contents)
        answer = self.answers[asked % len(self.answers)]
        await asyncio.sleep(answer.get("seconds", 0))
        if "text" in answer:
            part = types.Part(text=answer["text"])
        else:
            part = types.Part(function_call=types.FunctionCall(name=answer["call"], args=answer["args"]))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def model_or_script(*answers: Mapping[str, Any]) -> str | Script:
    """Return Gemini where a key is set, or else a model that answers an agent's calls from a script."""
    return "gemini-2.5-flash" if os.environ.get("GOOGLE_API_KEY") else Script(model="script", answers=list(answers))
