"""Gemini 3 takes no function call back without its thought signature: said before the request is sent."""

from __future__ import annotations

import pytest
from google.genai import types

from perdure.errors import ModelError
from perdure.journal.events import user_content
from perdure.models.gemini import Gemini
from tests.models.gemini_calls import request
from tests.models.gemini_server import GeminiServer, answer

SIGNED = b"\x12\xff signature"
DUMMY = b"skip_thought_signature_validator"

ASKED = user_content("look")


def called(*signatures: bytes | None, role: str = "model") -> types.Content:
    parts = [
        types.Part(function_call=types.FunctionCall(id=f"c{number}", name="look", args={}), thought_signature=signature)
        for number, signature in enumerate(signatures, start=1)
    ]
    return types.Content(role=role, parts=parts)


RESPONDED = types.Content(
    role="user", parts=[types.Part(function_response=types.FunctionResponse(name="look", response={"ok": True}))]
)
TEXT = types.Content(role="model", parts=[types.Part(text="seen")])


async def ask(model: str, *contents: types.Content, stream: bool = False) -> int:
    """Return how many requests reached the server."""
    async with GeminiServer(answer({"text": "ok"})) as server:
        gemini = Gemini(model, base_url=server.url)
        try:
            async for _ in gemini.generate_content_async(request(*contents), stream):
                pass
        finally:
            await gemini.aclose()
        return len(server.requests)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["gemini-3-pro-preview", "gemini-3.1-flash", "models/gemini-3-flash", "gemini-12-x"])
async def test_a_call_that_lost_its_signature_is_named_before_anything_is_sent(model: str, *, stream: bool) -> None:
    async with GeminiServer(answer({"text": "ok"})) as server:
        gemini = Gemini(model, base_url=server.url)
        with pytest.raises(ModelError, match=r"'look' \(c1\).*skip_thought_signature_validator") as caught:
            await anext(gemini.generate_content_async(request(ASKED, called(None), RESPONDED), stream))
        assert not caught.value.retryable
        assert server.requests == []


CONVERSATIONS = {
    "signed": [ASKED, called(SIGNED), RESPONDED],
    "the dummy": [ASKED, called(DUMMY), RESPONDED],
    # Of parallel calls Gemini signs the first one only.
    "parallel": [ASKED, called(SIGNED, None), RESPONDED],
    "an earlier turn": [ASKED, called(None), RESPONDED, TEXT, user_content("and now?")],
    "no call": [ASKED, TEXT, user_content("and now?")],
}


@pytest.mark.parametrize("contents", CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_what_gemini_takes_is_sent(contents: list[types.Content]) -> None:
    assert await ask("gemini-3-pro-preview", *contents) == 1


async def test_every_step_of_the_turn_counts() -> None:
    with pytest.raises(ModelError, match="'look'"):
        await ask("gemini-3-pro-preview", ASKED, called(SIGNED), RESPONDED, called(None), RESPONDED)


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "gemini-3-pro-image-preview", "model-optimizer-exp"])
async def test_models_that_do_not_insist_are_asked(model: str) -> None:
    assert await ask(model, ASKED, called(None), RESPONDED) == 1


async def test_a_signature_is_sent_as_it_came() -> None:
    async with GeminiServer(answer({"text": "ok"})) as server:
        gemini = Gemini("gemini-3-pro-preview", base_url=server.url)
        async for _ in gemini.generate_content_async(request(ASKED, called(DUMMY), RESPONDED)):
            pass
        await gemini.aclose()
        (sent,) = server.requests
    part = types.Part.model_validate(sent.body["contents"][1]["parts"][0])
    assert part.thought_signature == DUMMY
