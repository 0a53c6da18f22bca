"""How agents as tools, and schemas of what agents are asked and answer, stand in a plan; and what is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel

from perdure.agents import AgentTool, App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig, SequentialAgent
from perdure.agents.expiry import AnswerWith
from perdure.compiler.compile import compile_app
from perdure.compiler.registry import Registry
from perdure.errors import DefinitionError
from perdure.plan.diff import describe_plan, diff_plans
from perdure.plan.nodes import SET_MODEL_RESPONSE, LlmNode, Plan

_HOUR = timedelta(hours=1)


class Person(BaseModel):
    name: str
    age: int


def llm(name: str, *tools: Any, **fields: Any) -> LlmAgent:
    return LlmAgent(name=name, model="gemini-2.5-flash", tools=list(tools), **fields)


def plan_of(root: LlmAgent | SequentialAgent, *, resumable: bool = True) -> Plan:
    return compile_app(App(name="app", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable)))


def root_of(plan: Plan) -> LlmNode:
    assert isinstance(plan.root, LlmNode)
    return plan.root


def test_the_agent_of_a_tool_stands_in_the_tools_plan() -> None:
    clerk = llm("clerk", input_schema=Person, description="Notes people.")
    plan = plan_of(llm("root", AgentTool(clerk, skip_summarization=True, on_failure="tell_model")))
    (tool,) = root_of(plan).tools
    assert (tool.name, tool.skip_summarization, tool.on_failure) == ("clerk", True, "tell_model")
    assert tool.declaration.description == "Notes people."
    assert tool.declaration.parameters_json_schema["required"] == ["name", "age"]  # pyright: ignore[reportOptionalSubscript] -- it is there
    assert [*plan.nodes] == ["root"]
    assert [node.name for node in plan.every_node] == ["root", "clerk"]
    scope = plan.scope("root", "clerk")
    assert scope is not None
    assert (scope.root.name, scope.resumable, scope.adk) == ("clerk", True, None)
    assert "    tool clerk (tells the model of failures, ends the turn)" in [*describe_plan(plan)]


def test_a_composite_is_asked_as_its_first_agent_and_answers_as_its_last() -> None:
    """As in ADK."""
    first, last = llm("first", input_schema=Person), llm("last", output_schema=list[Person])
    tool = AgentTool(SequentialAgent(name="both", sub_agents=[first, last]))
    assert tool.message({"name": "Ada", "age": "36"}) == '{"name":"Ada","age":36}'
    assert tool.output is not None
    assert tool.output.of_text('[{"name": "Ada", "age": 36}]') == [{"name": "Ada", "age": 36}]


@pytest.mark.parametrize(("args", "told"), [({"request": "a"}, "a"), ({"b": 1, "a": "é"}, '{"a": "é", "b": 1}')])
def test_without_a_schema_it_is_told_the_request(args: dict[str, Any], told: str) -> None:
    assert AgentTool(llm("clerk")).message(args) == told


def test_a_plan_holds_plain_data_and_equal_code_gives_equal_plans() -> None:
    def build() -> Plan:
        return plan_of(llm("root", AgentTool(llm("clerk", output_schema=Person)), output_schema=list[Person]))

    assert build().digest == build().digest
    plan = Plan.model_validate(json.loads(build().model_dump_json(by_alias=True)))
    assert plan.digest == build().digest
    assert root_of(plan).output_schema == build().model_dump()["root"]["output_schema"]
    (change,) = diff_plans(plan, plan_of(llm("root", AgentTool(llm("clerk")), output_schema=list[Person])))
    assert (change.agent, change.name, change.after) == ("clerk", "output_schema", None)


def test_a_plan_without_any_is_the_one_of_before() -> None:
    """What a run in flight is pinned to has the same digest."""
    assert not {"output_schema", "agent", "skip_summarization"} & {
        *json.loads(plan_of(llm("root")).root.model_dump_json())
    }


def test_answers_become_arguments() -> None:
    """The fields of an object; what is none, in one argument, as in ADK."""

    def declared(schema: Any) -> Any:
        tool = root_of(plan_of(llm("root", output_schema=schema))).tool(SET_MODEL_RESPONSE)
        assert tool is not None
        return tool.declaration.parameters_json_schema

    assert [*declared(Person)["properties"]] == ["name", "age"]
    people = declared(list[Person])
    assert (people["required"], [*people["$defs"]]) == (["items"], ["Person"])
    assert declared(dict[str, int])["required"] == ["response"]


def test_one_agent_may_be_the_tool_of_several_and_a_sub_agent_too() -> None:
    helper = llm("helper")
    root = llm("root", AgentTool(helper), sub_agents=[llm("other", AgentTool(helper)), helper])
    plan = plan_of(root)
    assert [*plan.nodes] == ["root", "other", "helper"]
    assert Registry(App(name="app", root_agent=root)).plan.scope("other", "helper") is not None


def test_deadlines_in_it_need_no_resumable_app() -> None:
    tool = LongRunningFunctionTool(ask, expires_in=_HOUR, on_expiry=AnswerWith("late"))
    assert plan_of(llm("root", AgentTool(llm("clerk", tool))), resumable=False).every_node


def own() -> LlmAgent:
    root = llm("root")
    root.tools = [AgentTool(llm("inner", AgentTool(root)))]
    return root


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (own, "agent 'root' would run within itself, at 'root/inner/root'"),
        (
            lambda: llm("root", AgentTool(llm("clerk", sub_agents=[llm("root")]))),
            "two agents are named 'root', at 'root' and 'root/clerk/root'",
        ),
        (lambda: llm("root", AgentTool(LlmAgent(name="clerk"))), "agent 'clerk' has no model"),
        (lambda: llm("root", llm("clerk")), r"give a function, a FunctionTool, or AgentTool\(agent\)"),
        (lambda: AgentTool("clerk"), "AgentTool takes an agent of Perdure's, not 'clerk'"),  # pyright: ignore[reportArgumentType] -- a mistake
        (lambda: llm("root", output_schema=object()), "output_schema is .*, which has no JSON schema"),
        (lambda: llm("root", output_schema={"a": object()}), "output_schema is .*, which has no JSON schema"),
        (
            lambda: llm(
                "root",
                output_schema=Person,
                generate_content_config=types.GenerateContentConfig(response_mime_type="text/plain"),
            ),
            "sets response_mime_type, which output_schema is for",
        ),
        (lambda: llm("root", set_model_response, output_schema=Person), "'set_model_response' is reserved"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        plan_of(make())


def set_model_response() -> None:
    """Be in the way."""


def ask() -> None:
    """Ask."""
