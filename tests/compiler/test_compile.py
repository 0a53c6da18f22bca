"""An app becomes a plan, or an error that names the agent and says what to do."""

from __future__ import annotations

import math
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

import pytest
from google.genai import types
from pydantic import Field

from perdure.agents.custom import BaseAgent, InvocationContext, ReadonlyContext
from perdure.agents.definitions import (
    App,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    ResumabilityConfig,
    SequentialAgent,
)
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, ToolContext, exit_loop, transfer_to_agent
from perdure.compiler.compile import compile_app
from perdure.errors import DefinitionError, DefinitionWarning
from perdure.journal.events import Event
from perdure.models.scripted import ScriptedModel
from perdure.plan.nodes import CustomNode, LlmNode, LoopNode, ParallelNode, Plan, SequentialNode

HALF = "\ud83d"
"""Of a pair of surrogates: no JSON has it."""


class Relay(BaseAgent):
    """Runs its sub-agents in order."""

    helper: LlmAgent | None = None
    helpers: dict[str, list[LlmAgent]] = {}  # noqa: RUF012 -- a pydantic field

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for agent in self.sub_agents:
            async for event in agent.run_async(ctx):
                yield event


class Plain(BaseAgent):
    """Brings nothing to run."""


class Coroutine(BaseAgent):
    def _run_async_impl(self, ctx: InvocationContext) -> Any:
        return None


class Odd(SequentialAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name)


def search(query: str) -> str:
    """Search."""
    return query


def described(query: Annotated[str, Field(description=HALF)]) -> str:
    """Search."""
    return query


def remember(query: str, tool_context: ToolContext) -> None:
    """Remember."""
    tool_context.state["user:query"] = query


def undeclarable(connection: Callable[[], int]) -> None: ...


async def fetch(url: str) -> str:
    return url


def instruction(context: ReadonlyContext) -> str:
    return f"Be {context.state['mood']}."


def llm(name: str, *sub_agents: BaseAgent, **fields: Any) -> LlmAgent:
    fields.setdefault("model", ScriptedModel([]))
    return LlmAgent(name=name, sub_agents=list(sub_agents), **fields)


def plan_of(root: BaseAgent, **fields: Any) -> Plan:
    return compile_app(App(name="app", root_agent=root, **fields))


