"""Custom agents, Perdure's and google.adk's, that are gone from the code while a call underneath them waits."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest
from google.adk.agents import BaseAgent as AdkAgent
from google.adk.agents import SequentialAgent as AdkSequence
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event as AdkEvent
from google.adk.tools import LongRunningFunctionTool
from google.genai import types
from temporalio.client import Client

import perdure
from perdure.agents.custom import BaseAgent
from perdure.journal.events import Event
from tests.adk import support as adk
from tests.workflows import support as native
from tests.workflows.support import serving

pytestmark = pytest.mark.server

_SOON: dict[str, Any] = {"missing_code_attempts": 2, "missing_code_pause": timedelta(milliseconds=50)}
"""A worker that does not look for missing code for long."""


class Native(BaseAgent):
    """Runs its agents, then says so."""

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        for sub_agent in self.sub_agents:
            async for event in sub_agent.run_async(ctx):
                yield event
        yield Event(author=self.name, content=types.ModelContent("flow is done"))


class Adk(AdkAgent):
    """The same, of google.adk's."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[AdkEvent, None]:
        for sub_agent in self.sub_agents:
            async for event in sub_agent.run_async(ctx):
                yield event
        yield AdkEvent(author=self.name, invocation_id=ctx.invocation_id, content=types.ModelContent("flow is done"))


def ask() -> None:
    """Ask."""


def _native(app_name: str, flow: str | None) -> Any:
    asker = native.agent("asker", [native.calls("ask"), native.text("asked")], tools=[native.long_running("ask")])
    closer = native.agent("closer", [native.text("closed")] * 3)
    # Where the custom agent is gone, the agent underneath is still there, with its model.
    agents: list[BaseAgent] = [Native(name=flow, sub_agents=[asker]), closer] if flow else [asker, closer]
    return native.make_app(app_name, perdure.SequentialAgent(name="root", sub_agents=agents))


def _adk(app_name: str, flow: str | None) -> Any:
    # A process of its own: the first call was made before, where the code is back.
    answers = [adk.say("asked")] if flow in ("back", "renamed") else [adk.call("ask"), adk.say("asked")]
    asker = adk.agent("asker", *answers, tools=[LongRunningFunctionTool(func=ask)])
    closer = adk.agent("closer", *[adk.say("closed")] * 3)
    name = "flow" if flow == "back" else flow
    agents: list[AdkAgent] = [Adk(name=name, sub_agents=[asker]), closer] if name else [closer]
    return adk.make_app(app_name, AdkSequence(name="root", sub_agents=agents), resumable=True)


MAKES: dict[str, Callable[[str, str | None], Any]] = {"perdure": _native, "google.adk": _adk}


@pytest.mark.parametrize(("make", "now"), [("perdure", None), ("google.adk", None), ("google.adk", "renamed")])
async def test_it_is_missed_by_name_and_nothing_is_lost(
    client: Client, app_name: str, make: str, now: str | None
) -> None:
    version = MAKES[make]
    async with serving(client, version(app_name, "flow")) as user:
        await user.create()
        waiting = await user.run("go")
        (asked,) = waiting.pending
    async with serving(client, version(app_name, now), **_SOON) as user:
        done = await user.answered({asked.id: {"ok": True}})
        (failure,) = done.failures
        assert (done.status, done.resumable) == ("failed", True)
        assert "'flow'" in failure.cause, failure
        assert "deploy" in failure.cause, failure
        # The session takes other messages by the new code.
        following = await user.run("and now")
        assert [failure.agent for failure in following.failures] in ([], ["asker"]), "its script has no more"
    async with serving(client, version(app_name, "flow" if make == "perdure" else "back")) as user:
        resumed = await user.resumed(waiting.id)
        assert resumed.status == "finished", resumed.failures
        assert (await user.log(waiting.id))[-3:] == ["asker: asked", "flow: flow is done", "closer: closed"]


async def test_one_of_perdures_is_found_under_its_new_name(client: Client, app_name: str) -> None:
    async with serving(client, _native(app_name, "flow")) as user:
        await user.create()
        waiting = await user.run("go")
        (asked,) = waiting.pending
    async with serving(client, _native(app_name, "renamed"), **_SOON) as user:
        done = await user.answered({asked.id: {"ok": True}})
        assert done.status == "finished", done.failures
        assert "flow: flow is done" in await user.log(waiting.id)
