"""Several steps of a google.adk agent in one activity, as whoever serves its app says."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from temporalio.client import Client

from perdure.activities.durations import Durations
from tests.adk.support import Script, call, make_app, say
from tests.workflows.support import serving
from tests.workflows.test_stretches import activities

pytestmark = pytest.mark.server


async def test_its_log_is_the_same_by_fewer_activities(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Durations, "unknown", 0.0)
    ran: list[str] = []

    def look(tool_context: Any) -> str:
        """Look."""
        ran.append("look")
        return "seen"

    def fails() -> str:
        """Fail."""
        ran.append("fails")
        raise RuntimeError("it broke")

    model = Script(call("look"), call("look"), call("fails"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, fails]))
    async with serving(client, app, steps_per_activity=20) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert ran == ["look", "look", "fails"]
        assert await activities(user) == ["model"]
        assert await user.log() == ["user: go", *(["clerk calls look", "clerk got look"] * 2), "clerk calls fails"]
        assert len(model.requests) == 3
