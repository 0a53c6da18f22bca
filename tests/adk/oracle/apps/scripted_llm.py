"""A model object for apps that need no key: `ScriptedLlm(model="support", rules=[...])`, rules of scripted_rules.py."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

import scripted_rules
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from ledger import write
from scripted_rules import (
    Rule,
    Seen,
    after,
    blob,
    call,
    data,
    error,
    fails,
    finish,
    heard,
    on,
    otherwise,
    says,
    thinks,
    usage,
)


class ScriptedLlm(BaseLlm):
    """Answers by rules. `model` is the name under which the ledger knows its calls: that of its agent."""

    rules: list[Any]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        seen = read(llm_request)
        write(
            {
                "model": self.model,
                "system": seen.system,
                "tools": seen.tools,
                "contents": seen.contents,
                "config": seen.config,
            }
        )
        answer = scripted_rules.answer(self.model, self.rules, seen)
        await asyncio.sleep(float(os.environ.get("SCRIPTED_DELAY", "0")))  # time to be killed in
        if "fails" in answer:
            raise scripted_rules.Failure(answer["fails"]["message"])
        if "error" in answer:
            yield LlmResponse(error_code=answer["error"]["code"], error_message=answer["error"]["message"])
            return
        if stream:
            for part in answer["parts"]:
                for piece in scripted_rules.chunks(part["text"]) if "text" in part else []:
                    yield LlmResponse(content=content([{**part, "text": piece}]), partial=True)
        usage_metadata = answer.get("usage")
        yield LlmResponse(
            content=content(answer["parts"]),
            partial=False if stream else None,
            finish_reason=types.FinishReason(answer["finish"]) if "finish" in answer else None,
            usage_metadata=usage_metadata and types.GenerateContentResponseUsageMetadata.model_validate(usage_metadata),
        )


def content(parts: list[dict[str, Any]]) -> types.Content:
    return types.Content.model_validate({"role": "model", "parts": parts})


def read(request: LlmRequest) -> Seen:
    """A request of ADK as JSON; only what a model sees."""
    contents = [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in request.contents]
    config = request.config
    declared = [
        declaration for tool in config.tools or [] for declaration in getattr(tool, "function_declarations", None) or []
    ]
    settings = config.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        exclude={"tools", "system_instruction", "http_options", "response_schema", "labels"},
        fallback=lambda value: type(value).__name__,
    )
    if config.response_schema is not None or getattr(config, "response_json_schema", None) is not None:
        settings["responseJsonSchema"] = True
    return Seen(
        contents, system_text(config.system_instruction), [declaration.name for declaration in declared], settings
    )


def system_text(instruction: Any) -> str:
    if instruction is None or isinstance(instruction, str):
        return instruction or ""
    parts = instruction if isinstance(instruction, list) else getattr(instruction, "parts", None) or [instruction]
    return "\n".join(part if isinstance(part, str) else getattr(part, "text", None) or "" for part in parts)
