"""Histories of released versions replay against today's workflow code, so that runs outlive an upgrade."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import SandboxImportNotificationPolicy

from perdure.errors import HistoryDiffers, LogError
from perdure.prove.replay import read_history, replay_history
from tests.replay.record import HISTORIES

FILES = sorted(HISTORIES.rglob("*.json"))


def load_history(path: Path) -> WorkflowHistory:
    document: dict[str, Any] = json.loads(path.read_text())
    return WorkflowHistory.from_json(document["workflow_id"], document["history"])


def test_there_are_recorded_histories() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_recorded_history_replays(path: Path) -> None:
    """Raises if the code would schedule anything else than what was recorded."""
    await replay_history(load_history(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_it_replays_in_temporals_sandbox_which_catches_stray_clocks(path: Path) -> None:
    """Workers run Perdure's workflows without a sandbox, so here is one: a clock, or chance, in them raises."""
    await replay_history(load_history(path), runner=_sandbox())


def test_the_sandbox_is_around_perdures_workflows_alone() -> None:
    passed = _AllBut({"perdure.workflows"})
    guarded = ("perdure", "perdure.workflows", "perdure.workflows.run.progress")
    assert not any(name in passed for name in guarded)
    assert all(name in passed for name in ("asyncio", "perdure.journal.fold", "perdure.workflows_of_mine"))


def _sandbox() -> SandboxedWorkflowRunner:
    """Return Temporal's sandbox around `perdure.workflows`."""
    restrictions = replace(
        SandboxRestrictions.default,
        passthrough_modules=_AllBut({"perdure.workflows"}),
        import_notification_policy=SandboxImportNotificationPolicy.SILENT,
    )
    return SandboxedWorkflowRunner(restrictions=restrictions)


class _AllBut(set[str]):
    """The set of all module names but a few, what lies underneath them, and what they lie in."""

    def __contains__(self, name: object) -> bool:
        return not any(f"{name}.".startswith(f"{guarded}.") or f"{guarded}.".startswith(f"{name}.") for guarded in self)

    def __or__(self, value: Any) -> _AllBut:
        return self


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
