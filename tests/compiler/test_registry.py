"""Names in a plan find their code again."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from perdure.agents.custom import BaseAgent, InvocationContext, ReadonlyContext
from perdure.agents.definitions import App, LlmAgent
from perdure.agents.tools import FunctionTool
from perdure.compiler import registry
from perdure.compiler.registry import NotRegistered, register
from perdure.errors import DefinitionError
from perdure.journal.events import Event
from perdure.models.registry import LLMRegistry
from perdure.models.scripted import ScriptedModel
from perdure.plan.nodes import LlmNode


class Noting(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name)


def search(query: str) -> str:
    return query


def instruction(context: ReadonlyContext) -> str:
    return context.agent_name


def score(text: str) -> int:
    return len(text)


MODEL = ScriptedModel([])
TOOL = FunctionTool(search)


def make_app(name: str = "registry_app") -> App:
    leaf = LlmAgent(name="leaf", instruction=instruction, tools=[TOOL])
    root = LlmAgent(name="root", model=MODEL, tools=[search], sub_agents=[leaf, Noting(name="noting")])
    return App(name=name, root_agent=root, activities=[score])


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] -- a fixture
    monkeypatch.setattr(registry, "_registries", {})


@pytest.fixture
def scripted_name() -> str:
    name = "registry-test-model"
    LLMRegistry.register(name, lambda model: ScriptedModel([{"text": model}]))
    return name


def test_code_is_found_by_agent_and_name() -> None:
    app = make_app()
    found = register(app)
    assert found.app is app
    assert found.tool("leaf", "search") is TOOL
    assert found.tool("root", "search").fn is search
    assert found.instruction("leaf") is instruction
    assert found.custom_agent("noting") is app.root_agent.find_agent("noting")
    assert found.activity("score") is score


def test_what_is_missing_is_named() -> None:
    found = register(make_app())
    with pytest.raises(NotRegistered, match=r"app 'registry_app'.*agent 'root' has no tool 'book'"):
        found.tool("root", "book")
    with pytest.raises(NotRegistered, match="agent 'root' has no function for its instruction"):
        found.instruction("root")
    with pytest.raises(NotRegistered, match="no custom agent 'leaf'"):
        found.custom_agent("leaf")
    with pytest.raises(NotRegistered, match="no custom agent 'nobody'"):
        found.custom_agent("nobody")
    with pytest.raises(NotRegistered, match="no function 'search'"):
        found.activity("search")


def test_models_are_those_of_the_agents(scripted_name: str) -> None:
    found = register(make_app())
    root, leaf = found.plan.nodes["root"], found.plan.nodes["leaf"]
    assert isinstance(root, LlmNode)
    assert isinstance(leaf, LlmNode)
    assert found.model(root) is MODEL
    assert found.model(leaf) is MODEL
    # A plan from before the agent got its model object.
    older = root.model_copy(update={"model": scripted_name})
    assert found.model(older) is LLMRegistry.new_llm(scripted_name)
    assert found.model(older.model_copy(update={"name": "gone"})) is LLMRegistry.new_llm(scripted_name)


def test_an_app_is_registered_once_and_replaced_by_another() -> None:
    app = make_app()
    first = register(app)
    assert register(app) is first
    other = make_app()
    second = register(other)
    assert second is not first
    assert register(other) is second


def test_a_wrong_app_is_not_registered() -> None:
    with pytest.raises(DefinitionError, match="has no model"):
        register(App(name="wrong", root_agent=LlmAgent(name="a")))
