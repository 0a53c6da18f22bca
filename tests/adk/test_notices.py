"""People are told of what waits in google.adk's apps, as in Perdure's own."""

# google.adk 2 calls its composite agents deprecated.
# pyright: reportDeprecated=false

from __future__ import annotations

import json

import pytest
from google.adk.agents import SequentialAgent
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.adk.tools.agent_tool import AgentTool
from temporalio.client import Client

from perdure.notices.settings import NoticeSettings
from tests.adk.support import agent, call, make_app, say
from tests.notices.webhooks import webhook
from tests.workflows.support import eventually, serving

pytestmark = pytest.mark.server


def ask(question: str) -> None:
    """Ask a person."""


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def test_a_question_an_approval_and_what_waits_in_an_agents_tool_are_told(client: Client, app_name: str) -> None:
    inner = agent("inner", call("ask", question="Why?"), say("Because."), tools=[LongRunningFunctionTool(ask)])
    desk = SequentialAgent(
        name="desk",
        sub_agents=[
            agent("clerk", call("ask", question="Who?"), say("Ann."), tools=[LongRunningFunctionTool(ask)]),
            agent("payer", call("pay", amount=5), say("Paid."), tools=[FunctionTool(pay, require_confirmation=True)]),
            agent("boss", call("inner", request="why"), say("Done."), tools=[AgentTool(inner)]),
        ],
    )
    with webhook() as told:
        settings = NoticeSettings.model_validate({"webhook": {"url": told.url}})
        async with serving(client, make_app(app_name, desk, resumable=True), notices=settings) as user:
            await user.create()
            invocation = await user.send("go")
            for number, (answer, asks, tool) in enumerate(
                [({"ok": True}, "answer", "ask"), ({"confirmed": True}, "confirmation", "pay"), ({}, "answer", "ask")]
            ):
                await eventually(lambda number=number: len(told.got) > number)
                data = json.loads(told.got[number][1])["data"]
                assert (data["asks"], data["tool"]) == (asks, tool)
                await user.settled(invocation)
                await user.answer({data["call"]: answer})
            assert (await user.settled(invocation)).status == "finished"
        assert len(told.got) == 3
