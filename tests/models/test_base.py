from __future__ import annotations

import pytest
from google.genai import types

from perdure.errors import DefinitionError
from perdure.journal.events import Event
from perdure.models.base import LlmResponse
from perdure.models.gemini import Gemini
from perdure.models.registry import LLMRegistry
from perdure.models.scripted import ScriptedModel


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own copy of the table."""
    monkeypatch.setattr(LLMRegistry, "_factories", dict(vars(LLMRegistry)["_factories"]))
    monkeypatch.setattr(LLMRegistry, "_models", {})


@pytest.mark.parametrize(
    "name",
    [
        "gemini-2.5-flash",
        "projects/p/locations/l/endpoints/1",
        "projects/p/locations/l/publishers/google/models/gemini-2.5-pro",
    ],
)
def test_gemini_names_find_gemini(name: str) -> None:
    model = LLMRegistry.new_llm(name)
    assert isinstance(model, Gemini)
    assert model.model == name
    assert LLMRegistry.new_llm(name) is model


def test_an_unknown_name_is_refused_with_the_known_patterns() -> None:
    with pytest.raises(DefinitionError, match=r"'gpt-7'.*'gemini-\.\+'.*LLMRegistry\.register"):
        LLMRegistry.resolve("gpt-7")


def test_a_name_must_match_as_a_whole() -> None:
    with pytest.raises(DefinitionError):
        LLMRegistry.resolve("my-gemini-2.5-flash")


def test_the_provider_registered_last_counts() -> None:
    before = LLMRegistry.new_llm("gemini-2.5-flash")
    LLMRegistry.register(r"gemini-2.*", lambda name: ScriptedModel([], model=name))
    after = LLMRegistry.new_llm("gemini-2.5-flash")
    assert isinstance(before, Gemini)
    assert isinstance(after, ScriptedModel)
    assert isinstance(LLMRegistry.new_llm("gemini-3"), Gemini)


def test_a_pattern_that_is_no_expression_is_refused() -> None:
    with pytest.raises(DefinitionError, match="no regular expression"):
        LLMRegistry.register("gemini-(", lambda name: ScriptedModel([], model=name))


def test_a_response_has_no_field_that_an_event_lacks() -> None:
    """Else an answer could not be logged whole."""
    for name, field in LlmResponse.model_fields.items():
        assert Event.model_fields[name].annotation == field.annotation


def create(**fields: object) -> LlmResponse:
    return LlmResponse.create(types.GenerateContentResponse.model_validate(fields))


def test_a_stop_without_parts_is_an_empty_answer() -> None:
    response = create(candidates=[{"finish_reason": "STOP"}])
    assert response.error_code is None
    assert response.content is None


def test_parts_count_whatever_made_the_model_stop() -> None:
    response = create(candidates=[{"finish_reason": "MAX_TOKENS", "content": {"parts": [{"text": "half"}]}}])
    assert response.error_code is None
    assert response.finish_reason == types.FinishReason.MAX_TOKENS
    assert response.content is not None


def test_no_candidates_and_no_reason_is_an_empty_answer() -> None:
    response = create(model_version="v1")
    assert response.error_code is None
    assert response.content == types.Content(role="model", parts=[])
