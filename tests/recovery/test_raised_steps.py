"""Where steps raised, read from histories: the frames of the app's code are found, whatever failed and however."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from google.adk.agents import BaseAgent as AdkAgent
from google.adk.agents import LlmAgent as AdkLlmAgent
from google.adk.agents.readonly_context import ReadonlyContext as AdkContext
from google.adk.tools import LongRunningFunctionTool as AdkLongRunning
from google.adk.tools.base_tool import BaseTool
from temporalio.client import Client
from temporalio.common import RetryPolicy

from perdure.agents import App, FunctionTool, LlmAgent, ResumabilityConfig
from perdure.agents.context import ReadonlyContext
from perdure.agents.custom import BaseAgent
from perdure.client import Runner
from perdure.config import ConnectionConfig, connect
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import Key, KeyRing
from perdure.messages.session import Trial
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.recovery.raised_steps import with_raised_steps
from perdure.views.explanation import SessionExplanation
from tests.adk import support as adk
from tests.workflows.custom_agents import FallBack, attempts, faltering
from tests.workflows.support import ONCE, User, agent, calls, eventually, long_running, make_app, serving, text

pytestmark = pytest.mark.server

TABLE: dict[str, str] = {}


def look_up(city: str) -> str:
    """Look a city up."""
    try:
        return TABLE[city]
    except KeyError as error:
        raise LookupError(f"no flight to {city}") from error


def find(city: str) -> str:
    """Find a flight."""
    return look_up(city)


async def find_async(city: str) -> str:
    """Find a flight."""
    return look_up(city)


def instruct(context: ReadonlyContext) -> str:
    return look_up("Oslo")


class Broken(BaseLlm):
    """A provider that fails by its author's code."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        look_up("Oslo")
        yield LlmResponse()


def one_tool(fn: Callable[..., Any], **options: Any) -> BaseAgent:
    return agent("clerk", [calls(fn.__name__, city="Oslo"), text("done")], [FunctionTool(fn, **options)])


def adk_agent(tool: Callable[..., Any] | BaseTool, name: str = "find") -> AdkLlmAgent:
    return adk.agent("clerk", adk.call(name, city="Oslo"), tools=[tool])


def rest() -> str:
    """Rest."""
    return "rested"


def failing_callback(**_: object) -> None:
    look_up("Oslo")


NATIVE: dict[str, tuple[Callable[[], BaseAgent], str]] = {
    "tool": (lambda: one_tool(find, retry=ONCE), "find"),
    "async tool": (lambda: one_tool(find_async, retry=ONCE), "find_async"),
    "told to the model": (lambda: one_tool(find, retry=ONCE, on_failure="tell_model"), "find"),
    "local tool": (lambda: one_tool(find, retry=ONCE, local=True), "find"),
    "local tool, told": (lambda: one_tool(find, retry=ONCE, local=True, on_failure="tell_model"), "find"),
    "instruction": (
        lambda: LlmAgent(name="clerk", model=ScriptedModel([text("hi")]), instruction=instruct),
        "model",
    ),
    "model": (lambda: LlmAgent(name="clerk", model=Broken("broken")), "model"),
}


async def explained(user: User, client: Client) -> SessionExplanation:
    found = await user.runner.explain(**user.who)
    return await with_raised_steps(client, found)


def check_trace(told: SessionExplanation, step: str) -> None:
    [raised] = told.raised
    lines = raised.trace.splitlines()
    assert (raised.step, raised.next_attempt) == (step, None)
    assert lines[0] == "LookupError: no flight to Oslo"
    assert [line for line in lines if "in look_up" in line], raised.trace
    assert "caused by KeyError: 'Oslo'" in lines
    own = [line for line in lines if line.startswith("  File")]
    assert all(__file__ in line for line in own), raised.trace
    [invocation] = told.invocations
    [failure] = (*invocation.failures, *invocation.dealt_with)
    assert raised.is_of(invocation.id, failure)


@pytest.mark.parametrize("kind", NATIVE)
async def test_where_a_step_raised_is_found_in_the_history(client: Client, app_name: str, kind: str) -> None:
    make, step = NATIVE[kind]
    async with serving(client, make_app(app_name, make())) as user:
        await user.create()
        await user.run("hello")
        check_trace(await explained(user, client), step)


