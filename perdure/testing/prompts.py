"""What an agent's model was asked, and the model that keeps it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, cast

from google.genai import types

from perdure.errors import ModelError
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel, ScriptedStep
from perdure.models.wrapped import WrappedModel
from perdure.views.words import arguments_text, short_json

__all__ = ["NotScripted", "Prompt", "RecordedModel"]


@dataclass(frozen=True)
class Prompt:
    """What an agent's model was asked in one call."""

    request: LlmRequest
    """The whole of it."""

    @property
    def instruction(self) -> str:
        """The system instruction; empty without one."""
        given = cast("object", self.request.config.system_instruction)  # pyright: ignore[reportUnknownMemberType]
        if isinstance(given, types.Content):
            return "".join(part.text or "" for part in given.parts or [])
        return given if isinstance(given, str) else ""

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model may call."""
        return [
            declaration.name or ""
            for tool in self.request.config.tools or []
            if isinstance(tool, types.Tool)
            for declaration in tool.function_declarations or []
        ]

    @property
    def text(self) -> str:
        """The contents, a line for each thing: what was said, called and returned."""
        return "\n".join(line for content in self.request.contents for line in _lines(content))


def _lines(content: types.Content) -> Iterator[str]:
    for part in content.parts or []:
        if part.text:
            yield f"{content.role}: {part.text}"
        if part.function_call is not None:
            yield f"{content.role} calls {part.function_call.name}({arguments_text(part.function_call.args or {})})"
        if part.function_response is not None:
            yield f"{part.function_response.name} returned {short_json(part.function_response.response)}"


class RecordedModel(WrappedModel):
    """A model that keeps what it is asked."""

    def __init__(self, inner: BaseLlm) -> None:
        """Wrap a model."""
        super().__init__(inner)
        self.prompts: list[Prompt] = []

    def look_at(self, llm_request: LlmRequest) -> None:
        """Keep the request."""
        self.prompts.append(Prompt(llm_request))

    def script(self) -> list[dict[str, Any]]:
        """Return its steps as JSON.

        Raises:
            AssertionError: It has none that other processes could repeat.
        """
        steps = self.inner.steps if isinstance(self.inner, ScriptedModel) else (types.Content(),)
        if not all(isinstance(step, ScriptedStep) for step in steps):
            raise AssertionError(
                f"{self.model!r} is no script of plain steps, so that no proof can repeat it; write say, call and fail"
            )
        return [step.model_dump(mode="json", exclude_defaults=True) for step in steps]


class NotScripted(BaseLlm):
    """Stands for a provider's model, which no test is to call by accident."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Fail.

        Raises:
            ModelError: Always; not retried.
        """
        raise ModelError(
            f"agent {llm_request.agent!r} asks {self.model!r}, and the test has no script for it; write"
            f" start(…, models={{{llm_request.agent!r}: [say(…)]}}), or real_models=True to have such models asked",
            retryable=False,
        )
        yield LlmResponse()  # What makes it a generator.
