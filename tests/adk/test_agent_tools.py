"""Agents as tools: each of their steps is one of its own, and what waits in them waits outside."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.genai import types
from temporalio.client import Client

from perdure.agents.adk_app import AdkApp
from perdure.client import Runner
from perdure.messages.session import Trial
from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import User, serving

pytestmark = pytest.mark.server

TRIALS = {
    "live": None,
    "entered again at each pause": Trial(reenter=True),
    "a run for each step": Trial(steps_per_run=1, reenter=True),
}


class Ledger:
    """Tools that take note of each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = 0

    def wire(self, amount: int, tool_context: ToolContext) -> dict[str, Any]:
        """Wire money."""
        self.calls.append(f"wire {amount}")
        tool_context.state["wired"] = amount
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the bank is closed")
        return {"wired": amount}

    def rate(self) -> dict[str, Any]:
        """Look the rate up."""
        self.calls.append("rate")
        return {"rate": 2}


def ask_manager() -> None:
    """Ask the manager."""


def user_of(client: Client, app: AdkApp, trial: Trial | None) -> User:
    user = User(client, app.name)
    user.runner = Runner(app.name, client, trial=trial)
    return user


def assistant(inner: LlmAgent | SequentialAgent | ParallelAgent, *answers: Any, **options: Any) -> LlmAgent:
    return agent("assistant", *answers, tools=[AgentTool(inner)], **options)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(params=TRIALS)
def trial(request: pytest.FixtureRequest) -> Trial | None:
    return TRIALS[request.param]


async def activities(user: User) -> list[str]:
    """Return the names of the activities that the session has run, in order."""
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for history in await user.histories()
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def test_each_step_of_it_is_one_of_its_own(client: Client, app_name: str, ledger: Ledger) -> None:
    banker = agent("banker", call("rate"), call("wire", amount=7), say("done"), output_key="said")
    banker.tools = [ledger.rate, ledger.wire]
    root = assistant(banker, call("banker", request="wire 7"), say("all is well"))
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("wire 7")).status == "finished"
        steps = [name for name in await activities(user) if "_" not in name]
        assert steps == [
            "perdure:model",
            "banker",
            "perdure:model",
            "rate",
            "perdure:model",
            "wire",
            "perdure:model",
            "banker",
            "perdure:model",
        ]
        assert await user.log() == [
            "user: wire 7",
            "assistant calls banker",
            "assistant got banker",
            "assistant: all is well",
        ]
        assert (await user.view()).state == {"wired": 7, "said": "done"}
    assert ledger.calls == ["rate", "wire 7"]


@pytest.mark.parametrize("resumable", [True, False])
async def test_what_waits_in_it_waits_outside(
    client: Client, app_name: str, ledger: Ledger, trial: Trial | None, resumable: bool
) -> None:
    """A confirmation and a long-running call; whether or not the app is resumable, nothing is lost."""
    banker = agent("banker", call("wire", amount=7), call("ask_manager"), say("approved and wired"))
    banker.tools = [FunctionTool(ledger.wire, require_confirmation=True), LongRunningFunctionTool(func=ask_manager)]
    root = assistant(banker, call("banker", request="wire 7"), say("all is well"), say("what else?"))
    app = make_app(app_name, root, resumable=resumable)
    async with serving(client, app):
        user = user_of(client, app, trial)
        await user.create()
        asked = await user.run("wire 7")
        assert (asked.status, [one.name for one in asked.pending]) == ("waiting", ["adk_request_confirmation"])
        assert ledger.calls == []
        waiting = await user.answered({asked.pending[0].id: {"confirmed": True}})
        assert (waiting.id, waiting.status) == (asked.id, "waiting")
        assert [(one.name, one.agent) for one in waiting.pending] == [("ask_manager", "banker")]
        done = await user.answered({waiting.pending[0].id: {"approved": True}})
        assert (done.id, done.status) == (asked.id, "finished")
        assert (await user.log())[-2:] == ["assistant got banker", "assistant: all is well"]
        assert (await user.view()).state["wired"] == 7
        assert (await user.run("and now?")).status == "finished"
    assert ledger.calls == ["wire 7"]
    assert isinstance(root.model, Script)
    # What is asked and answered inside is no part of what the outer model is told.
    assert "ask_manager" not in "".join(request.model_dump_json() for request in root.model.requests)


