"""Tools of google.adk's with what Perdure has beside it, and tools of either kind in agents of the other."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from google.adk.agents import LlmAgent as AdkLlmAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool as AdkFunctionTool
from google.adk.tools import LongRunningFunctionTool as AdkLongRunningTool
from google.adk.tools import ToolContext as AdkToolContext
from google.adk.tools import google_search
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.mcp_tool.mcp_session_manager import StdioConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from google.genai import types
from mcp import StdioServerParameters
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure import (
    AnswerWith,
    App,
    DefinitionError,
    FunctionTool,
    LlmAgent,
    LongRunningFunctionTool,
    ResumabilityConfig,
    ScriptedModel,
    durable,
)
from perdure.adk.compile import compile_adk_app
from perdure.agents.durable import durability_of
from perdure.compiler.compile import compile_app
from perdure.errors import CallAnswered
from perdure.plan.nodes import LlmNode, ToolPlan
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import serving

TWICE = RetryPolicy(maximum_attempts=3, initial_interval=timedelta(milliseconds=20))


class Shaky:
    """A function that raises at first."""

    def __init__(self, failures: int) -> None:
        self.failures, self.ran = failures, 0

    def tool(self) -> Any:
        def pay(amount: int) -> str:
            """Pay."""
            self.ran += 1
            if self.ran <= self.failures:
                raise ConnectionError("no line")
            return f"paid {amount}"

        return pay


def ask_manager() -> None:
    """Ask the manager."""


def planned(tool: Any) -> ToolPlan:
    node = compile_adk_app(make_app("shop", agent("clerk", tools=[tool]))).root
    assert isinstance(node, LlmNode)
    [plan] = node.tools
    return plan


@pytest.mark.server
@pytest.mark.parametrize("kind", ["function", "google.adk's tool", "Perdure's tool"])
async def test_a_tool_is_tried_again_where_it_says_so(client: Client, app_name: str, kind: str) -> None:
    shaky = Shaky(failures=2)
    function = shaky.tool()
    tool = {
        "function": lambda: durable(function, retry=TWICE),
        "google.adk's tool": lambda: durable(AdkFunctionTool(function), retry=TWICE),
        "Perdure's tool": lambda: durable(FunctionTool(function, retry=TWICE)),
    }[kind]()
    clerk = agent("clerk", call("pay", amount=3), say("done"), tools=[tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("pay")).status == "finished"
        [response] = [r for event in await user.events() for r in event.get_function_responses()]
    assert (shaky.ran, response.response) == (3, {"result": "paid 3"})


@pytest.mark.server
async def test_what_says_nothing_of_retries_runs_once_as_in_adk(client: Client, app_name: str) -> None:
    shaky = Shaky(failures=1)
    clerk = agent(
        "clerk", call("pay", amount=3), say("done"), tools=[durable(shaky.tool(), timeout=timedelta(minutes=1))]
    )
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("pay")).status == "failed"
    assert shaky.ran == 1


@pytest.mark.server
async def test_a_call_at_most_once_that_raised_is_in_doubt(client: Client, app_name: str) -> None:
    shaky = Shaky(failures=1)
    clerk = agent("clerk", call("pay", amount=3), say("done"), tools=[durable(shaky.tool(), at_most_once=True)])
    async with serving(client, make_app(app_name, clerk, resumable=True)) as user:
        await user.create()
        failed = await user.run("pay")
        assert failed.status == "failed"
        await user.resume(failed.id)
        await user.open("perdure_reconcile")
        [question] = (await user.invocation(failed.id)).pending
        assert question.name == "perdure_reconcile"
        done = await user.answered({question.id: {"happened": True, "result": {"result": "paid by hand"}}})
        assert done.status == "finished"
    assert shaky.ran == 1


@pytest.mark.server
async def test_an_answer_expires(client: Client, app_name: str) -> None:
    tool = durable(
        AdkLongRunningTool(func=ask_manager),
        expires_in=timedelta(seconds=1),
        on_expiry=AnswerWith({"approved": False}),
    )
    clerk = agent("clerk", call("ask_manager"), say("refused"), tools=[tool])
    async with serving(client, make_app(app_name, clerk, resumable=True)) as user:
        await user.create()
        waiting = await user.run("ask")
        assert waiting.pending[0].deadline is not None
        done = await user.settled(waiting.id)
        while done.status == "waiting":
            done = await user.settled(waiting.id)
        assert done.status == "finished"
        assert (await user.log())[-1] == "clerk: refused"


@pytest.mark.server
async def test_where_nothing_pauses_no_late_answer_counts_behind_the_deadlines(client: Client, app_name: str) -> None:
    tool = durable(
        AdkLongRunningTool(func=ask_manager),
        expires_in=timedelta(seconds=1),
        on_expiry=AnswerWith({"approved": False}),
    )
    clerk = agent("clerk", call("ask_manager"), say("refused"), say("what?"), tools=[tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        (asked,) = (await user.run("ask")).pending
        await user.logged("clerk: refused")
        with pytest.raises(CallAnswered):
            await user.answered({asked.id: {"approved": True}})
        assert (await user.log())[-1] == "clerk: refused"


@pytest.mark.server
async def test_the_model_is_told_of_a_failure(client: Client, app_name: str) -> None:
    shaky = Shaky(failures=9)
    tool = durable(shaky.tool(), on_failure="tell_model", retry=TWICE)
    clerk = agent("clerk", call("pay", amount=3), say("it failed"), tools=[tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("pay")).status == "finished"
        assert (await user.log())[-1] == "clerk: it failed"
    assert shaky.ran == 3


@pytest.mark.server
async def test_a_tool_runs_locally(client: Client, app_name: str) -> None:
    shaky = Shaky(failures=0)
    clerk = agent("clerk", call("pay", amount=3), say("done"), tools=[durable(shaky.tool(), local=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("pay")).status == "finished"
        scheduled = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for history in await user.histories()
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
    assert shaky.ran == 1
    assert "pay" not in scheduled


async def test_google_adk_itself_runs_it_as_any_tool() -> None:
    shaky = Shaky(failures=0)
    tools = [durable(shaky.tool(), at_most_once=True), durable(FunctionTool(Shaky.tool, at_most_once=True))]
    clerk = agent("clerk", call("pay", amount=3), say("done"), tools=tools)
    runner = InMemoryRunner(agent=clerk, app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="ann")
    message = types.Content(role="user", parts=[types.Part(text="pay")])
    texts = [
        part.text
        async for event in runner.run_async(user_id="ann", session_id=session.id, new_message=message)
        for part in (event.content.parts or [] if event.content else [])
    ]
    assert texts[-1] == "done"
    assert shaky.ran == 1


def test_the_tool_that_was_given_stays_as_it_was() -> None:
    function, tool = Shaky(0).tool(), AdkLongRunningTool(func=ask_manager)
    marked = durable(function, at_most_once=True), durable(tool, expires_in=timedelta(days=1))
    assert all(durability_of(one) is not None for one in marked)
    assert durability_of(function) is None
    assert durability_of(tool) is None
    assert (planned(function).at_most_once, planned(marked[0]).at_most_once) == (False, True)
    assert (planned(tool).expiry, planned(marked[1]).expiry is not None) == (None, True)


class Till:
    def pay(self, amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def __call__(self, amount: int) -> str:
        """Pay."""
        return self.pay(amount)


@pytest.mark.parametrize("kind", ["method", "partial", "object"])
def test_whatever_is_called_as_a_function_takes_it(kind: str) -> None:
    till = Till()
    tool = {"method": till.pay, "partial": partial(till.pay, 3), "object": till}[kind]
    marked = durable(tool, at_most_once=True)
    assert durability_of(marked) is not None
    assert durability_of(tool) is None
    assert durability_of(till.pay) is None
    assert marked(*([] if kind == "partial" else [3])) == "paid 3"


def holding(tool: Any) -> LlmAgent:
    return LlmAgent(name="clerk", tools=[tool])


REFUSED: dict[str, Any] = {
    "is a str": lambda: durable("pay"),
    "give it a function that calls that": lambda: durable(len),
    "of a toolset its tools": lambda: durable(
        McpToolset(connection_params=StdioConnectionParams(server_params=StdioServerParameters(command="true")))
    ),
    "neither at_most_once nor local": lambda: durable(ask_manager, at_most_once=True, expires_in=timedelta(days=1)),
    "one attempt": lambda: durable(ask_manager, at_most_once=True, retry=RetryPolicy(maximum_attempts=3)),
    "longer than nothing": lambda: durable(ask_manager, timeout=timedelta(0)),
    "'ask_manager' is not long-running": lambda: planned(durable(ask_manager, expires_in=timedelta(days=1))),
    "reconcile is for Perdure's own agents": lambda: durable(
        FunctionTool(ask_manager, at_most_once=True, reconcile=lambda: None)
    ),
    "itself, where it is made": lambda: durable(FunctionTool(ask_manager), at_most_once=True),
    "a toolset stands in google.adk's agents only": lambda: LlmAgent(
        name="clerk",
        tools=[
            McpToolset(connection_params=StdioConnectionParams(server_params=StdioServerParameters(command="true")))
        ],
    ),
    "runs an agent of google.adk's": lambda: holding(AgentTool(AdkLlmAgent(name="inner"))),
    "one of the model's provider": lambda: holding(google_search),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_go_together_is_refused(words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        REFUSED[words]()


class Scale(BaseTool):
    """A tool of google.adk's with code of its own."""

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description="Weigh.", parameters_json_schema={"type": "object"}
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: AdkToolContext) -> Any:
        tool_context.state["weighed"] = tool_context.state.get("weighed", 0) + args["kg"]
        return {"kg": args["kg"], "agent": tool_context.agent_name}


