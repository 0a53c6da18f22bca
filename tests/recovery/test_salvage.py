"""A journal that is read out of history holds all that users sent and all that completed, wherever history ends."""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from perdure.client import Runner
from perdure.errors import DefinitionWarning, LogError
from perdure.journal.events import USER, Event
from perdure.journal.fold import fold_journal
from perdure.journal.projection import Projection
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationResult, ToolInput
from perdure.recovery.salvage import salvage
from perdure.sessions.lifecycle import Lifecycle
from tests.conformance import runner
from tests.conformance.runner import run_scenario
from tests.conformance.scenario import load
from tests.replay.record import HISTORIES, RECORDED, SCENARIOS
from tests.workflows.support import eventually

FILES = sorted(HISTORIES.rglob("*.json"))


def read(path: Path) -> WorkflowHistory:
    document: dict[str, Any] = json.loads(path.read_text())
    return WorkflowHistory.from_json(document["workflow_id"], document["history"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_beginning_of_a_recorded_history_tells_its_journal(path: Path) -> None:
    """It folds, it has every message that was accepted, and the result of every tool that completed."""
    history = read(path)
    for end in range(1, len(history.events) + 1):
        events = history.events[:end]
        projection = fold_journal(salvage(events))
        told = {event.event_id: event for event in events}
        for event in events:
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                outcome = event.workflow_execution_update_completed_event_attributes.outcome
                result = InvocationResult.model_validate_json(outcome.success.payloads[0].data)
                assert result.invocation.id in projection.invocations
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                scheduled = told[event.activity_task_completed_event_attributes.scheduled_event_id]
                check_result(projection, scheduled.activity_task_scheduled_event_attributes)


def check_result(projection: Projection, scheduled: Any) -> None:
    """Check that a tool's result is kept, or logged as often as the tool ran."""
    if ":" in scheduled.activity_type.name:
        return
    data = json.loads(scheduled.input.payloads[0].data)
    if data["kind"] != "tool":
        return
    call = ToolInput.model_validate(data)
    logged = [
        response.id
        for event in projection.events
        if event.author != USER
        for response in event.get_function_responses()
        if response.id == call.function_call_id
    ]
    wanted = 1 if call.confirmation is None else 2
    assert len(logged) >= wanted or call.function_call_id in projection.invocations[call.invocation_id].kept


def test_what_is_no_history_is_refused() -> None:
    with pytest.raises(LogError, match="no history"):
        salvage([])


class TakenOver(Runner):
    """A user whose session is taken over before each turn but the first."""

    def __init__(self, app_name: str, client: Client, **options: Any) -> None:
        super().__init__(app_name, client, **options)
        self._lifecycle = Lifecycle(client)

    async def run_async(self, **what: Any) -> AsyncGenerator[Event, None]:
        who = {name: what[name] for name in ("user_id", "session_id")}
        if (await self.get_session(**who)).invocations:
            await self._lifecycle.take_over(SessionKey(self.app_name, *who.values()))
            # The agents that were taken over log again what no slice told, their ends above all, before the turn.
            await eventually(lambda: self._is_settled(who))
        async for event in super().run_async(**what):
            yield event

    async def _is_settled(self, who: dict[str, Any]) -> bool:
        return (await self.get_session(**who)).status != "running"


@pytest.mark.server
@pytest.mark.parametrize("name", [name for name, _ in RECORDED])
async def test_a_scenario_leaves_its_log_although_its_session_is_taken_over(
    client: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Log, prompts, state and runs of tools are those of an undisturbed run."""
    monkeypatch.setattr(runner, "Runner", TakenOver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefinitionWarning)
        differences = await run_scenario(load(SCENARIOS / f"{name}.json"), client)
    assert not differences, "\n".join(differences)