def adk_instruction(context: AdkContext) -> str:
    return look_up("Oslo")


class AdkCareless(AdkAgent):
    """Fails by its own code."""

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Any, None]:
        look_up("Oslo")
        yield


ADK: dict[str, tuple[Callable[[], AdkAgent], str]] = {
    "tool": (lambda: adk_agent(find), "find"),
    "async tool": (lambda: adk_agent(find_async, "find_async"), "find_async"),
    "long-running tool": (lambda: adk_agent(AdkLongRunning(find)), "find"),
    "callback": (lambda: adk.agent("clerk", before_agent_callback=failing_callback), "before_agent_callback"),
    "instruction": (lambda: adk.agent("clerk", instruction=adk_instruction), "model"),
    "custom agent": (lambda: AdkCareless(name="clerk"), "_run_async_impl"),
}


@pytest.mark.parametrize("kind", ADK)
async def test_so_it_is_of_google_adks_agents(client: Client, app_name: str, kind: str) -> None:
    make, step = ADK[kind]
    async with serving(client, adk.make_app(app_name, make(), resumable=True)) as user:
        await user.create()
        await user.run("hello")
        check_trace(await explained(user, client), step)


async def test_what_is_tried_again_is_told_with_its_last_failure(client: Client, app_name: str) -> None:
    always = RetryPolicy(initial_interval=timedelta(minutes=5), maximum_attempts=9)
    async with serving(client, make_app(app_name, one_tool(find, retry=always))) as user:
        await user.create()
        invocation_id = await user.send("hello")

        async def is_told() -> bool:
            return bool((await explained(user, client)).raised)

        await eventually(is_told)
        [raised] = (await explained(user, client)).raised
        assert (raised.invocation_id, raised.agent, raised.step) == (invocation_id, "clerk", "find")
        assert raised.next_attempt == 2
        assert raised.trace.startswith("LookupError: no flight to Oslo\n")
        await user.stop(invocation_id)


async def test_a_failure_of_an_earlier_run_is_found_behind_a_change_of_runs(client: Client, app_name: str) -> None:
    script = [calls("find", city="Oslo"), *(calls("rest") for _ in range(3)), text("done")]
    clerk = agent("clerk", script, [FunctionTool(find, retry=ONCE, on_failure="tell_model"), rest])
    async with serving(client, make_app(app_name, clerk)) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=1))
        await user.create()
        await user.run("hello")
        assert len(await user.histories()) > 3
        check_trace(await explained(user, client), "find")


async def test_what_a_custom_agent_caught_is_told_too(client: Client, app_name: str) -> None:
    """Its tries are two: a function, and an agent whose tool fails."""
    attempts.clear()
    clerk = agent("clerk", [calls("find", city="Oslo")], [FunctionTool(find, retry=ONCE)])
    app = App(
        name=app_name,
        root_agent=FallBack(name="trying", sub_agents=[clerk, agent("other", [calls("ask")], [long_running("ask")])]),
        activities=[faltering],
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    async with serving(client, app) as user:
        await user.create()
        await user.run("hello")
        told = await explained(user, client)
        traces = {raised.step: raised.trace for raised in told.raised}
        assert traces.keys() == {"faltering", "find"}
        assert "in faltering" in traces["faltering"]
        assert "in look_up" in traces["find"]


async def test_encrypted_traces_are_told_to_who_has_the_keys(temporal_server: str, app_name: str) -> None:
    codec = EncryptionCodec(KeyRing((Key.new(),)))
    client = await connect(ConnectionConfig(address=temporal_server, payload_codec=codec))
    async with serving(client, make_app(app_name, one_tool(find, retry=ONCE))) as user:
        await user.create()
        await user.run("hello")
        history = str(await user.workflow.fetch_history())
        assert "look_up" not in history
        check_trace(await explained(user, client), "find")


async def test_where_nothing_failed_no_history_is_read(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("hi")]))) as user:
        await user.create()
        await user.run("hello")
        found = await user.runner.explain(**user.who)
        # A client that cannot be asked anything would fail.
        assert await with_raised_steps(cast(Client, object()), found) is found
