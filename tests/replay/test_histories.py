"""Histories of released versions replay against today's workflow code, so that runs outlive an upgrade."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from perdure.agents.registry import register
from perdure.errors import DefinitionWarning
from perdure.payloads import data_converter
from perdure.worker import workflow_runner
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.shared_state import SharedStateWorkflow
from tests.conformance.build import ScenarioApp
from tests.replay.record import HISTORIES, scenario_of

FILES = sorted(HISTORIES.rglob("*.json"))


def load_history(path: Path) -> tuple[WorkflowHistory, Replayer]:
    document: dict[str, Any] = json.loads(path.read_text())
    app = document["workflow_id"].partition("/")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefinitionWarning)
        registry = register(ScenarioApp(scenario_of(document), app).app)
    replayer = Replayer(
        workflows=[SessionWorkflow, SharedStateWorkflow],
        data_converter=data_converter,
        workflow_runner=workflow_runner([registry]),
    )
    return WorkflowHistory.from_json(document["workflow_id"], document["history"]), replayer


def test_there_are_recorded_histories() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_recorded_history_replays(path: Path) -> None:
    """Raises if the code would schedule anything else than what was recorded."""
    history, replayer = load_history(path)
    await replayer.replay_workflow(history)


async def test_a_change_of_the_workflow_would_be_noticed() -> None:
    """A history in which another activity was scheduled does not replay: the test above can fail."""
    path = next(path for path in FILES if path.stem == "transfer_two_levels")
    document = json.loads(path.read_text())
    text = json.dumps(document["history"]).replace('"perdure:model"', '"perdure:other"')
    _, replayer = load_history(path)
    with pytest.raises(Exception, match=r"Nondeterminism|TMPRL1100"):
        await replayer.replay_workflow(WorkflowHistory.from_json(document["workflow_id"], text))
