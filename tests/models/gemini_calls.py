"""Calls of `Gemini` against a local server."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types

from perdure.errors import ModelError
from perdure.journal.events import user_content
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.gemini import Gemini
from tests.models.gemini_server import GeminiServer, Reply

KEY = "secret-key-of-the-test"


def request(*contents: types.Content, **config: Any) -> LlmRequest:
    return LlmRequest(
        model="gemini-2.5-flash",
        contents=list(contents) or [user_content("hi")],
        config=types.GenerateContentConfig(**config),
        agent="clerk",
        call_index=0,
    )


async def responses(
    server: GeminiServer | str, asked: LlmRequest | None = None, *, stream: bool = False
) -> list[LlmResponse]:
    model = Gemini("gemini-2.5-flash", base_url=server if isinstance(server, str) else server.url)
    try:
        return [response async for response in model.generate_content_async(asked or request(), stream)]
    finally:
        await model.aclose()


async def failure(*replies: Reply, stream: bool = False) -> ModelError:
    """Return the error with which one call fails, after exactly one request."""
    async with GeminiServer(*replies) as server:
        with pytest.raises(ModelError) as caught:
            await responses(server, stream=stream)
        assert len(server.requests) == 1
    assert KEY not in str(caught.value)
    return caught.value
