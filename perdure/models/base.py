"""`BaseLlm`, the interface of models. Models are called in activities only, never in workflow code."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator

from google.genai import types
from pydantic import BaseModel, ConfigDict, alias_generators

from perdure.journal.events import ModelAnswer

_VALUE = ConfigDict(
    frozen=True,
    ser_json_bytes="base64",
    val_json_bytes="base64",
    alias_generator=alias_generators.to_camel,
    populate_by_name=True,
)


class LlmRequest(BaseModel):
    """The request of one model call. ADK: `models/llm_request.py`.

    Its contents are shared with the session's log in memory: a model must not change them in place.
    """

    model_config = _VALUE

    model: str
    """Name of the model, as the agent gives it."""
    contents: list[types.Content]
    """What the agent sees of the session's log, oldest first."""
    config: types.GenerateContentConfig
    """System instruction, tool declarations and generation settings."""
    agent: str
    """The agent that asks."""
    call_index: int
    """How many model calls of this agent came back before, over the whole session; equal in every attempt."""


class LlmResponse(ModelAnswer):
    """A model's response. Only the last one that is not partial counts. ADK: `models/llm_response.py`."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def create(cls, response: types.GenerateContentResponse) -> LlmResponse:
        """Return the first candidate of google-genai's response, or why there is none. As in ADK."""
        usage, version = response.usage_metadata, response.model_version
        if not response.candidates:
            return cls._without_candidates(response)
        candidate = response.candidates[0]
        has_parts = candidate.content is not None and bool(candidate.content.parts)
        answered = has_parts or candidate.finish_reason == types.FinishReason.STOP
        return cls(
            content=candidate.content if answered else None,
            error_code=None if answered else _code(candidate.finish_reason),
            error_message=None if answered else candidate.finish_message,
            grounding_metadata=candidate.grounding_metadata if answered else None,
            usage_metadata=usage,
            finish_reason=candidate.finish_reason,
            citation_metadata=candidate.citation_metadata,
            avg_logprobs=candidate.avg_logprobs,
            logprobs_result=candidate.logprobs_result,
            model_version=version,
        )

    @classmethod
    def _without_candidates(cls, response: types.GenerateContentResponse) -> LlmResponse:
        usage, version = response.usage_metadata, response.model_version
        if feedback := response.prompt_feedback:
            return cls(
                error_code=_code(feedback.block_reason),
                error_message=feedback.block_reason_message,
                usage_metadata=usage,
                model_version=version,
            )
        return cls(content=types.Content(role="model", parts=[]), usage_metadata=usage, model_version=version)


def _code(reason: types.FinishReason | types.BlockedReason | None) -> str | None:
    return reason.value if reason is not None else None


class BaseLlm(abc.ABC):
    """The interface of a model. ADK: `models/base_llm.py`.

    One instance serves all sessions of a worker at once, so it keeps no state between calls. A subclass implements
    `generate_content_async`.

    Attributes:
        model: The model's name.
    """

    model: str

    def __init__(self, model: str) -> None:
        self.model = model

    @property
    def provider(self) -> str:
        """The model's provider, as traces name it (`gen_ai.provider.name`). Default: the class's name."""
        return type(self).__name__.lower()

    @property
    def pairs_by_id(self) -> bool:
        """Whether the model pairs calls and responses by ids, so that each call of a request has one of its own.

        Default: yes. Without, it gets back the ids that a model gave, and none that the session did.
        """
        return True

    @property
    def output_schema_and_tools(self) -> bool:
        """Whether the model takes a schema for its answer beside tools. Default: no. ADK: `LlmCapabilities`.

        Without, an agent that has both answers by calling `set_model_response`.
        """
        return False

    @abc.abstractmethod
    def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the model's answer; the last response that is not partial counts.

        Args:
            llm_request: What the model is asked. It must not be changed.
            stream: Yield partial responses too, as they arrive.

        Raises:
            ModelError: The call failed; `retryable` says whether it is tried again.
        """
