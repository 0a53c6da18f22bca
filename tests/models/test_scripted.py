from __future__ import annotations

import time
from typing import Any

import pytest
from google.genai import types

from perdure.errors import DefinitionError, ModelError
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel


async def answer(model: ScriptedModel, call_index: int) -> LlmResponse:
    request = LlmRequest(
        model=model.model,
        contents=[],
        config=types.GenerateContentConfig(),
        agent="clerk",
        call_index=call_index,
    )
    [response] = [response async for response in model.generate_content_async(request)]
    return response


async def test_the_request_says_which_step_it_is() -> None:
    model = ScriptedModel([{"text": "one"}, {"text": "two"}])
    for index, expected in ((1, "two"), (0, "one"), (1, "two")):
        response = await answer(model, index)
        assert response.content == types.Content(role="model", parts=[types.Part(text=expected)])


async def test_text_comes_before_the_calls_and_calls_have_no_id() -> None:
    model = ScriptedModel([{"calls": [{"name": "a", "args": {"x": None}}, {"name": "b"}], "text": "look"}])
    content = (await answer(model, 0)).content
    assert content is not None
    assert content.parts == [
        types.Part(text="look"),
        types.Part(function_call=types.FunctionCall(name="a", args={"x": None})),
        types.Part(function_call=types.FunctionCall(name="b", args={})),
    ]


async def test_a_content_is_given_as_it_is_and_stays_the_scripts() -> None:
    step = types.Content(parts=[types.Part(text="x", thought_signature=b"\xff")])
    model = ScriptedModel([step])
    content = (await answer(model, 0)).content
    assert content is not None
    assert content.role == "model"
    assert content.parts == step.parts
    (content.parts or [])[0].text = "changed"
    assert (step.parts or [])[0].text == "x"


async def test_an_error_step_fails_for_good() -> None:
    with pytest.raises(ModelError, match="overloaded") as caught:
        await answer(ScriptedModel([{"error": "overloaded"}]), 0)
    assert not caught.value.retryable


async def test_a_call_past_the_end_names_agent_and_call() -> None:
    with pytest.raises(ModelError, match=r"'clerk' made model call 3.*ends after 2") as caught:
        await answer(ScriptedModel([{"text": "a"}, {"text": "b"}]), 2)
    assert not caught.value.retryable


async def test_a_stream_has_the_text_word_by_word_and_then_the_whole() -> None:
    model = ScriptedModel(
        [
            {"text": " Oslo is\nfine. ", "calls": [{"name": "look"}], "delay": 0.09},
            types.Content(parts=[types.Part(text="hm", thought=True), types.Part(text="Oslo")]),
            {"calls": [{"name": "look"}], "delay": 0.01},
        ]
    )
    started = time.monotonic()
    *partial, whole = await streamed(model, 0)
    assert time.monotonic() - started >= 0.09
    assert [part.text for part in partial] == [" Oslo ", "is\n", "fine. "]
    assert whole == (await answer(model, 0)).content
    *partial, whole = await streamed(model, 1)
    assert partial == [types.Part(text="hm", thought=True), types.Part(text="Oslo")]
    assert whole == (await answer(model, 1)).content
    assert await streamed(model, 2) == [(await answer(model, 2)).content]
    with pytest.raises(ModelError, match="overloaded"):
        await streamed(ScriptedModel([{"error": "overloaded"}]), 0)


async def streamed(model: ScriptedModel, index: int) -> list[Any]:
    """Return the part of each partial response, and the content of the one that is not."""
    request = LlmRequest(
        model="scripted", contents=[], config=types.GenerateContentConfig(), agent="clerk", call_index=index
    )
    found: list[Any] = []
    async for response in model.generate_content_async(request, stream=True):
        assert response.content is not None
        found.append((response.content.parts or [])[0] if response.partial else response.content)
    return found


async def test_a_delay_takes_its_time() -> None:
    started = time.monotonic()
    await answer(ScriptedModel([{"text": "a", "delay": 0.05}]), 0)
    assert time.monotonic() - started >= 0.05


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"text": "a", "error": "b"},
        {"calls": []},
        {"txt": "a"},
        {"calls": [{"nam": "a"}]},
        {"calls": [{"name": "a", "id": "1"}]},
        {"text": "a", "delay": -1},
    ],
)
def test_a_malformed_step_is_refused_with_its_number(step: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="step 2 of a scripted model"):
        ScriptedModel([{"text": "fine"}, step])


async def test_a_step_may_say_why_the_model_stopped() -> None:
    """Alone it is no answer, as Gemini tells of it."""
    steps = [{"finish_reason": "SAFETY"}, {"finish_reason": "STOP"}, {"text": "Onc", "finish_reason": "MAX_TOKENS"}]
    model = ScriptedModel(steps)
    told: list[tuple[str | None, bool, str | None]] = []
    for index in range(len(steps)):
        config = types.GenerateContentConfig()
        asked = LlmRequest(model="m", contents=[], config=config, agent="clerk", call_index=index)
        async for response in model.generate_content_async(asked):
            parts = response.content.parts if response.content else None
            told.append((response.error_code, bool(parts), response.finish_reason and response.finish_reason.value))
    assert told == [("SAFETY", False, "SAFETY"), (None, False, "STOP"), (None, True, "MAX_TOKENS")]
