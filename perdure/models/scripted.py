"""A model that answers from a script: for tests, demos and the conformance scenarios."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from perdure.errors import DefinitionError, ModelError
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse

_MOST_TOLD = 300
"""Characters of a prompt that an error quotes."""


class ScriptedCall(BaseModel):
    """A function call of a step. It carries no id: the session gives it one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    args: dict[str, Any] = Field(default_factory=dict[str, Any])


class ScriptedStep(BaseModel):
    """One answer of a scripted model: a text, function calls, or both, or an error, or why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str | None = None
    """Comes before the calls."""
    calls: tuple[ScriptedCall, ...] = ()
    error: str | None = None
    """The model call fails with this message, and is not retried."""
    finish_reason: types.FinishReason | None = None
    """Why the model stopped, such as `SAFETY`: without text and calls it answers nothing."""
    delay: float = Field(default=0.0, ge=0.0)
    """Seconds that the model takes; streamed, its words come spread over them."""

    @model_validator(mode="after")
    def _one_answer(self) -> ScriptedStep:
        answers = self.text is not None or bool(self.calls) or self.finish_reason is not None
        if answers == (self.error is not None):
            raise ValueError("a step has a text, calls, or both, or a finish_reason, or else an error")
        return self

    def __add__(self, other: ScriptedStep) -> ScriptedStep:
        """Return one answer of two: a text and a call, or two calls at once."""
        texts = [step.text for step in (self, other) if step.text is not None]
        return ScriptedStep(
            text="".join(texts) if texts else None,
            calls=(*self.calls, *other.calls),
            error=self.error or other.error,
            finish_reason=self.finish_reason or other.finish_reason,
            delay=self.delay + other.delay,
        )

    def content(self) -> types.Content:
        """Return the answer as a model's content."""
        parts = [types.Part(text=self.text)] if self.text is not None else []
        parts += [
            types.Part(function_call=types.FunctionCall(name=call.name, args=dict(call.args))) for call in self.calls
        ]
        return types.Content(role="model", parts=parts)

    def response(self) -> LlmResponse:
        """Return the answer; where there is none, as Gemini tells of it."""
        candidate = types.Candidate(content=self.content(), finish_reason=self.finish_reason)
        return LlmResponse.create(types.GenerateContentResponse(candidates=[candidate]))


class ScriptedModel(BaseLlm):
    """Answers an agent's n-th model call of a session with the n-th step of a script.

    Which call it is comes with the request, so that where a session stands in the script survives a restart of the
    worker. Agents that share one instance each go through the whole script.

    Example:
        >>> ScriptedModel([{"calls": [{"name": "search", "args": {"q": "x"}}]}, {"text": "Found."}])
    """

    def __init__(
        self, steps: Sequence[ScriptedStep | Mapping[str, Any] | types.Content], *, model: str = "scripted"
    ) -> None:
        """Check and keep a script.

        Args:
            steps: For each call a mapping with `text`, `calls` (each a mapping with `name` and `args`), `error`,
                `finish_reason` and `delay` in seconds; or what `say`, `call` and `fail` of `perdure.testing` return;
                or a whole content.
            model: The model's name.

        Raises:
            DefinitionError: A step has another form.
        """
        super().__init__(model)
        self.steps: tuple[ScriptedStep | types.Content, ...] = tuple(
            step if isinstance(step, types.Content | ScriptedStep) else _step(index, step)
            for index, step in enumerate(steps)
        )

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the step of the request's `call_index`; with `stream` its text word by word first, then the whole.

        Raises:
            ModelError: The step is an error, or the script has no such step. Not retried.
        """
        index = llm_request.call_index
        if index >= len(self.steps):
            raise ModelError(
                f"agent {llm_request.agent!r} made model call {index + 1} of the session, but its script "
                f"({self.model!r}) ends after {len(self.steps)}; it was asked behind {_last_of(llm_request.contents)};"
                " add a step",
                retryable=False,
            )
        step = self.steps[index]
        if isinstance(step, types.Content):
            content, delay, error = step.model_copy(update={"role": step.role or "model"}, deep=True), 0.0, None
            response = LlmResponse(content=content)
        else:
            content, delay, error = step.content(), step.delay, step.error
            response = step.response()
        words = _words(content) if stream else []
        for word in words:
            await asyncio.sleep(delay / len(words))
            yield LlmResponse(content=types.Content(role="model", parts=[word]), partial=True)
        if delay and not words:
            await asyncio.sleep(delay)
        if error is not None:
            raise ModelError(error, retryable=False)
        yield response


def _words(content: types.Content) -> list[types.Part]:
    """Return the text of a content in pieces of a word, each with the space behind it."""
    return [
        types.Part(text=word, thought=part.thought)
        for part in content.parts or []
        for word in re.findall(r"\s*\S+\s*|\s+", part.text or "")
    ]


def _last_of(contents: Sequence[types.Content]) -> str:
    """Return what a prompt ends with, in words."""
    told: list[str] = []
    for part in (contents[-1].parts or []) if contents else []:
        if part.function_response is not None:
            told.append(f"the response of {part.function_response.name}: {_json(part.function_response.response)}")
        elif part.function_call is not None:
            told.append(f"the call {part.function_call.name}({_json(part.function_call.args)})")
        elif part.text:
            told.append(f"the words {part.text!r}")
    text = ", ".join(told) or "nothing"
    return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}…"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _step(index: int, step: Mapping[str, Any]) -> ScriptedStep:
    try:
        return ScriptedStep.model_validate(step)
    except ValidationError as error:
        problems = "; ".join(
            ".".join([*map(str, problem["loc"])] or ["step"]) + f": {problem['msg']}"
            for problem in error.errors(include_url=False)
        )
        raise DefinitionError(
            f"step {index + 1} of a scripted model is {step!r} ({problems}); "
            'write {"text": …}, {"calls": [{"name": …, "args": {…}}]}, {"error": …} or {"finish_reason": …}'
        ) from error
