"""Which callbacks run around agents that hand over control: those that google.adk itself runs."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from temporalio.client import Client

from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import serving

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated")]


def _noted(calls: list[str], name: str, *answers: list[types.Part], **options: Any) -> LlmAgent:
    """Return an agent whose callbacks note that they ran."""

    def before(callback_context: CallbackContext) -> None:
        calls.append(f"before {callback_context.agent_name}")

    def after(callback_context: CallbackContext) -> None:
        calls.append(f"after {callback_context.agent_name}")

    return agent(name, *answers, before_agent_callback=before, after_agent_callback=after, **options)


def _to(name: str) -> list[types.Part]:
    return call("transfer_to_agent", agent_name=name)


def once(calls: list[str]) -> BaseAgent:
    return _noted(calls, "desk", _to("counter"), sub_agents=[_noted(calls, "counter", say("Here."))])


def twice(calls: list[str]) -> BaseAgent:
    counter = _noted(calls, "counter", _to("clerk"), sub_agents=[_noted(calls, "clerk", say("Here."))])
    return _noted(calls, "desk", _to("counter"), sub_agents=[counter])


def back(calls: list[str]) -> BaseAgent:
    return _noted(calls, "desk", _to("counter"), say("Back."), sub_agents=[_noted(calls, "counter", _to("desk"))])


def to_a_sequence(calls: list[str]) -> BaseAgent:
    counter = _noted(calls, "counter", _to("clerk"), sub_agents=[_noted(calls, "clerk", say("Here."))])
    steps = SequentialAgent(name="steps", sub_agents=[counter, _noted(calls, "last", say("Last."))])
    return _noted(calls, "desk", _to("steps"), sub_agents=[steps])


def in_a_sequence(calls: list[str]) -> BaseAgent:
    return SequentialAgent(name="steps", sub_agents=[once(calls), _noted(calls, "last", say("Last."))])


def in_a_tool(calls: list[str]) -> BaseAgent:
    root = once(calls)
    assert isinstance(root, LlmAgent)
    return _noted(calls, "asker", call("desk", request="x"), say("Done."), tools=[AgentTool(root)])


def in_a_sequence_in_a_tool(calls: list[str]) -> BaseAgent:
    tool = AgentTool(in_a_sequence(calls))
    return _noted(calls, "asker", call("steps", request="x"), say("Done."), tools=[tool])


Build = Callable[[list[str]], BaseAgent]


async def _by_adk(root: BaseAgent, *, resumable: bool) -> None:
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    runner = InMemoryRunner(app=App(name="shop", root_agent=root, resumability_config=config))
    session = await runner.session_service.create_session(app_name="shop", user_id="u")
    async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=types.UserContent("go")):
        pass


@pytest.mark.parametrize("resumable", [False, True], ids=["", "resumable"])
@pytest.mark.parametrize(
    "build",
    [once, twice, back, to_a_sequence, in_a_sequence, in_a_tool, in_a_sequence_in_a_tool],
    ids=lambda build: build.__name__,
)
async def test_callbacks_run_around_agents_that_hand_over(
    client: Client, app_name: str, build: Build, resumable: bool
) -> None:
    """google.adk 2 runs none behind an agent that hands over, but within agents of other kinds."""
    by_adk, ran = list[str](), list[str]()
    await _by_adk(build(by_adk), resumable=resumable)
    async with serving(client, make_app(app_name, build(ran), resumable=resumable)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
    assert ran == by_adk
