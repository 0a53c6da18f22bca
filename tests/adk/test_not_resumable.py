"""Apps that nothing pauses: under whose id an answer is worked on, what runs behind a question; by ADK's version."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import BaseAgent, LoopAgent, SequentialAgent
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from temporalio.client import Client

from perdure.adk import internals
from perdure.client import Runner
from perdure.errors import CallAnswered
from perdure.messages.session import Trial
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import User, serving

pytestmark = pytest.mark.server

TWO = internals.MAJOR >= 2


def ask_manager() -> dict[str, Any]:
    """Ask the manager."""
    return {"status": "pending"}


def pay(amount: int, tool_context: ToolContext) -> dict[str, Any]:
    """Pay."""
    tool_context.state["paid"] = amount
    return {"paid": amount}


@pytest.mark.parametrize("trial", [None, Trial(steps_per_run=1, reenter=True)], ids=["live", "a run for each step"])
async def test_an_answer_takes_its_turn(client: Client, app_name: str, trial: Trial | None) -> None:
    """Of ADK 2 under the id of the call's invocation, twice if it asks again; of ADK 1 each under its own."""
    clerk = agent("clerk", call("ask_manager"), say("I wait"), call("ask_manager"), say("Still"), say("Done"))
    clerk.tools = [LongRunningFunctionTool(func=ask_manager)]
    app = make_app(app_name, clerk)
    async with serving(client, app):
        user = User(client, app.name)
        user.runner = Runner(app.name, client, trial=trial)
        await user.create()
        first = await user.run("hi")
        assert first.status == "finished"
        second = await user.answered({first.pending[0].id: {"approved": True}})
        assert (second.status, second.id == first.id) == ("finished", TWO)
        third = await user.answered({second.pending[0].id: {"approved": True}})
        assert (third.status, third.id == first.id, third.pending) == ("finished", TWO, ())
        assert (await user.log())[-1] == "clerk: Done"


async def test_a_confirmed_tool_runs_in_its_answers_turn(client: Client, app_name: str) -> None:
    clerk = agent("clerk", call("pay", amount=7), call("pay", amount=8), say("paid"), tools=[])
    clerk.tools = [FunctionTool(pay, require_confirmation=True)]
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocations: list[str] = []
        asked = await user.run("pay twice")
        for amount in (7, 8):
            invocations.append(asked.id)
            assert [one.name for one in asked.pending] == ["adk_request_confirmation"]
            asked = await user.answered({asked.pending[0].id: {"confirmed": True}})
            assert (await user.view()).state["paid"] == amount
        assert (asked.status, asked.pending) == ("finished", ())
        assert (len({asked.id, *invocations}) == 1) is TWO


@pytest.mark.parametrize("kind", [SequentialAgent, LoopAgent])
@pytest.mark.parametrize("asks", ["itself", "underneath"])
async def test_what_stands_behind_a_question(
    client: Client, app_name: str, kind: type[SequentialAgent | LoopAgent], asks: str
) -> None:
    """ADK 2 ends the sequence or loop there, and those around it; ADK 1 goes on with the next agent."""
    clerk = agent("clerk", call("ask_manager"), say("I wait"))
    clerk.tools = [LongRunningFunctionTool(func=ask_manager)]
    first: BaseAgent = SequentialAgent(name="inner", sub_agents=[clerk]) if asks == "underneath" else clerk
    options: dict[str, Any] = {"max_iterations": 1} if kind is LoopAgent else {}
    root = kind(name="root", sub_agents=[first, agent("filer", say("filed"))], **options)
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("hi")).status == "finished"
        assert (await user.log())[-1] == ("clerk: I wait" if TWO else "filer: filed")


async def test_what_a_turn_kept_is_gone_in_its_answers_turn(client: Client, app_name: str) -> None:
    """ADK reads the session anew for each turn: `temp:` keys do not wait with an invocation."""

    def remember(tool_context: ToolContext) -> dict[str, Any]:
        """Remember."""
        tool_context.state["temp:seen"] = tool_context.state.get("temp:seen", 0) + 1
        return {"seen": tool_context.state["temp:seen"]}

    clerk = agent("clerk", call("remember"), call("remember"), call("wait"), call("remember"), say("done"))

    def wait() -> None:
        """Wait."""

    clerk.tools = [remember, LongRunningFunctionTool(func=wait)]
    async with serving(client, make_app(app_name, clerk, resumable=True)) as user:
        await user.create()
        waiting = await user.run("hi")
        await user.answered({waiting.pending[0].id: {"go": "on"}})
        events = await user.events()
    seen = [one.response for event in events for one in event.get_function_responses() if one.name == "remember"]
    assert seen == [{"seen": 1}, {"seen": 2}, {"seen": 1}]


async def test_progress_is_told_again_and_again(client: Client, app_name: str) -> None:
    """ADK's documents have clients answer a long-running call with what is done so far; each begins a turn."""
    clerk = agent("clerk", call("ask_manager"), say("I wait"), say("Half"), say("Done"))
    clerk.tools = [LongRunningFunctionTool(func=ask_manager)]
    async with serving(client, make_app(app_name, clerk)) as user:
        user.tells_progress = True
        await user.create()
        (asked,) = (await user.run("hi")).pending
        half, done = {"status": "half"}, {"status": "done"}
        await user.answered({asked.id: half})
        with pytest.raises(CallAnswered, match="answered already"):
            await user.answer({asked.id: half})
        await user.answered({asked.id: done})
        with pytest.raises(CallAnswered, match="answered already"):
            await user.answer({asked.id: done})
        assert (await user.log())[-3:] == ["clerk: Half", "user answers ask_manager", "clerk: Done"]


async def test_progress_is_told_while_its_agent_is_at_work(client: Client, app_name: str) -> None:
    clerk = agent("clerk", call("ask_manager"), say("I wait"), *(say(f"{n} of 5") for n in range(5)))
    clerk.tools = [LongRunningFunctionTool(func=ask_manager)]
    async with serving(client, make_app(app_name, clerk)) as user:
        user.tells_progress = True
        await user.create()
        (asked,) = (await user.run("hi")).pending
        sent = [await user.answer({asked.id: {"done": number}}) for number in range(5)]
        for one in sent:
            assert (await user.settled(one.id)).status == "finished"
        assert [line for line in await user.log() if " of 5" in line] == [
            f"clerk: {number} of 5" for number in range(5)
        ]


async def test_confirmations_that_are_answered_one_by_one_run_each_call_once(client: Client, app_name: str) -> None:
    paid: list[int] = []

    def pay_once(amount: int) -> dict[str, Any]:
        """Pay."""
        paid.append(amount)
        return {"paid": amount}

    both = [*call("pay_once", amount=1), *call("pay_once", amount=2)]
    clerk = agent("clerk", both, say("One."), say("Both."))
    clerk.tools = [FunctionTool(pay_once, require_confirmation=True)]
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first, second = (await user.run("pay")).pending
        await user.answered({first.id: {"confirmed": True}})
        assert paid == [1]
        await user.answered({second.id: {"confirmed": True}})
        assert paid == [1, 2]
        responses = [event.get_function_responses() for event in await user.events() if event.author == "clerk"]
    assert [[one.response for one in some] for some in responses if some][-2:] == [[{"paid": 1}], [{"paid": 2}]]