async def test_another_turn_may_come_while_it_waits(client: Client, app_name: str, ledger: Ledger) -> None:
    banker = agent("banker", call("wire", amount=7), say("wired"))
    banker.tools = [FunctionTool(ledger.wire, require_confirmation=True)]
    root = assistant(banker, call("banker", request="wire 7"), say("welcome"), say("all is well"))
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        asked = await user.run("wire 7")
        assert (await user.run("thanks")).status == "finished"
        done = await user.answered({asked.pending[0].id: {"confirmed": True}})
        assert (done.id, done.status) == (asked.id, "finished")
    assert ledger.calls == ["wire 7"]


async def test_a_resume_goes_on_where_it_failed(
    client: Client, app_name: str, ledger: Ledger, trial: Trial | None
) -> None:
    ledger.fails = 1
    banker = agent("banker", call("rate"), call("wire", amount=7), say("done"))
    banker.tools = [ledger.rate, ledger.wire]
    root = assistant(banker, call("banker", request="wire 7"), say("all is well"))
    app = make_app(app_name, root, resumable=True)
    async with serving(client, app):
        user = user_of(client, app, trial)
        await user.create()
        failed = await user.run("wire 7")
        assert failed.status == "failed"
        assert failed.failures[0].step == "banker"
        assert "ConnectionError: the bank is closed" in failed.failures[0].cause
        assert (await user.resumed(failed.id)).status == "finished"
    assert ledger.calls == ["rate", "wire 7", "wire 7"]


