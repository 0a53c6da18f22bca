"""Names of tools: what every provider takes, and what means nothing else in a log."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from perdure.agents.definitions import App, LlmAgent
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, exit_loop, transfer_to_agent
from perdure.compiler.compile import compile_app
from perdure.errors import DefinitionError
from perdure.models.scripted import ScriptedModel
from perdure.plan.nodes import LlmNode


def compiled(*tools: Any) -> LlmNode:
    root = LlmAgent(name="root", model=ScriptedModel([]), tools=list(tools))
    node = compile_app(App(name="names", root_agent=root)).root
    assert isinstance(node, LlmNode)
    return node


def named(name: str) -> Callable[..., Any]:
    def function() -> None:
        """Do it."""

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    "name",
    [
        *("a", "_", "search_flights", "__init__", "A1", "get-price", "v1.search", "x" * 64, "transfer", "adk"),
        *("adk_request", "exit_loop", "adk_framework_2", "perdure_prices", "my_adk_request_input"),
    ],
)
def test_a_name_that_providers_take_is_a_tools_name(name: str) -> None:
    """ADK's own examples define `exit_loop` themselves."""
    assert [tool.name for tool in compiled(named(name)).tools] == [name]
    assert compiled(LongRunningFunctionTool(named(name))).tools[0].declaration.name == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("<lambda>", "a lambda has no name; define the function with def"),
        ("größe", "it holds 'ö'; use ASCII letters"),
        ("查询", "it holds '查'"),
        ("get price", "it holds ' '"),
        ("a:b", "it holds ':'"),
        ("a/b", "it holds '/'"),
        ("a\n", r"it holds '\\n'"),
        ("1st", "it starts with '1'"),
        ("-a", "it starts with '-'"),
        ("x" * 65, "it has 65 characters, and 64 are the most"),
        ("x" * 100_000, "it has 100000 characters"),
    ],
)
def test_a_name_that_no_provider_takes_is_refused_with_its_reason(name: str, reason: str) -> None:
    with pytest.raises(
        DefinitionError, match=rf"^agent 'root': a tool is named .*which no model can call: {reason}"
    ) as e:
        compiled(named(name))
    assert len(str(e.value)) < 5000


@pytest.mark.parametrize(
    "name",
    [
        *("adk_request_confirmation", "adk_request_input", "adk_request_credential", "adk_request_", "adk_framework"),
        *("perdure_reconcile", "transfer_to_agent", "__temporal_activity"),
    ],
)
def test_a_name_that_means_something_else_is_reserved(name: str) -> None:
    """A log says by these names that a person is asked, or that another agent goes on."""
    with pytest.raises(DefinitionError, match=rf"^agent 'root': the tool name '{name}' is reserved"):
        compiled(named(name))


def test_the_built_in_tools_keep_their_names() -> None:
    assert [tool.kind for tool in compiled(exit_loop, transfer_to_agent).tools] == ["exit_loop", "transfer"]


def test_two_tools_of_one_name_are_refused_with_what_makes_them_so() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(query: str) -> Any:
            return function(query)

        return wrapper

    def kept(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(logged(function))

    a, b = named("a"), named("b")
    with pytest.raises(DefinitionError, match=r"agent 'root' has two tools named 'wrapper'; .*functools\.wraps"):
        compiled(logged(a), logged(b))
    with pytest.raises(DefinitionError, match="agent 'root' has two tools named 'a'"):
        compiled(a, FunctionTool(a))
    assert [tool.name for tool in compiled(kept(a), kept(b)).tools] == ["a", "b"]