def transfer_money(amount: int, tool_context: AdkToolContext) -> str:
    """Transfer money."""
    tool_context.state["sent"] = amount
    return "sent"


def native(app_name: str, tool: Any, *script: dict[str, Any]) -> App:
    clerk = LlmAgent(name="clerk", model=ScriptedModel(script), tools=[tool])
    return App(name=app_name, root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))


@pytest.mark.server
async def test_a_tool_of_google_adks_runs_in_an_agent_of_perdures(client: Client, app_name: str) -> None:
    calls = {"calls": [{"name": "scale", "args": {"kg": 2}}]}
    app = native(app_name, Scale(name="scale", description="Weigh."), calls, calls, {"text": "weighed"})
    async with serving(client, app) as user:
        await user.create()
        assert (await user.run("weigh")).status == "finished"
        assert (await user.view()).state == {"weighed": 4}
        responses = [r.response for event in await user.events() for r in event.get_function_responses()]
    assert responses == [{"kg": 2, "agent": "clerk"}] * 2


@pytest.mark.server
async def test_it_asks_a_person_there(client: Client, app_name: str) -> None:
    tool = AdkFunctionTool(transfer_money, require_confirmation=True)
    script = {"calls": [{"name": "transfer_money", "args": {"amount": 5}}]}, {"text": "sent"}
    async with serving(client, native(app_name, tool, *script)) as user:
        await user.create()
        waiting = await user.run("send")
        assert (await user.view()).state == {}
        done = await user.answered({waiting.pending[0].id: {"confirmed": True}})
        assert done.status == "finished"
        assert (await user.view()).state == {"sent": 5}