async def test_callbacks_around_it_run_once(client: Client, app_name: str, trial: Trial | None) -> None:
    seen: list[str] = []

    def before_tool(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
        seen.append(f"before {args}")
        args["request"] = "politely"
        tool_context.state["before"] = len(seen)

    def after_tool(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> Any:
        seen.append(f"after {args} {tool_response}")
        return {"result": "changed"}

    def before_agent(callback_context: CallbackContext) -> None:
        seen.append(f"banker at {callback_context.state['before']}")

    banker = agent("banker", say("done"), before_agent_callback=before_agent)
    options = {"before_tool_callback": before_tool, "after_tool_callback": after_tool}
    root = assistant(banker, call("banker", request="wire 7"), say("all is well"), **options)
    app = make_app(app_name, root)
    async with serving(client, app):
        user = user_of(client, app, trial)
        await user.create()
        assert (await user.run("wire 7")).status == "finished"
        assert (await user.view()).state == {"before": 1}
        response = (await user.events())[2].get_function_responses()[0]
    assert response.response == {"result": "changed"}
    assert seen == ["before {'request': 'wire 7'}", "banker at 1", "after {'request': 'politely'} done"]
    assert isinstance(banker.model, Script)
    assert "politely" in banker.model.requests[0].model_dump_json()


async def test_an_error_callback_answers_for_its_agent(client: Client, app_name: str, ledger: Ledger) -> None:
    def instead(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> dict[str, Any]:
        return {"error": f"{type(error).__name__}: {error}"}

    ledger.fails = 1
    banker = agent("banker", call("wire", amount=7))
    banker.tools = [ledger.wire]
    root = assistant(banker, call("banker", request="wire 7"), say("sorry"), on_tool_error_callback=instead)
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("wire 7")).status == "finished"
        response = (await user.events())[2].get_function_responses()[0]
    assert response.response == {"error": "ConnectionError: the bank is closed"}


async def test_several_at_once_and_within_each_other(
    client: Client, app_name: str, ledger: Ledger, trial: Trial | None
) -> None:
    """Two agents as tools in one answer, of which one has a pipeline as a tool, where a confirmation waits in each."""
    clerk = agent("clerk", call("wire", amount=1), say("one"))
    checker = agent("checker", say("checked"))
    clerk.tools = [FunctionTool(ledger.wire, require_confirmation=True)]
    pipeline = SequentialAgent(name="pipeline", sub_agents=[clerk, checker])
    banker = agent("banker", call("pipeline", request="all"), say("two"), tools=[AgentTool(pipeline)])
    broker = agent("broker", call("wire", amount=3), say("three"))
    broker.tools = [FunctionTool(ledger.wire, require_confirmation=True)]
    root = agent("assistant", call("banker", "broker", request="go"), say("all is well"))
    root.tools = [AgentTool(banker), AgentTool(broker)]
    app = make_app(app_name, root, resumable=True)
    async with serving(client, app):
        user = user_of(client, app, trial)
        await user.create()
        asked = await user.run("go")
        assert sorted(one.agent for one in asked.pending) == ["broker", "clerk"]
        done = await user.answered({one.id: {"confirmed": True} for one in asked.pending})
        assert (done.id, done.status) == (asked.id, "finished")
        responses = [one for event in await user.events() for one in event.get_function_responses()]
    assert [(one.name, one.response) for one in responses][-2:] == [
        ("banker", {"result": "two"}),
        ("broker", {"result": "three"}),
    ]
    assert sorted(ledger.calls) == ["wire 1", "wire 3"]


@pytest.mark.filterwarnings("ignore:The `plugins` argument:DeprecationWarning")
async def test_a_tool_that_is_its_own_agent_is_one_step(client: Client, app_name: str) -> None:
    """There would be no end to a plan of it."""
    root = agent("assistant", call("assistant", request="you do it"), say("done"), say("all is well"))
    root.tools = [AgentTool(root)]
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("do it")).status == "finished"
        assert (await user.log())[-1] == "assistant: all is well"


async def test_the_ledger_tells_of_its_tools(client: Client, app_name: str, ledger: Ledger) -> None:
    banker = agent("banker", call("rate"), call("ask_manager"), say("done"))
    banker.tools = [ledger.rate, LongRunningFunctionTool(func=ask_manager)]
    root = assistant(banker, call("banker", request="wire 7"), say("all is well"))
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        asked = await user.run("wire 7")
        effects = await user.runner.effects(**user.who)
        assert [(one.agent, one.tool, one.outcome) for one in effects] == [
            ("assistant", "banker", "running"),
            ("banker", "rate", "done"),
            ("banker", "ask_manager", "waiting"),
        ]
        await user.answered({asked.pending[0].id: {"approved": True}})
        effects = await user.runner.effects(**user.who)
        assert [one.outcome for one in effects] == ["done", "done", "answered"]


@pytest.mark.parametrize("moved", ["imported", "terminated"])
async def test_it_goes_on_in_a_session_made_of_its_log(
    client: Client, app_name: str, ledger: Ledger, moved: str
) -> None:
    """What it did is not done again, and what waits in it is answered, where the workflow was lost or is a copy's."""
    banker = agent("banker", call("rate"), call("wire", amount=7), say("done"))
    banker.tools = [ledger.rate, FunctionTool(ledger.wire, require_confirmation=True)]
    root = assistant(banker, call("banker", request="wire 7"), say("all is well"))
    async with serving(client, make_app(app_name, root, resumable=True)) as user:
        await user.create()
        asked = await user.run("wire 7")
        if moved == "imported":
            lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
            await user.runner.import_session(lines, session_id="copy", allow_pending_calls=True)
            user = user.other(session_id="copy")
        else:
            await user.workflow.terminate("a test")
        done = await user.answered({asked.pending[0].id: {"confirmed": True}})
        if done.status == "stopped":
            done = await user.resumed(asked.id)
        assert (done.id, done.status) == (asked.id, "finished"), done
        assert (await user.view()).state["wired"] == 7
    assert ledger.calls == ["rate", "wire 7"]


async def test_two_agents_that_tools_run_may_name_their_calls_alike(client: Client, app_name: str) -> None:
    """And call the same: each takes effect under an idempotency key of its own."""
    keys: list[str] = []

    def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay."""
        keys.append(tool_context.function_call_id or "")
        return "paid"

    def payer(name: str) -> LlmAgent:
        made = types.FunctionCall(id="call_0", name="pay", args={"amount": 5})
        return agent(name, [types.Part(function_call=made)], say("paid"), tools=[pay])

    tools = [AgentTool(payer("one")), AgentTool(payer("two"))]
    root = agent("assistant", call("one", "two", request="pay"), say("done"), tools=tools)
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        effects = [effect for effect in await user.runner.effects(**user.who) if effect.tool == "pay"]
        assert len({effect.idempotency_key for effect in effects}) == len(effects) == 2
        assert sorted(keys) == sorted(effect.call_id for effect in effects)
