"""What tests of newer features left replays against today's workflow code, continued runs and shared state included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from perdure.errors import HistoryDiffers
from perdure.journal import packing
from perdure.journal.entries import Entry
from perdure.messages.keys import SessionKey
from perdure.prove.replay import replay_history
from perdure.recovery.salvage import length_outside, salvage
from tests.replay.features import RECORDED, file_name, read_feature
from tests.replay.record import HISTORIES
from tests.trajectories.found_runs import check_runs
from tests.views.told_steps import check_told

FILES = sorted(HISTORIES.rglob("features/*.json.gz"))


async def replay(path: Path, *, other: tuple[str, str] = ("", "")) -> int:
    """Replay all workflows of a file, with a text in them put in another's place; returns how many there are."""
    document = read_feature(path)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in document["limits"].items():
            patch.setattr(packing, name, value)
        for workflow in document["workflows"]:
            history = WorkflowHistory.from_json(workflow["workflow_id"], workflow["history"])
            if other[0]:
                text = history.to_json().replace(*other)
                history = WorkflowHistory.from_json(workflow["workflow_id"], text)
            await replay_history(history)
    return len(document["workflows"])


def is_session(history: WorkflowHistory) -> bool:
    """Return whether a history is a session's; the other workflows have names of Perdure's."""
    name = history.events[0].workflow_execution_started_event_attributes.workflow_type.name
    return not name.startswith("perdure:")


def journals() -> Iterator[list[Entry]]:
    """Yield the journals of the recorded sessions, as their histories tell them."""
    for path in FILES:
        for workflow in read_feature(path)["workflows"]:
            history = WorkflowHistory.from_json(workflow["workflow_id"], workflow["history"])
            # Of a run that goes on with another one, the journal may begin elsewhere.
            if is_session(history) and not length_outside(history.events):
                yield salvage(history.events)


def test_every_feature_of_the_list_is_recorded() -> None:
    wanted = {file_name(test.removeprefix("test_")) for tests in RECORDED.values() for test in tests}
    assert wanted <= {path.name.removesuffix(".json.gz") for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parents[1].name}/{path.name.partition('.')[0]}")
async def test_a_feature_replays(path: Path) -> None:
    """Raises if the code would do anything else than what was recorded."""
    assert await replay(path) >= 1


def test_what_explain_tells_is_what_the_recorded_sessions_did() -> None:
    """Before each event of an agent it named that agent, on that branch, and what left such an event."""
    assert sum(map(check_told, journals())) > 1000


def test_authors_and_branches_tell_the_runs_of_the_recorded_sessions() -> None:
    """As they do for logs from elsewhere; and what was rebuilt from history names its runs, too."""
    assert sum(map(check_runs, journals())) > 1000


@pytest.mark.nondeterminism
@pytest.mark.parametrize(
    ("name", "recorded", "other"),
    [
        ("a_silent_end_is_in_doubt_at_once", '"pay"', '"buy"'),
        ("a_local_tool_runs_once_and_is_recorded_100", '"core_local_activity"', '"Version"'),
        ("a_local_tool_is_retried_by_its_policy", "TIMER_STARTED", "WORKFLOW_EXECUTION_SIGNALED"),
        ("nobody_is_reminded_of_what_is_answered", "TIMER_STARTED", "WORKFLOW_EXECUTION_SIGNALED"),
    ],
)
async def test_another_history_would_be_noticed(name: str, recorded: str, other: str) -> None:
    (path,) = [path for path in FILES if path.name == f"{name}.json.gz"]
    with pytest.raises(HistoryDiffers):
        await replay(path, other=(recorded, other))


async def test_a_run_that_has_just_begun_replays_at_once() -> None:
    """A run that is held back until the one before it is a second old has nothing but its start in its history."""
    (path,) = [path for path in FILES if path.name == "answers_and_stops_find_the_next_run.json.gz"]
    newest = read_feature(path)["workflows"][-1]["history"]
    newest["events"] = newest["events"][:1]
    await replay_history(WorkflowHistory.from_json("app/u/s", newest))


async def test_a_machine_that_is_busy_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's workflow task that took so long would be given up."""

    def slowly(key: SessionKey) -> None:
        time.sleep(2.5)

    monkeypatch.setattr("perdure.workflows.session.check_ids", slowly)
    (path,) = [path for path in FILES if path.name == "a_silent_end_is_in_doubt_at_once.json.gz"]
    await replay(path)
