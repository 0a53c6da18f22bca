"""Deployments: an invocation runs on under the plan that it is pinned to, whatever became of its agents meanwhile."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App, ResumabilityConfig, SequentialAgent
from perdure.agents.custom import BaseAgent, ReadonlyContext
from perdure.agents.tools import FunctionTool
from perdure.config import ConnectionConfig, connect
from perdure.models.base import LlmRequest
from perdure.models.registry import LLMRegistry
from perdure.models.scripted import ScriptedModel
from tests.workflows import custom_agents
from tests.workflows.custom_agents import Broker, quote, slow_quote
from tests.workflows.support import (
    Counted,
    Gate,
    GatedModel,
    User,
    agent,
    calls,
    check_log,
    long_running,
    make_app,
    serving,
    text,
)

pytestmark = pytest.mark.server

SOON: dict[str, Any] = {"missing_code_attempts": 2, "missing_code_pause": timedelta(milliseconds=50)}
"""A worker that does not look for missing code for long."""

ASK = [calls("ask"), text("asked"), text("again")]
MOMENTS = pytest.mark.parametrize("moment", ["waiting", "tool at work"])


def asker(name: str = "asker", tools: Sequence[FunctionTool] = (), **fields: Any) -> BaseAgent:
    return agent(name, fields.pop("script", ASK), tools=[long_running("ask"), *tools], **fields)


async def go_on(user: User, invocation_id: str) -> str:
    """Answer what an invocation waits for and return how it settles."""
    [call_id] = (await user.pending(invocation_id)).values()
    return (await user.answered({call_id: {}})).status


def config(request: LlmRequest) -> dict[str, Any]:
    return request.config.model_dump(exclude_none=True)


def instructions(model: GatedModel) -> list[str]:
    return [str(config(request)["system_instruction"]).splitlines()[0] for request in model.requests]


def declared(request: LlmRequest) -> list[str]:
    """Return the names of the tools that a model was told of."""
    return [tool["name"] for tools in config(request).get("tools", []) for tool in tools["function_declarations"]]


@MOMENTS
async def test_an_instruction_changes(client: Client, app_name: str, moment: str) -> None:
    """Every model call of the pinned invocation has the old instruction, and the next invocation the new one."""
    gate = Gate()
    step = "ask" if moment == "waiting" else "work"
    model = GatedModel([calls(step), text("done"), text("done again")])

    def version(words: str) -> App:
        tools = [long_running("ask"), FunctionTool(gate.tool("work"))]
        return make_app(app_name, agent("clerk", model, tools, instruction=words))

    async with serving(client, version("Be old.")) as user:
        await user.create()
        invocation = await user.send("go")
        if moment == "waiting":
            await user.open("ask")
        else:
            await gate.reached()
    gate.open()
    async with serving(client, version("Be new.")) as user:
        settled = await user.settled(invocation)
        status = settled.status if moment == "tool at work" else await go_on(user, invocation)
        assert status == "finished"
        assert instructions(model) == ["Be old.", "Be old."]
        assert (await user.run("once more")).status == "finished"
        assert instructions(model)[2] == "Be new."


async def test_an_agent_is_added(client: Client, app_name: str) -> None:
    """The pinned invocation does not know it; the next one can hand over to it."""
    transfer = calls("transfer_to_agent", agent_name="extra")
    script = [calls("ask"), transfer, text("no such agent"), transfer]
    extra = agent("extra", [text("here I am")])

    def version(*sub_agents: BaseAgent) -> App:
        return make_app(app_name, asker("front", script=script, sub_agents=list(sub_agents)))

    async with serving(client, version()) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, version(extra)) as user:
        assert await go_on(user, waiting.id) == "finished"
        assert (await user.log(waiting.id))[-1] == "front: no such agent"
        following = await user.run("and now")
        assert (await user.log(following.id))[-1] == "extra: here I am"


@pytest.mark.parametrize("model", ["by name", "own object"])
async def test_an_agent_is_removed(client: Client, app_name: str, model: str) -> None:
    """Its turn comes all the same. A model that only the removed agent had fails its step until it is back."""
    name = f"upgrade-{uuid.uuid4().hex}"
    if model == "by name":
        LLMRegistry.register(name, lambda name: ScriptedModel([text("still here")], model=name))

    def version(*, removed: bool) -> App:
        # The call that failed counts, so the next one takes the second step.
        second = agent("second", ScriptedModel([text("first attempt"), text("still here")], model=name))
        third = agent("third", [text("third"), text("third")])
        agents = [asker("first"), third] if removed else [asker("first"), second, third]
        return make_app(app_name, SequentialAgent(name="steps", sub_agents=agents))

    async with serving(client, version(removed=False)) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, version(removed=True), **SOON) as user:
        status = await go_on(user, waiting.id)
        if model == "by name":
            assert status == "finished"
            following = await user.run("and now")
            assert (await user.log(following.id))[1:] == ["first: again", "third: third"]
        else:
            [failure] = (await user.invocation(waiting.id)).failures
            assert (status, failure.agent, failure.step) == ("failed", "second", "model")
            assert f"there is no agent 'second', whose model is {name!r}; deploy" in failure.cause
    if model == "own object":
        async with serving(client, version(removed=False)) as user:
            assert (await user.resumed(waiting.id)).status == "finished"
    async with serving(client, version(removed=False)) as user:
        assert (await user.log(waiting.id))[-3:] == ["first: asked", "second: still here", "third: third"]


async def test_a_removed_agents_own_instruction_function_is_missed(client: Client, app_name: str) -> None:
    """Its text stands in no plan: the step fails clearly, and runs on once the function is back."""

    def instruct(context: ReadonlyContext) -> str:
        return f"Be {context.agent_name}."

    def version(*, removed: bool) -> App:
        second = agent(
            "second", ScriptedModel([text("first attempt"), text("told")], model="told"), instruction=instruct
        )
        agents = [asker("first"), *([] if removed else [second])]
        return make_app(app_name, SequentialAgent(name="steps", sub_agents=agents))

    async with serving(client, version(removed=False)) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, version(removed=True), **SOON) as user:
        assert await go_on(user, waiting.id) == "failed"
        [failure] = (await user.invocation(waiting.id)).failures
        assert "there is no agent 'second'" in failure.cause
    async with serving(client, version(removed=False)) as user:
        assert (await user.resumed(waiting.id)).status == "finished"
        assert (await user.log(waiting.id))[-1] == "second: told"


@MOMENTS
async def test_an_agent_is_renamed(client: Client, app_name: str, moment: str) -> None:
    """Its tool and model are found under the new name; the log shows the name that the invocation began with."""
    gate, work = Gate(), Counted("work")
    script = [calls("ask" if moment == "waiting" else "wait"), calls("work"), text("done"), text("done")]
    model = GatedModel(script)

    def version(name: str) -> App:
        return make_app(app_name, agent(name, model, [long_running("ask"), work.fn, gate.tool("wait")]))

    async with serving(client, version("clerk")) as user:
        await user.create()
        invocation = await user.send("go")
        await (user.open("ask") if moment == "waiting" else gate.reached())
    gate.open()
    async with serving(client, version("scribe")) as user:
        settled = await user.settled(invocation)
        status = settled.status if moment == "tool at work" else await go_on(user, invocation)
        assert status == "finished"
        assert (await user.log(invocation))[-3:] == ["clerk calls work", "clerk got work", "clerk: done"]
        assert len(work.keys) == 1
        following = await user.run("and now")
        assert following.agent == "scribe"


async def test_a_tool_is_removed(client: Client, app_name: str) -> None:
    """The call fails with a clear error; once the tool is back, a resume runs it. The next invocation has none."""
    work = Counted("work")
    model = GatedModel([calls("ask"), calls("work"), text("done"), text("no tools")])

    def version(*tools: Any) -> App:
        return make_app(app_name, agent("clerk", model, [long_running("ask"), *tools]))

    async with serving(client, version(work.once)) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, version(), **SOON) as user:
        assert await go_on(user, waiting.id) == "failed"
        failed = await user.invocation(waiting.id)
        [failure] = failed.failures
        assert (failure.step, failed.resumable) == ("work", True)
        assert failure.cause.endswith("agent 'clerk' has no tool 'work'; deploy the code that has it")
    async with serving(client, version(work.once)) as user:
        assert (await user.resumed(waiting.id)).status == "finished"
        assert (await user.log(waiting.id))[-2:] == ["clerk got work", "clerk: done"]
    async with serving(client, version()) as user:
        assert (await user.run("and now")).status == "finished"
    assert len(work.keys) == 1
    known = [declared(request) for request in model.requests]
    assert known == [["ask", "work"]] * 3 + [["ask"]]


@pytest.mark.parametrize("local", [False, True])
async def test_a_tool_is_found_at_another_worker(
    client: Client, temporal_server: str, app_name: str, local: bool
) -> None:
    def pay(amount: int) -> int:
        return amount

    def version(*tools: FunctionTool) -> App:
        script = [calls("pick"), calls("pay", amount=5), text("paid")]
        return make_app(app_name, agent("clerk", script, [long_running("pick"), *tools]))

    whole = version(FunctionTool(pay, local=local))
    patient: dict[str, Any] = {"missing_code_attempts": 30, "missing_code_pause": timedelta(milliseconds=100)}
    async with serving(client, whole) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, version(), **patient) as user:
        await user.answer({waiting.pending[0].id: "this"})
        other = await connect(ConnectionConfig(address=temporal_server, namespace="default", tls=False))
        # The session stays with the first worker, which is quicker than the second can be.
        async with serving(other, whole, **patient):
            assert (await user.settled(waiting.id)).status == "finished"


async def test_the_order_of_sub_agents_changes(client: Client, app_name: str) -> None:
    """The pinned invocation keeps the old order, the next one takes the new."""

    def version(*names: str) -> App:
        agents = [asker(name) if name == "b" else agent(name, [text(name), text(name)]) for name in names]
        return make_app(app_name, SequentialAgent(name="steps", sub_agents=agents))

    async with serving(client, version("a", "b", "c")) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, version("c", "b", "a")) as user:
        assert await go_on(user, waiting.id) == "finished"
        assert (await user.log(waiting.id))[-2:] == ["b: asked", "c: c"]
        following = await user.run("and now")
        assert (await user.log(following.id))[1:] == ["c: c", "b: again", "a: a"]


async def test_a_custom_agent_and_its_sub_agent_are_renamed(client: Client, app_name: str) -> None:
    """The custom agent is found by its class, its sub-agent by its place, and both keep their names to the end."""
    custom_agents.quotes.clear()
    model = GatedModel([calls("ask"), text("Take it."), text("Again.")])

    def version(name: str, below: str) -> App:
        decider = agent(below, model, tools=[long_running("ask")])
        config = ResumabilityConfig(is_resumable=True)
        root = Broker(name=name, sub_agents=[decider])
        return App(name=app_name, root_agent=root, resumability_config=config, activities=[quote, slow_quote])

    async with serving(client, version("broker", "decider")) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, version("dealer", "chooser")) as user:
        assert await go_on(user, waiting.id) == "finished"
        events = await user.events()
        check_log(events)
        assert {event.author for event in events} == {"user", "broker", "decider"}
        following = await user.run("and now")
        assert following.agent == "dealer"
        assert {event.author for event in (await user.events())[len(events) :]} == {"user", "dealer", "chooser"}
