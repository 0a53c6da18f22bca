"""google.adk's apps in sessions: tools, pauses, callbacks, plugins around turns, compaction, what is refused there."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.genai import types
from temporalio.client import Client

from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import serving

pytestmark = pytest.mark.server


def look_up(city: str, tool_context: ToolContext) -> dict[str, Any]:
    """Look the weather up."""
    tool_context.state["city"] = city
    return {"weather": "rain"}


def ask_manager() -> None:
    """Ask the manager."""


async def test_a_paused_turn_goes_on_with_its_answer(client: Client, app_name: str) -> None:
    clerk = agent("clerk", call("look_up", city="Oslo"), call("ask_manager"), say("booked"), output_key="end")
    clerk.tools = [look_up, LongRunningFunctionTool(func=ask_manager)]
    writer = agent("writer", say("written"), instruction="The end was: {end}")
    root = SequentialAgent(name="root", sub_agents=[clerk, writer])
    async with serving(client, make_app(app_name, root, resumable=True)) as user:
        await user.create()
        waiting = await user.run("To Oslo")
        assert waiting.status == "waiting"
        done = await user.answered({waiting.pending[0].id: {"approved": True}})
        assert (done.status, done.id) == ("finished", waiting.id)
        state = (await user.view()).state
        assert (state["city"], state["end"]) == ("Oslo", "booked")
        assert (await user.log())[-1] == "writer: written"
    assert isinstance(writer.model, Script)
    assert "The end was: booked" in writer.model.requests[0].model_dump_json()


@pytest.mark.parametrize("resumable", [True, False])
async def test_models_stream_as_the_last_request_asks(client: Client, app_name: str, resumable: bool) -> None:
    """Nobody listens here: what was asked for is in the journal, and outlives who asked."""
    clerk = agent("clerk", call("ask_manager"), call("ask_manager"), say("done"))
    clerk.tools = [LongRunningFunctionTool(func=ask_manager)]
    model = clerk.model
    assert isinstance(model, Script)
    async with serving(client, make_app(app_name, clerk, resumable=resumable)) as user:
        await user.create()
        runner, who = user.runner, user.who
        sent = await runner.send_message(**who, message="go", streaming=True)
        (asked,) = (await user.settled(sent.invocation.id)).pending
        (asked,) = (await user.answered({asked.id: {"ok": 1}})).pending
        sent = await runner.respond(**who, responses={asked.id: {"ok": 2}}, streaming=True)
        await user.settled(sent.invocation.id)
    assert model.streamed == [True, False, True]


async def test_a_resume_streams_as_it_asks(client: Client, app_name: str) -> None:
    clerk = agent("clerk")
    model = clerk.model
    assert isinstance(model, Script)
    async with serving(client, make_app(app_name, clerk, resumable=True)) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        model.answers.append(say("done"))
        sent = await user.runner.resume(**user.who, invocation_id=failed.id, streaming=True)
        assert (await user.settled(sent.invocation.id)).status == "finished"
    assert model.streamed[-1] is True
    assert not any(model.streamed[:-1])


class Hooks(BasePlugin):
    """Keeps what it is shown, and changes the message."""

    def __init__(self) -> None:
        super().__init__(name="hooks")
        self.seen: list[str] = []

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        self.seen.append("message")
        return types.Content(role="user", parts=[types.Part(text=f"Politely: {(user_message.parts or [])[0].text}")])

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
        self.seen.append("before run")
        return None

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
        self.seen.append(f"event of {event.author}")
        return None

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        self.seen.append("after run")


async def test_plugins_look_at_message_turn_and_events(client: Client, app_name: str) -> None:
    hooks = Hooks()
    clerk = agent("clerk", say("hello"))
    async with serving(client, make_app(app_name, clerk, plugins=[hooks])) as user:
        await user.create()
        await user.run("hi")
        assert await user.log() == ["user: Politely: hi", "clerk: hello"]
    assert hooks.seen == ["message", "before run", "event of clerk", "after run"]


async def test_a_plugin_that_answers_before_the_run_ends_the_turn(client: Client, app_name: str) -> None:
    class Closed(BasePlugin):
        async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
            return types.Content(role="model", parts=[types.Part(text="closed")])

    clerk = agent("clerk")
    async with serving(client, make_app(app_name, clerk, plugins=[Closed(name="closed")])) as user:
        await user.create()
        assert (await user.run("hi")).status == "finished"
        assert await user.log() == ["user: hi", "model: closed"]
    assert isinstance(clerk.model, Script)
    assert clerk.model.requests == []


async def test_the_log_is_compacted_behind_a_turn(client: Client, app_name: str) -> None:
    summarizer = LlmEventSummarizer(llm=Script(say("they met")))
    config = EventsCompactionConfig(compaction_interval=1, overlap_size=0, summarizer=summarizer)
    clerk = agent("clerk", say("hello"), say("bye"))
    async with serving(client, make_app(app_name, clerk, events_compaction_config=config)) as user:
        await user.create()
        await user.run("hi")
        compacted = (await user.events())[-1].actions.compaction
        assert compacted is not None
        assert "they met" in str(compacted)


async def test_callbacks_answer_for_agents(client: Client, app_name: str) -> None:
    def instead(callback_context: CallbackContext) -> types.Content:
        callback_context.state["by"] = callback_context.agent_name
        return types.Content(role="model", parts=[types.Part(text="not today")])

    clerk = agent("clerk", before_agent_callback=instead)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("hi")
        assert await user.log() == ["user: hi", "clerk: not today"]
        assert (await user.view()).state["by"] == "clerk"