@pytest.mark.server
async def test_it_waits_there_and_is_tried_again(client: Client, app_name: str) -> None:
    shaky = Shaky(failures=2)
    tool = durable(AdkLongRunningTool(func=shaky.tool()), retry=TWICE, expires_in=timedelta(days=1))
    script = {"calls": [{"name": "pay", "args": {"amount": 5}}]}, {"text": "paid"}
    async with serving(client, native(app_name, tool, *script)) as user:
        await user.create()
        [pending] = (await user.run("pay")).pending
        assert pending.deadline is not None
        assert (await user.answered({pending.id: {"ok": True}})).status == "finished"
    assert shaky.ran == 3


def test_what_durable_gave_a_function_holds_in_either_kind() -> None:
    tool = durable(ask_manager, at_most_once=True, on_failure="tell_model")
    plan = compile_app(native("shop", tool)).root
    assert isinstance(plan, LlmNode)
    for one in (plan.tools[0], planned(tool)):
        assert (one.name, one.at_most_once, one.on_failure) == ("ask_manager", True, "tell_model")


def test_a_long_running_tool_of_perdures_stays_one() -> None:
    made = durable(LongRunningFunctionTool(ask_manager, expires_in=timedelta(days=1)))
    plan = planned(made)
    assert isinstance(made, AdkLongRunningTool)
    assert (plan.kind, plan.expiry is not None) == ("long_running", True)