def test_a_tree_becomes_nodes_of_plain_data() -> None:
    plan = plan_of(
        SequentialAgent(
            name="root",
            description="All of it.",
            sub_agents=[
                llm(
                    "writer",
                    model="gemini-2.5-flash",
                    instruction="Write on {topic}.",
                    tools=[search, LongRunningFunctionTool(fetch), exit_loop],
                    output_key="text",
                    include_contents="none",
                    generate_content_config=types.GenerateContentConfig(temperature=0.5, max_output_tokens=9),
                    disallow_transfer_to_parent=True,
                    disallow_transfer_to_peers=True,
                ),
                LoopAgent(name="loop", max_iterations=3, sub_agents=[llm("critic", instruction=instruction)]),
                ParallelAgent(name="fan", sub_agents=[Relay(name="relay")]),
            ],
        ),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    assert (plan.app, plan.resumable) == ("app", True)
    assert list(plan.nodes) == ["root", "writer", "loop", "critic", "fan", "relay"]
    root, writer, loop, critic, fan, relay = plan.nodes.values()
    assert isinstance(root, SequentialNode)
    assert root.description == "All of it."
    assert isinstance(writer, LlmNode)
    assert (writer.model, writer.instruction, writer.output_key) == ("gemini-2.5-flash", "Write on {topic}.", "text")
    assert (writer.include_contents, writer.disallow_transfer_to_parent, writer.disallow_transfer_to_peers) == (
        "none",
        True,
        True,
    )
    assert writer.generate_content_config == {"temperature": 0.5, "maxOutputTokens": 9}
    assert [(tool.name, tool.kind) for tool in writer.tools] == [
        ("search", "function"),
        ("fetch", "long_running"),
        ("exit_loop", "exit_loop"),
    ]
    assert isinstance(loop, LoopNode)
    assert loop.max_iterations == 3
    assert isinstance(critic, LlmNode)
    assert (critic.model, critic.instruction, critic.dynamic_instruction) == ("scripted", "", True)
    assert isinstance(fan, ParallelNode)
    assert isinstance(relay, CustomNode)
    assert relay.code == "tests.compiler.test_compile:Relay"


def test_equal_apps_have_equal_digests_and_plans_survive_json() -> None:
    def make() -> Plan:
        return plan_of(llm("root", llm("leaf", tools=[search, remember]), tools=[FunctionTool(fetch)]))

    plan = make()
    assert plan.digest == make().digest
    read = Plan.model_validate_json(plan.model_dump_json(by_alias=True, exclude_none=True))
    assert read == plan
    assert read.digest == plan.digest
    assert plan_of(llm("root", instruction="Other.")).digest != plan_of(llm("root")).digest


def test_composite_agents_may_be_empty() -> None:
    """As in ADK."""
    for cls in (SequentialAgent, ParallelAgent, LoopAgent):
        assert plan_of(cls(name="empty")).root.sub_agents == ()


def test_an_agent_without_a_model_has_that_of_the_llm_agent_above() -> None:
    plan = plan_of(
        LlmAgent(
            name="root",
            model="gemini-2.5-pro",
            sub_agents=[SequentialAgent(name="seq", sub_agents=[LlmAgent(name="leaf")])],
        )
    )
    leaf = plan.nodes["leaf"]
    assert isinstance(leaf, LlmNode)
    assert leaf.model == "gemini-2.5-pro"


def test_agents_added_later_are_linked_and_checked() -> None:
    root = SequentialAgent(name="root")
    leaf = LlmAgent(name="leaf", model="gemini-2.5-flash")
    root.sub_agents.append(leaf)
    assert list(plan_of(root).nodes) == ["root", "leaf"]
    assert leaf.parent_agent is root


def renamed(agent: LlmAgent, name: str) -> LlmAgent:
    agent.name = name
    return agent


def adopted() -> BaseAgent:
    leaf = llm("leaf")
    llm("root", leaf)
    return leaf


def circle() -> BaseAgent:
    inner = SequentialAgent(name="inner")
    outer = SequentialAgent(name="outer", sub_agents=[inner])
    inner.sub_agents.append(outer)
    return outer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: llm("root", SequentialAgent(name="s", sub_agents=[llm("root")])),
            r"named 'root', at 'root' and 'root/s",
        ),
        (lambda: llm("root", llm("a"), llm("a")), r"two agents are named 'a', at 'root/a' and 'root/a'"),
        (lambda: renamed(llm("root"), "not this"), r"'not this' is no Python identifier"),
        (adopted, r"root agent 'leaf' is a sub-agent of 'root'"),
        (circle, r"agent 'outer' has two parents|root agent 'outer' is a sub-agent of 'inner'"),
        (lambda: llm("root", model="gpt-9"), r"agent 'root': no provider knows the model 'gpt-9'"),
        (lambda: llm("root", model=""), r"agent 'root' has no model"),
        (lambda: llm("root", tools=[undeclarable]), r"agent 'root': tool 'undeclarable': parameter 'connection'"),
        (lambda: llm("root", tools=[search, FunctionTool(search)]), r"agent 'root' has two tools named 'search'"),
        (lambda: LoopAgent(name="loop", max_iterations=0), r"agent 'loop': max_iterations is 0"),
        (lambda: Plain(name="plain"), r"agent 'plain': Plain has no `async def _run_async_impl"),
        (lambda: Coroutine(name="c"), r"agent 'c': _run_async_impl of Coroutine is no async generator"),
        (lambda: Odd(name="odd"), r"agent 'odd': Odd overrides _run_async_impl of a built-in agent"),
        (
            lambda: llm("root", generate_content_config=types.GenerateContentConfig(system_instruction="x")),
            r"agent 'root': generate_content_config sets system_instruction; use the agent's own field 'instruction'",
        ),
        (
            lambda: llm("root", generate_content_config=types.GenerateContentConfig(response_schema=Event)),
            r"agent 'root': generate_content_config cannot be written as JSON",
        ),
        (lambda: llm("root", instruction=f"Hi {HALF}"), r"agent 'root': instruction has half of a character"),
        (lambda: llm("root", llm("leaf", output_key=HALF)), r"agent 'leaf': output_key has half of a character"),
        (lambda: llm("root", tools=[described]), r"agent 'root': tools\[0\]\.declaration\..*\.description has half of"),
        (
            lambda: llm("root", generate_content_config=types.GenerateContentConfig(temperature=math.nan)),
            r"agent 'root': generate_content_config.temperature has the number nan",
        ),
        (
            lambda: llm("root", generate_content_config=types.GenerateContentConfig(labels={"a": HALF})),
            r"agent 'root': generate_content_config.labels.a has half of a character",
        ),
        (lambda: Relay(name="relay", helper=llm("x")), r"'relay' holds agent 'x' in its field 'helper'"),
        (lambda: Relay(name="relay", helpers={"a": [llm("x")]}), r"'relay' holds agent 'x' in its field 'helpers'"),
    ],
)
def test_a_wrong_tree_is_refused(make: Callable[[], BaseAgent], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        plan_of(make())


def test_a_custom_agent_may_hold_any_agent_of_its_tree() -> None:
    helper = llm("helper")
    plan = plan_of(Relay(name="relay", helper=helper, sub_agents=[SequentialAgent(name="s", sub_agents=[helper])]))
    assert list(plan.nodes) == ["relay", "s", "helper"]


def test_the_built_in_transfer_may_be_listed() -> None:
    node = plan_of(llm("root", llm("leaf"), tools=[transfer_to_agent])).root
    assert isinstance(node, LlmNode)
    assert [tool.kind for tool in node.tools] == ["transfer"]


def loop_over(*sub_agents: BaseAgent, limit: int | None = None) -> BaseAgent:
    return SequentialAgent(
        name="root",
        sub_agents=[LoopAgent(name="loop", max_iterations=limit, sub_agents=list(sub_agents))],
    )


def test_a_loop_that_cannot_end_is_warned_of() -> None:
    with pytest.warns(DefinitionWarning, match="loop 'loop' never ends"):
        plan_of(loop_over(llm("a", tools=[search]), SequentialAgent(name="s", sub_agents=[llm("b")])))


@pytest.mark.parametrize(
    "make",
    [
        lambda: loop_over(llm("a"), limit=2),
        lambda: loop_over(SequentialAgent(name="s", sub_agents=[llm("a", tools=[exit_loop])])),
        lambda: loop_over(llm("a", tools=[remember])),
        lambda: loop_over(llm("a"), Relay(name="relay")),
    ],
)
def test_a_loop_that_can_end_is_not_warned_of(make: Callable[[], BaseAgent]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_of(make())


def writer(instruction: str, **more: Any) -> BaseAgent:
    return SequentialAgent(
        name="s", sub_agents=[llm("w", instruction=instruction, **more), llm("k", output_key="kept")]
    )


@pytest.mark.parametrize("key", ["city", "user:home", "app:prices", "temp:draft"])
def test_a_key_that_nobody_writes_is_warned_of_with_the_remedies(key: str) -> None:
    with pytest.warns(DefinitionWarning, match=rf"agent 'w': .* key '{key}'.*write {{{key}\?}}.*or \${{{key}}}"):
        plan_of(writer(f"Of {{{key}}}.", tools=[search]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: writer("{kept} {w_key?} {artifact.notes} {{city}} ${city} \\{city} {a b} {}"),
        lambda: writer("{city}", tools=[remember]),
        lambda: Relay(name="relay", sub_agents=[writer("{city}")]),
        lambda: writer("", output_key="city"),
    ],
)
def test_a_key_that_somebody_may_write_is_not_warned_of(make: Callable[[], BaseAgent]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_of(make())


@pytest.mark.parametrize(
    ("root", "shared"),
    [
        (lambda: llm("a", tools=[search, exit_loop, transfer_to_agent], instruction="{topic?}"), False),
        (lambda: llm("a", tools=[remember]), True),
        (lambda: llm("a", llm("b", tools=[remember])), True),
        (lambda: llm("a", instruction="Hello {user:name?}."), True),
        (lambda: llm("a", instruction="Hello { app:title? }."), True),
        (lambda: llm("a", instruction=instruction), True),
        (lambda: llm("a", output_key="user:answer"), True),
        (lambda: Relay(name="relay"), True),
    ],
)
def test_shared_state_is_looked_up_only_where_code_can_touch_it(root: Callable[[], BaseAgent], shared: bool) -> None:
    assert plan_of(root()).shared_state is shared


def test_activities_are_functions_of_a_module() -> None:
    assert plan_of(llm("a"), activities=[search, fetch]).app == "app"


@pytest.mark.parametrize(
    ("activities", "message"),
    [
        ([search, search], r"app 'app': two activities are named 'search'"),
        ([lambda: 1], r"app 'app': activity '<lambda>' is no function of a module"),
        ([test_activities_are_functions_of_a_module.__get__(1)], r"is no function of a module"),
        ([Relay], r"activity 'Relay' is no function of a module"),
    ],
)
def test_wrong_activities_are_refused(activities: list[Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        plan_of(llm("a"), activities=activities)
