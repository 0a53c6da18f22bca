"""What a process that only shows sessions takes for google-genai's types: the same JSON, at a hundredth of the time.

google-genai takes longer to load than all else that such a command does, and has no types without its clients. These
know the fields that Perdure reads; all others are kept as they came, unread and unchecked, as JSON. So they are for
reading what a session has checked, and for sending what it checks: never for a process that serves, or takes in files.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, alias_generators


class _Kept(BaseModel):
    model_config = ConfigDict(
        extra="allow",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        alias_generator=alias_generators.to_camel,
        populate_by_name=True,
    )


class FunctionCall(_Kept):
    """A call of a tool."""

    id: str | None = None
    args: dict[str, Any] | None = None
    name: str | None = None


class FunctionResponse(_Kept):
    """What a tool, or a person, answered."""

    id: str | None = None
    name: str | None = None
    response: dict[str, Any] | None = None


class Part(_Kept):
    """A piece of a content."""

    code_execution_result: Any = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    text: str | None = None
    thought: bool | None = None
    thought_signature: Any = None


class Content(_Kept):
    """What somebody said, called or responded."""

    parts: list[Part] | None = None
    role: str | None = None


class FinishReason(StrEnum):
    """Why a model stopped; all are taken, and two known."""

    STOP = "STOP"
    MAX_TOKENS = "MAX_TOKENS"

    @classmethod
    def _missing_(cls, value: object) -> FinishReason:
        member = str.__new__(cls, value)
        member._name_ = member._value_ = str(value)
        return member


class Schema(_Kept):
    """The form of a tool's arguments."""

    required: list[str] | None = None


class FunctionDeclaration(_Kept):
    """What a model is told of a tool."""

    name: str | None = None
    description: str | None = None
    parameters: Schema | None = None
    parameters_json_schema: Any = None
    response_json_schema: Any = None


class CitationMetadata(_Kept):
    """What a model cites."""


class GenerateContentResponseUsageMetadata(_Kept):
    """How many tokens an answer took."""


class GroundingMetadata(_Kept):
    """What an answer is grounded on."""


class LogprobsResult(_Kept):
    """How probable an answer's tokens were."""


class Transcription(_Kept):
    """What was said aloud."""
