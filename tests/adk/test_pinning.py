"""An invocation keeps the tree, the tools and the plain values that it began with; code is today's."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools import LongRunningFunctionTool
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from temporalio.client import Client

from perdure.adk.pinning import PINNABLE
from perdure.adk.registry import AdkRegistry
from perdure.plan.diff import diff_plans
from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import serving


def ask_manager() -> None:
    """Ask the manager."""


def look_up(city: str) -> str:
    """Look the weather up."""
    return city


def weigh(parcel: str) -> str:
    """Weigh a parcel."""
    return parcel


def provider(context: ReadonlyContext) -> str:
    return "from a function"


def config(temperature: float, **options: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(temperature=temperature, **options)


FIELDS: dict[str, tuple[Any, Any]] = {
    "global_instruction": ("Be kind.", "Be brief."),
    "static_instruction": ("A", types.Content(role="user", parts=[types.Part(text="B")])),
    "generate_content_config": (config(0.1), config(0.9, top_k=3)),
    "include_contents": ("none", "default"),
    "output_key": ("first", "second"),
    "disallow_transfer_to_parent": (True, False),
    "disallow_transfer_to_peers": (True, False),
    "description": ("A clerk.", "A manager."),
    "instruction": ("Sell.", "Buy."),
    "model": ("gemini-2.5-flash", "gemini-2.5-pro"),
}


def registry(**options: Any) -> AdkRegistry:
    given: dict[str, Any] = {"model": "gemini-2.5-flash"} | options
    return AdkRegistry(make_app("shop", LlmAgent(name="clerk", **given)))


def test_every_field_that_can_be_pinned_is_tried() -> None:
    assert {*FIELDS} >= PINNABLE


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("way", ["changed", "set", "unset"])
def test_a_plain_value_is_that_of_the_plan(field: str, way: str) -> None:
    first, second = FIELDS[field]
    then = registry(**({} if way == "set" else {field: first}))
    now = registry(**({} if way == "unset" else {field: second}))
    was = getattr(then.llm_agent_named("clerk"), field)
    assert getattr(now.pinned(then.plan).llm_agent_named("clerk"), field) == was
    if was != getattr(now.llm_agent_named("clerk"), field):
        changed = {change.name or change.what for change in diff_plans(then.plan, now.plan)}
        assert field in changed


@pytest.mark.parametrize("field", ["global_instruction", "instruction"])
def test_code_is_todays_whatever_it_was(field: str) -> None:
    plain, code = registry(**{field: "plain"}), registry(**{field: provider})
    assert getattr(plain.pinned(code.plan).llm_agent_named("clerk"), field) == "plain"
    kept = getattr(code.pinned(plain.plan).llm_agent_named("clerk"), field)
    # A function that takes the place of an instruction's text was another agent's.
    assert kept == ("plain" if field == "global_instruction" else provider)


def test_keys_for_a_provider_are_todays_and_stand_in_no_plan() -> None:
    then = registry(generate_content_config=config(0.1, http_options=types.HttpOptions(headers={"key": "old secret"})))
    now = registry(generate_content_config=config(0.9, http_options=types.HttpOptions(headers={"key": "new secret"})))
    assert "secret" not in then.plan.model_dump_json()
    pinned = now.pinned(then.plan).llm_agent_named("clerk").generate_content_config
    assert pinned is not None
    assert pinned.http_options is not None
    assert (pinned.temperature, pinned.http_options.headers) == (0.1, {"key": "new secret"})


def test_unchanged_code_gives_its_own_objects() -> None:
    one = registry()
    assert one.pinned(one.plan) is one


def shop(*tools: Any, peers: tuple[str, ...] = (), **options: Any) -> AdkRegistry:
    root = agent("root", tools=list(tools), sub_agents=[agent(name) for name in peers], **options)
    return AdkRegistry(make_app("shop", root))


def tools_of(registry: AdkRegistry) -> list[Any]:
    return cast("list[Any]", registry.llm_agent_named("root").tools)  # pyright: ignore[reportUnknownMemberType]


def names_of(tools: list[Any]) -> list[str]:
    return [tool if isinstance(tool, str) else getattr(tool, "name", None) or tool.__name__ for tool in tools]


TOOLS: dict[str, tuple[Callable[[], AdkRegistry], Callable[[], AdkRegistry], list[str]]] = {
    "another order": (lambda: shop(look_up, weigh), lambda: shop(weigh, look_up), ["look_up", "weigh"]),
    "a further one": (lambda: shop(look_up), lambda: shop(weigh, look_up), ["look_up"]),
    "one that is gone": (lambda: shop(look_up, weigh), lambda: shop(weigh), ["weigh"]),
}


@pytest.mark.parametrize("case", TOOLS)
def test_tools_are_the_plans_in_its_order(case: str) -> None:
    then, now, names = TOOLS[case]
    assert names_of(tools_of(now().pinned(then().plan))) == names


def test_the_tree_is_the_plans() -> None:
    then, now = shop(peers=("a", "b")), shop(peers=("c", "b", "a"))
    pinned = now.pinned(then.plan)
    root = pinned.agent("root")
    assert [child.name for child in root.sub_agents] == ["a", "b"]
    assert all(child.parent_agent is root for child in root.sub_agents)
    assert pinned.agent("c").name == "c"  # whoever names it gets it


def test_the_agent_of_a_tool_is_the_plans_too() -> None:
    def made(instruction: str, description: str) -> AdkRegistry:
        inner = LlmAgent(name="inner", model="m", instruction=instruction, description=description)
        return shop(AgentTool(inner))

    then, now = made("Old.", "An old one."), made("New.", "A new one.")
    [tool] = tools_of(now.pinned(then.plan))
    assert isinstance(tool, AgentTool)
    assert tool.description == "An old one."
    scope = then.plan.scope("root", "inner")
    assert scope is not None
    assert now.within([("root", "inner")]).pinned(scope).llm_agent_named("inner").instruction == "Old."


@pytest.mark.server
async def test_a_waiting_invocation_keeps_its_values_over_a_deployment(client: Client, app_name: str) -> None:
    def made(script: Script, words: str, temperature: float) -> BaseAgent:
        clerk = LlmAgent(
            name="clerk",
            model=script,
            instruction=words,
            generate_content_config=config(temperature),
            tools=[LongRunningFunctionTool(func=ask_manager)],
            output_key=words,
        )
        return SequentialAgent(name="root", sub_agents=[clerk])

    before, after = Script(call("ask_manager")), Script(say("booked"), say("hello"))
    async with serving(client, make_app(app_name, made(before, "old", 0.1), resumable=True)) as user:
        await user.create()
        waiting = await user.run("To Oslo")
    async with serving(client, make_app(app_name, made(after, "new", 0.9), resumable=True)) as user:
        done = await user.answered({waiting.pending[0].id: {"approved": True}})
        assert done.status == "finished"
        assert (await user.run("And back")).status == "finished"
        assert {"old", "new"} <= (await user.view()).state.keys()
    asked = [json.loads(request.config.model_dump_json()) for request in after.requests]
    told = [(one["temperature"], one["system_instruction"].partition("\n")[0]) for one in asked]
    assert told == [(0.1, "old"), (0.9, "new")]
