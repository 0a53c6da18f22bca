"""Plugins that look at every event: what models and tools make, and what the workflow merges or asks with."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.genai import types
from temporalio.client import Client

from perdure.messages.session import Trial
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import User, serving

pytestmark = pytest.mark.server

_RUNS = [None, Trial(steps_per_run=1, reenter=True)]


class Watch(BasePlugin):
    """Keeps what it sees, and marks it."""

    def __init__(self, *, failing: int | None = None) -> None:
        super().__init__(name="watch")
        self.seen: list[list[str]] = []
        self.failing = failing

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
        self.seen.append(parts_of(event.content))
        if len(self.seen) == self.failing:
            raise RuntimeError("the watch has stopped")
        return event.model_copy(update={"custom_metadata": {"seen": len(self.seen)}})


def parts_of(content: types.Content | None) -> list[str]:
    """Return the texts, calls and responses of a content, by name."""
    found: list[str] = []
    for part in (content.parts if content else None) or []:
        if part.function_call:
            found.append(f"call {part.function_call.name}")
        if part.function_response:
            found.append(f"response {part.function_response.name}")
        if part.text:
            found.append(part.text)
    return found


class Shop:
    """An agent that looks two things up at once, and asks before it pays."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.clerk = agent("clerk", [*call("look", what="a"), *call("look", what="b")], call("pay"), say("done"))
        self.clerk.tools = [self.look, FunctionTool(self.pay, require_confirmation=True)]

    def look(self, what: str) -> dict[str, Any]:
        """Look something up."""
        self.ran.append(what)
        return {"found": what}

    def pay(self) -> dict[str, Any]:
        """Pay."""
        self.ran.append("pay")
        return {"paid": True}


async def as_adk_sees_it() -> list[list[str]]:
    """Return what the plugin sees in ADK's own runner, up to the question."""
    watch = Watch()
    runner = InMemoryRunner(app=App(name="shop", root_agent=Shop().clerk, plugins=[watch]))
    session = await runner.session_service.create_session(app_name="shop", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        pass
    return watch.seen


@pytest.mark.parametrize("trial", _RUNS, ids=["live", "a run for each step"])
async def test_plugins_see_each_event_once_as_it_is_logged(client: Client, app_name: str, trial: Trial | None) -> None:
    watch, shop = Watch(), Shop()
    async with serving(client, make_app(app_name, shop.clerk, plugins=[watch])):
        user = User(client, app_name)
        user.runner = user.runner if trial is None else type(user.runner)(app_name, client, trial=trial)
        await user.create()
        (asked,) = (await user.run("go")).pending
        assert watch.seen == await as_adk_sees_it()
        await user.answered({asked.id: {"confirmed": True}})
        logged = [event for event in await user.events() if event.author == "clerk"]
    assert watch.seen[-2:] == [["response pay"], ["done"]]
    assert [(event.custom_metadata or {}).get("seen") for event in logged] == list(range(1, len(watch.seen) + 1))
    assert shop.ran == ["a", "b", "pay"]


async def test_tools_do_not_run_again_for_a_plugin_that_fails(client: Client, app_name: str) -> None:
    """The second event is that of both responses."""
    watch, shop = Watch(failing=2), Shop()
    async with serving(client, make_app(app_name, shop.clerk, resumable=True, plugins=[watch])) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert [(failure.step, "the watch has stopped" in failure.cause) for failure in failed.failures] == [
            ("on_event_callback", True)
        ]
        assert (await user.resumed(failed.id)).status == "waiting"
    assert shop.ran == ["a", "b"]
