"""Each model request of a proof is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.genai import types

from perdure.agents import App, LlmAgent, SequentialAgent
from perdure.journal.events import user_content
from perdure.models.base import LlmRequest
from perdure.models.gemini import Gemini
from perdure.models.scripted import ScriptedModel
from perdure.prove.ledger import Ledger
from perdure.prove.watched_models import WatchedModel, refused_requests, watch_models


@pytest.mark.parametrize(("contents", "refused"), [([user_content("hi")], []), ([], ["there are no contents"])])
async def test_what_a_provider_would_refuse_is_found(
    contents: list[types.Content], refused: list[str], tmp_path: Path
) -> None:
    model = WatchedModel(ScriptedModel([{"text": "hello"}]), Ledger(tmp_path / "a.jsonl"))
    asked = LlmRequest(model="m", contents=contents, config=types.GenerateContentConfig(), agent="clerk", call_index=0)
    assert [response.content is not None async for response in model.generate_content_async(asked)] == [True]
    where = "model call 1 of clerk would be refused by its provider"
    assert refused_requests(tmp_path) == [f"{where}: {problem}" for problem in refused]


def test_every_model_of_an_app_is_watched_and_seems_the_same(tmp_path: Path) -> None:
    scripted = ScriptedModel([], model="script of a")
    below = LlmAgent(name="c")
    agents = [LlmAgent(name="a", model=scripted), LlmAgent(name="b", model="gemini-2.5-flash", sub_agents=[below])]
    watch_models(App(name="app", root_agent=SequentialAgent(name="s", sub_agents=list(agents))), Ledger(tmp_path / "l"))
    seen = [
        (model.model, model.provider, model.pairs_by_id)
        for model in map(LlmAgent.resolved_model, [*agents, below])
        if isinstance(model, WatchedModel)
    ]
    gemini = Gemini("gemini-2.5-flash")
    assert seen == [
        ("script of a", scripted.provider, True),
        *[("gemini-2.5-flash", gemini.provider, False)] * 2,
    ]
