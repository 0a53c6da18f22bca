"""What `perdure dev` says at its start that an app lacks."""

from __future__ import annotations

import pytest

from perdure.agents import App, LlmAgent
from perdure.cli.dev.orders import Loaded
from perdure.cli.dev.reloading import say_what_lacks
from perdure.cli.dev.serving import served_app
from perdure.models.scripted import ScriptedModel

KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def tell(*apps: App) -> None:
    say_what_lacks(Loaded(tuple(map(served_app, apps)), ()))


def test_a_model_without_its_key_is_told_before_the_first_message_fails(capsys: pytest.CaptureFixture[str]) -> None:
    tell(App(name="shop", root_agent=LlmAgent(name="clerk", model="gemini-2.5-flash")))
    said = capsys.readouterr().out
    assert said.startswith("lacks        credentials for the model of shop: neither GOOGLE_API_KEY nor GEMINI_API_KEY")
    assert "set one of them" in said


@pytest.mark.parametrize("key", ["secret", None])
def test_nothing_is_told_of_what_is_there_or_not_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is not None:
        monkeypatch.setenv("GOOGLE_API_KEY", key)
        tell(App(name="shop", root_agent=LlmAgent(name="clerk", model="gemini-2.5-flash")))
    tell(App(name="stall", root_agent=LlmAgent(name="clerk", model=ScriptedModel([{"text": "Hello."}]))))
    assert capsys.readouterr().out == ""
