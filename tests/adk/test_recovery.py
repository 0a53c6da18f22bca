"""What Temporal's history tells of google.adk's agents: journals rebuilt from it hold callbacks and hooks, too."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from google.adk.agents import BaseAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.genai import types
from pydantic import PrivateAttr
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure.journal.entries import CallbackRan
from perdure.journal.fold import fold_journal
from perdure.messages.callbacks import CALL_BACK, CallbackInput
from perdure.recovery.salvage import salvage
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import User, serving

pytestmark = pytest.mark.server


def look_up(city: str, tool_context: ToolContext) -> str:
    """Look the weather up."""
    tool_context.state["city"] = city
    return "rain"


def ask_manager() -> None:
    """Ask the manager."""


def greet(callback_context: CallbackContext) -> types.Content | None:
    callback_context.state["greeted"] = True
    callback_context.session.state["beside"] = "kept for the turn"
    return None


def bye(callback_context: CallbackContext) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=f"bye from {callback_context.agent_name}")])


class Hooks(BasePlugin):
    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        invocation_context.session.state["began"] = True

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        return None


LOG = ["user: To Oslo", "clerk: booked", "clerk: bye from clerk", "writer: bye from writer", "root: bye from root"]


def made(app_name: str) -> Any:
    clerk = agent("clerk", call("look_up", city="Oslo"), call("ask_manager"), say("booked"))
    clerk.tools = [look_up, LongRunningFunctionTool(func=ask_manager)]
    clerk.before_agent_callback = greet
    clerk.after_agent_callback = bye
    writer = agent("writer", say("written"), before_agent_callback=bye)
    root = SequentialAgent(name="root", sub_agents=[clerk, writer], after_agent_callback=bye)
    return make_app(app_name, root, resumable=True, plugins=[Hooks(name="hooks")])


async def told(user: User) -> list[str]:
    [history] = await user.histories()
    rebuilt = fold_journal(salvage(history.events, goes_on=False))
    return [f"{event.author}: {event.text}" for event in rebuilt.events if event.text]


async def test_a_journal_is_rebuilt_with_what_callbacks_left(client: Client, app_name: str) -> None:
    async with serving(client, made(app_name)) as user:
        await user.create()
        waiting = await user.run("To Oslo")
        assert await told(user) == ["user: To Oslo"]
        await user.answered({waiting.pending[0].id: {"approved": True}})
        log = [line for line in await user.log() if ": " in line]
        assert log == LOG
        assert await told(user) == log
        [history] = await user.histories()
        real = await user.journal()
        rebuilt = fold_journal(salvage(history.events))
        assert rebuilt.state == real.state
        assert rebuilt.model_calls == real.model_calls
        check_each_beginning(history.events)


def check_each_beginning(events: Sequence[HistoryEvent]) -> None:
    """Check that wherever a history ends, no callback that came back is called again."""
    calls: dict[int, CallbackInput] = {}
    ran: list[tuple[str, str]] = []
    for end, event in enumerate(events, 1):
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == CALL_BACK:
            calls[event.event_id] = CallbackInput.model_validate_json(scheduled.input.payloads[0].data)
        call = calls.get(event.activity_task_completed_event_attributes.scheduled_event_id)
        if call is not None and call.which in ("before", "after"):
            ran.append((call.agent, call.which))
        entries = salvage(events[:end])
        assert [(entry.agent, entry.which) for entry in entries if isinstance(entry, CallbackRan)] == ran
    assert len(ran) == 4


@pytest.mark.parametrize("when", ["waiting", "ended"])
async def test_a_terminated_session_goes_on_without_calling_back_again(
    client: Client, app_name: str, when: str
) -> None:
    async with serving(client, made(app_name)) as user:
        await user.create()
        waiting = await user.run("To Oslo")
        if when == "ended":
            await user.answered({waiting.pending[0].id: {"approved": True}})
        await user.workflow.terminate()
        if when == "waiting":
            assert (await user.answered({waiting.pending[0].id: {"approved": True}})).status == "finished"
        assert [line for line in await user.log() if ": " in line] == LOG
        ran = [(e.agent, e.which) for e in (await user.journal()).entries if isinstance(e, CallbackRan)]
    assert ran == [("clerk", "before"), ("clerk", "after"), ("writer", "before"), ("root", "after")]


class Flow(BaseAgent):
    """Says something between its sub-agents, and how often its code has begun."""

    _begun: int = PrivateAttr(default=0)

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        self._begun += 1
        for number, sub_agent in enumerate(self.sub_agents):
            content = types.Content(role="model", parts=[types.Part(text=f"step {number}")])
            yield Event(author=self.name, content=content, actions=EventActions(state_delta={"step": number}))
            async for event in sub_agent.run_async(ctx):
                yield event


@pytest.mark.parametrize("end", ["every", "terminated"])
async def test_a_custom_agent_goes_on_from_a_journal_that_is_rebuilt(client: Client, app_name: str, end: str) -> None:
    clerk = agent("clerk", call("ask_manager"), say("booked"), tools=[LongRunningFunctionTool(func=ask_manager)])
    flow = Flow(name="flow", sub_agents=[agent("first", say("hi")), clerk, agent("last", say("bye"))])
    async with serving(client, make_app(app_name, flow, resumable=True)) as user:
        await user.create()
        (asked,) = (await user.run("go")).pending
        if end == "terminated":
            await user.workflow.terminate()
        await user.answered({asked.id: {"ok": True}})
        log = await user.log()
        histories = await user.histories()
    said = [line for line in log if "ask_manager" not in line]
    assert said == [
        "user: go",
        "flow: step 0",
        "first: hi",
        "flow: step 1",
        "clerk: booked",
        "flow: step 2",
        "last: bye",
    ]
    if end == "every":
        # Wherever its history ends, nothing stands in the journal twice, and each event in its place.
        (history,) = histories
        for length in range(5, len(history.events)):
            rebuilt = fold_journal(salvage(history.events[:length], goes_on=False))
            texts = [f"{event.author}: {event.text}" for event in rebuilt.events if event.text]
            assert texts == said[: len(texts)]
