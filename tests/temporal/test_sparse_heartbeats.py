"""How often a worker's activities are heard of is the worker's, but for what has a heartbeat timeout of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import pytest
from temporalio.client import Client

from perdure.activities.heartbeats import beat_seconds
from perdure.agents import FunctionTool
from perdure.messages.session import CALL_MODEL
from tests.workflows.support import agent, calls, make_app, serving, text


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(0.7, 0.2), (1, 1 / 3.5), (2, 0.6), (3.5, 2.1), (10, 6), (28, 16.8), (600, 360)]
)
def test_a_heartbeat_comes_as_late_as_it_may(timeout: float, seconds: float) -> None:
    assert beat_seconds(timeout) == pytest.approx(seconds)
    assert beat_seconds(timeout) * 1.5 < timeout


@pytest.mark.server
@pytest.mark.parametrize(("heartbeats", "usual"), [("frequent", 3.5), ("sparse", 28)])
async def test_a_timeout_of_its_own_is_kept(
    client: Client, app_name: str, heartbeats: Literal["frequent", "sparse"], usual: float
) -> None:
    def own() -> str:
        return "own"

    def plain() -> str:
        return "plain"

    tools = [FunctionTool(own, heartbeat_timeout=timedelta(seconds=9)), FunctionTool(plain)]
    app = make_app(app_name, agent("clerk", [calls("own", "plain"), text("done")], tools))
    async with serving(client, app, heartbeats=heartbeats) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        found: dict[str, float] = {}
        async for event in user.workflow.fetch_history_events():
            if event.HasField("activity_task_scheduled_event_attributes"):
                scheduled = event.activity_task_scheduled_event_attributes
                found[scheduled.activity_type.name] = scheduled.heartbeat_timeout.ToTimedelta().total_seconds()
    assert {name: found[name] for name in (CALL_MODEL, "own", "plain")} == {CALL_MODEL: usual, "own": 9, "plain": usual}
