"""Histories of released versions replay against today's workflow code, so that runs outlive an upgrade."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from perdure.agents import App
from perdure.compiler.registry import register
from perdure.errors import DefinitionWarning, HistoryDiffers, LogError
from perdure.prove.replay import read_history, replay_history
from tests.conformance.build import ScenarioApp
from tests.replay.record import HISTORIES, scenario_of

FILES = sorted(HISTORIES.rglob("*.json"))


def load_history(path: Path) -> tuple[WorkflowHistory, App]:
    document: dict[str, Any] = json.loads(path.read_text())
    app = document["workflow_id"].partition("/")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefinitionWarning)
        built = ScenarioApp(scenario_of(document), app).app
        register(built)
    return WorkflowHistory.from_json(document["workflow_id"], document["history"]), built


def test_there_are_recorded_histories() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_recorded_history_replays(path: Path) -> None:
    """Raises if the code would schedule anything else than what was recorded."""
    history, app = load_history(path)
    await replay_history(history, [app])


async def test_an_app_without_custom_agents_is_not_needed() -> None:
    document = json.loads(next(path for path in FILES if path.stem == "transfer_two_levels").read_text())
    await replay_history(WorkflowHistory.from_json(document["workflow_id"], document["history"]))


@pytest.mark.nondeterminism
async def test_a_change_of_the_workflow_would_be_noticed(tmp_path: Path) -> None:
    """A history in which another activity was scheduled does not replay: the tests above can fail."""
    document = json.loads(next(path for path in FILES if path.stem == "transfer_two_levels").read_text())
    path = tmp_path / "exported.json"
    path.write_text(json.dumps(document["history"]).replace('"perdure:model"', '"perdure:other"'))
    history = read_history(path)
    assert history.workflow_id == document["workflow_id"]
    with pytest.raises(HistoryDiffers, match=r"TMPRL1100.*resume --fresh"):
        await replay_history(history)


@pytest.mark.parametrize(("text", "reason"), [("no json", "no history"), ('{"events": []}', "no history events")])
def test_what_is_no_history_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "exported.json"
    path.write_text(text)
    with pytest.raises(LogError, match=reason):
        read_history(path)
