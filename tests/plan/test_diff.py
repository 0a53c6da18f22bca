"""How two plans differ is told agent by agent, and a plan as a readable tree."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.agents import App, LlmAgent, LongRunningFunctionTool, LoopAgent, ResumabilityConfig, SequentialAgent
from perdure.agents.custom import BaseAgent, ReadonlyContext
from perdure.agents.tools import FunctionTool
from perdure.compiler.compile import compile_app
from perdure.models.scripted import ScriptedModel
from perdure.plan.diff import describe_change, describe_plan, diff_plans
from perdure.plan.nodes import Plan
from tests.workflows.custom_agents import Broker


def search(query: str) -> str:
    """Search the web."""
    return query


def instruct(context: ReadonlyContext) -> str:
    return context.agent_name


def book(flight: str) -> str:
    """Book a flight."""
    return flight


def agent(name: str, instruction: Any = "Be kind.", tools: list[Any] | None = None, **fields: Any) -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedModel([]), instruction=instruction, tools=tools or [], **fields)


def plan(*agents: BaseAgent, resumable: bool = True, **fields: Any) -> Plan:
    root = SequentialAgent(name="steps", sub_agents=list(agents))
    return compile_app(
        App(name="travel", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable), **fields)
    )


def told(before: Plan, after: Plan) -> list[str]:
    return [line for change in diff_plans(before, after) for line in describe_change(change)]


def test_equal_plans_do_not_differ() -> None:
    assert diff_plans(plan(agent("a", tools=[search])), plan(agent("a", tools=[search]))) == ()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([agent("a")], [agent("a"), agent("b")], ["+ agent b (under steps)"]),
        ([agent("a"), agent("b")], [agent("a")], ["- agent b (under steps)"]),
        ([agent("a"), agent("b")], [agent("b"), agent("a")], ['~ agent steps: order: ["a", "b"] → ["b", "a"]']),
        ([agent("a"), agent("b")], [agent("a", sub_agents=[agent("b")])], ["~ agent b: under steps → under a"]),
        ([agent("a", tools=[search])], [agent("a", tools=[book])], ["- agent a: tool search", "+ agent a: tool book"]),
        ([agent("a", output_key="x")], [agent("a")], ['~ agent a: output_key: "x" → (none)']),
    ],
)
def test_each_difference_is_told(before: list[BaseAgent], after: list[BaseAgent], expected: list[str]) -> None:
    assert told(plan(*before), plan(*after)) == expected


def test_an_instruction_is_compared_line_by_line() -> None:
    old, new = "Be kind.\nBe brief.\nBe right.", "Be kind.\nBe thorough.\nBe right."
    assert told(plan(agent("a", old)), plan(agent("a", new))) == [
        "~ agent a: instruction",
        "    --- run",
        "    +++ code",
        "    @@ -1,3 +1,3 @@",
        "     Be kind.",
        "    -Be brief.",
        "    +Be thorough.",
        "     Be right.",
    ]


def test_a_tools_options_and_what_the_model_is_told_of_it_are_compared() -> None:
    tool = FunctionTool(search, require_confirmation=True)
    assert told(plan(agent("a", tools=[search])), plan(agent("a", tools=[tool]))) == [
        '~ agent a: tool search.confirmation: "never" → "always"'
    ]


def test_the_apps_own_options_are_compared() -> None:
    assert told(plan(agent("a")), plan(agent("a"), resumable=False)) == ["~ app: resumable: true → false"]


def test_a_kind_that_changed_is_told() -> None:
    loop = LoopAgent(name="a", max_iterations=2)
    lines = told(plan(agent("a")), plan(loop))
    assert "~ agent a: disallow_transfer_to_peers: false → (none)" in lines
    assert lines[-1] == "~ agent a: max_iterations: (none) → 2"


def test_a_plan_is_a_tree() -> None:
    writer = agent("writer", "Write\nwell.", [search, LongRunningFunctionTool(book)], description="Writes.")
    asking = agent("asker", instruct, [FunctionTool(book, require_confirmation=True)])
    loop = LoopAgent(name="loop", sub_agents=[asking], max_iterations=3)
    found = plan(writer, loop, Broker(name="broker"), activities=[search])
    assert list(describe_plan(found)) == [
        f"travel (resumable), plan {found.digest[:12]}",
        "  activities: search",
        "  steps (sequential)",
        "    writer (llm, scripted): Writes.",
        "      instruction: Write well.",
        "      tool search",
        "      tool book (long-running)",
        "    loop (loop, at most 3 times)",
        "      asker (llm, scripted)",
        "        instruction: (a function)",
        "        tool book (asks for confirmation)",
        "    broker (custom, tests.workflows.custom_agents:Broker)",
    ]
