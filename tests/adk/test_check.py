"""What `perdure check` says of google.adk's agents and tools, and that no field of theirs is passed over."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import App
from google.adk.code_executors.unsafe_local_code_executor import UnsafeLocalCodeExecutor
from google.adk.events.event import Event
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext, preload_memory
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.genai import Client, types

from perdure.adk.compile import compile_adk_app, look_at
from perdure.adk.internals import MAJOR
from perdure.adk.loading import as_adk_app
from perdure.adk.supported import HONOURED
from perdure.agents.durable import durable
from perdure.compiler.check.findings import Part
from perdure.compiler.loading import load_app
from perdure.errors import DefinitionError
from tests.adk.support import agent, make_app, say

_EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"


class Custom(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name)


class Foreign(BaseAgent):
    """Stands for an agent of google.adk's own that Perdure does not know."""

    __module__ = "google.adk.agents.foreign_agent"

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name)


class Overridden(LlmAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in super()._run_async_impl(ctx):
            yield event


class Wrapped(LlmAgent):
    async def run_async(self, parent_context: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in super().run_async(parent_context):
            yield event


class Named(LlmAgent):
    """A subclass with a field of its own, and nothing that runs."""

    department: str = "sales"


class OwnAgentTool(AgentTool):
    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return await super().run_async(args=args, tool_context=tool_context)


class OwnTool(BaseTool):
    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return "done"


def look_up(city: str) -> str:
    """Look the weather up."""
    return city


def in_a_runner(city: str) -> str:
    """Run an agent."""
    return str(InMemoryRunner(agent=LlmAgent(name="inner"), app_name="inner"))


def behind_a_function(city: str) -> str:
    """Run an agent, by another function."""
    return in_a_runner(city)


async def by_hand(city: str, tool_context: ToolContext) -> Any:
    """Run an agent's tool."""
    return await AgentTool(agent=LlmAgent(name="inner")).run_async(args={}, tool_context=tool_context)


def asks_genai(city: str) -> str:
    """Ask a model."""
    return str(Client().models.generate_content(model="m", contents=city))  # pyright: ignore[reportUnknownMemberType]


def parts_of(root: BaseAgent, **options: Any) -> dict[str, Part]:
    return {part.path: part for part in look_at(make_app("shop", root, **options)).parts}


def inner(**options: Any) -> LlmAgent:
    return agent("inner", say("hi"), **options)


TOOLS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "function": (lambda: look_up, "look_up", "durable"),
    "FunctionTool": (lambda: FunctionTool(look_up), "look_up", "durable"),
    "confirmed": (lambda: FunctionTool(look_up, require_confirmation=True), "look_up", "durable"),
    "long-running": (lambda: LongRunningFunctionTool(look_up), "look_up", "durable"),
    "BaseTool": (lambda: OwnTool(name="own", description="Own."), "own", "durable"),
    "AgentTool": (lambda: AgentTool(inner()), "inner", "durable"),
    "AgentTool of its own": (lambda: OwnAgentTool(inner()), "inner", "coarser"),
    "AgentTool of a custom agent": (lambda: AgentTool(Custom(name="inner")), "inner", "durable"),
    "AgentTool of an agent that is refused": (lambda: AgentTool(Foreign(name="inner")), "inner", "coarser"),
    "runner": (lambda: in_a_runner, "in_a_runner", "coarser"),
    "runner behind a function": (lambda: behind_a_function, "behind_a_function", "coarser"),
    "AgentTool by hand": (lambda: by_hand, "by_hand", "coarser"),
    "google-genai": (lambda: FunctionTool(asks_genai), "asks_genai", "coarser"),
}


@pytest.mark.parametrize("case", TOOLS)
def test_a_tool_is_as_durable_as_it_is_told(case: str) -> None:
    make, name, verdict = TOOLS[case]
    part = parts_of(agent("clerk", tools=[make()]))[f"clerk/{name}"]
    assert (part.verdict, part.tool) == (verdict, True)
    assert (part.reason is None) == (verdict == "durable")


def test_the_agent_of_a_tool_is_told_with_its_own_tools() -> None:
    parts = parts_of(agent("clerk", tools=[AgentTool(inner(tools=[look_up]))]))
    assert [*parts] == ["clerk", "clerk/inner", "clerk/inner/inner", "clerk/inner/inner/look_up"]
    assert {part.verdict for part in parts.values()} == {"durable"}


AGENTS: dict[str, tuple[Callable[[], BaseAgent], str]] = {
    "llm": (inner, "durable"),
    "subclass": (lambda: Named(name="inner", model="gemini-2.5-flash"), "durable"),
    "sequence": (lambda: SequentialAgent(name="inner"), "durable"),
    "loop": (lambda: LoopAgent(name="inner", max_iterations=2), "durable"),
    "parallel": (lambda: ParallelAgent(name="inner"), "durable"),
    "code executor": (lambda: inner(code_executor=UnsafeLocalCodeExecutor()), "coarser"),
    "custom": (lambda: Custom(name="inner"), "coarser"),
    "overridden": (lambda: Overridden(name="inner", model="gemini-2.5-flash"), "coarser"),
    "wrapped": (lambda: Wrapped(name="inner", model="gemini-2.5-flash"), "coarser"),
    "google.adk's own": (lambda: Foreign(name="inner"), "refused"),
}


@pytest.mark.parametrize("case", AGENTS)
def test_an_agent_is_as_durable_as_it_is_told(case: str) -> None:
    make, verdict = AGENTS[case]
    root = SequentialAgent(name="root", sub_agents=[make(), agent("last", say("bye"))])
    parts = parts_of(root)
    assert parts["root/inner"].verdict == verdict
    assert parts["root/last"].verdict == "durable"
    if verdict == "refused":
        assert parts["root/inner"].remedy
        with pytest.raises(DefinitionError, match="agent 'inner'"):
            compile_adk_app(make_app("shop", root))


def test_all_that_is_refused_is_told_at_once() -> None:
    root = SequentialAgent(name="root", sub_agents=[Foreign(name="a"), Foreign(name="b"), inner()])
    assert [name for name, part in parts_of(root).items() if part.verdict == "refused"] == ["root/a", "root/b"]


_OTHER: dict[type[Any], Any] = {bool: True, str: "other", int: 7, float: 7.5}


def _set(field: str, info: Any) -> Any:
    """Return a value that a field does not have by default."""
    for kind, value in _OTHER.items():
        if kind.__name__ in str(info.annotation) and value != info.default:
            return value
    return object()


CLASSES = (LlmAgent, SequentialAgent, LoopAgent, ParallelAgent)


@pytest.mark.parametrize(
    ("cls", "field"),
    [(cls, field) for cls in CLASSES for field in cls.model_fields if field not in HONOURED[cls]],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_field_that_means_nothing_here_is_refused_where_it_is_set(cls: type[BaseAgent], field: str) -> None:
    options: dict[str, Any] = {"model": "gemini-2.5-flash"} if cls is LlmAgent else {}
    value = "task" if field == "mode" else _set(field, cls.model_fields[field])
    one = cls(name="one", **options).model_copy(update={field: value})
    part = look_at(make_app("shop", SequentialAgent(name="root", sub_agents=[one]))).parts[1]
    assert (part.verdict, part.path) == ("refused", "root/one")
    assert field in (part.reason or "")


def test_fields_are_left_that_are_refused() -> None:
    """Or the table above would hold nothing."""
    assert MAJOR < 2 or {"retry_config", "timeout"} <= {*LlmAgent.model_fields} - HONOURED[LlmAgent]


def test_every_field_of_an_app_is_known() -> None:
    """One that a later version adds is refused where it is set; here it is to be decided what it means."""
    assert {*App.model_fields} == HONOURED[App]


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")
def test_a_graph_is_looked_at_node_by_node() -> None:
    from google.adk.workflow import JoinNode, Workflow, node

    helper = agent("helper", say("hi"))

    @node(rerun_on_resume=True)
    async def game(ctx: Any, node_input: str) -> str:
        return str(await ctx.run_node(helper, node_input=node_input))

    def weigh(what: str) -> str:
        """Weigh."""
        return what

    inside = Workflow(name="inside", edges=[("START", FunctionTool(weigh))])
    graph: Any = Workflow(
        name="graph", edges=[("START", (agent("clerk", say("hi")), game), JoinNode(name="join"), inside)]
    )
    app = as_adk_app(graph, "shop")
    assert app is not None
    seen = look_at(app)
    assert [(part.path, part.kind, part.verdict) for part in seen.parts] == [
        ("graph", "Workflow", "durable"),
        ("graph/game", "FunctionNode", "durable"),
        ("graph/weigh", "ToolNode", "durable"),
        ("graph/clerk", "LlmAgent", "durable"),
        ("graph/helper", "LlmAgent", "durable"),
    ]
    assert [code.name for code in seen.code if code.role == "node"] == [
        "node 'game' of graph 'graph'",
        "node 'weigh' of graph 'graph'",
    ]


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")
@pytest.mark.parametrize(
    ("mode", "below", "where", "why"),
    [
        ("chat", None, "graph/clerk", "mode='chat' of a node that has sub_agents"),
        ("single_turn", "task", "graph/clerk/below", "'clerk', which is a node of a graph, gives no tasks"),
    ],
)
def test_what_is_refused_of_a_graph_is_named(mode: str, below: str | None, where: str, why: str) -> None:
    from google.adk.workflow import Workflow

    clerk = agent("clerk", say("hi"), mode=mode, sub_agents=[agent("below", say("hi"), mode=below)])
    graph: Any = Workflow(name="graph", edges=[("START", clerk)])
    app = as_adk_app(graph, "shop")
    assert app is not None
    refused = look_at(app).refused
    assert refused is not None
    assert refused.path == where
    assert why in (refused.reason or "")
    with pytest.raises(DefinitionError, match=refused.name):
        compile_adk_app(app)


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")
def test_a_tool_that_runs_nodes_is_one_of_the_plan_with_the_agents_that_it_runs() -> None:
    from google.adk.workflow import Workflow

    helper, other = agent("helper", say("hi")), agent("other", say("hi"))

    def look_up(node_input: str) -> str:
        return node_input

    async def consult(tool_context: Any) -> str:
        """Consult."""
        return str(await tool_context.run_node(helper, "go"))

    search: Any = Workflow(name="search", description="Search.", input_schema=str, edges=[("START", look_up, other)])
    app = make_app("shop", agent("clerk", tools=[search, consult]))
    assert {part.path: part.verdict for part in look_at(app).parts} == {
        "clerk": "durable",
        "clerk/search": "durable",
        "clerk/consult": "durable",
        "clerk/search/other": "durable",
        "clerk/consult/helper": "durable",
    }
    plan = compile_adk_app(app)
    assert [*plan.nodes] == ["clerk", "clerk.search", "other", "clerk.consult", "helper"]
    assert plan.resumable, "what waits in them waits in any app"


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")
@pytest.mark.parametrize("how", [{"at_most_once": True}, {"local": True}])
def test_a_tool_that_runs_nodes_takes_several_steps(how: dict[str, Any]) -> None:
    async def consult(tool_context: Any) -> str:
        """Consult."""
        return str(await tool_context.run_node(len, "go"))

    refused = look_at(make_app("shop", agent("clerk", tools=[durable(FunctionTool(consult), **how)]))).refused
    assert refused is not None
    assert "tool 'consult' runs nodes" in (refused.reason or "")


def test_who_uses_memory_or_asks_for_credentials_is_noted() -> None:
    seen = look_at(make_app("shop", agent("clerk", tools=[preload_memory])))
    assert seen.remembers == ["tool 'preload_memory' of agent 'clerk'"]


def test_callbacks_are_noted_with_their_agent() -> None:
    """They are read for clocks and randomness."""

    def before(callback_context: Any) -> types.Content | None:
        return None

    seen = look_at(make_app("shop", agent("clerk", before_agent_callback=before, before_model_callback=[before])))
    assert [(code.role, code.name) for code in seen.code] == [
        ("callback", "before_agent_callback of agent 'clerk'"),
        ("callback", "before_model_callback of agent 'clerk'"),
    ]


@pytest.mark.parametrize("target", [".", "picker", "picker/agent.py", "picker.agent:app"])
def test_google_adk_warns_of_nothing_that_perdure_asks_for(target: str) -> None:
    """However an app is named; without ResumabilityConfig no app is durable."""
    command = [sys.executable, "-m", "perdure", "check", target]
    done = subprocess.run(command, cwd=_EXAMPLES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "picker: 4 durable" in done.stdout
    assert "ResumabilityConfig" not in done.stderr


_SHOP = """
from google.adk.agents import LlmAgent
from google.adk.apps.app import App

root_agent = LlmAgent(name="clerk", model="gemini-2.5-flash")
app = App(name="corner_shop", root_agent=root_agent)
"""


def test_an_app_that_is_named_in_code_has_its_own_name_and_one_in_a_folder_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first as in google.adk's Runner, the second as in `adk web`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "named_store").mkdir()
    path = tmp_path / "named_store" / "agent.py"
    path.write_text(_SHOP)
    names = ["corner_shop", "named_store", "corner_shop", "named_store"]
    targets = ["named_store.agent:app", "named_store.agent:root_agent", path, path.parent]
    assert [load_app(str(target)).name for target in targets] == names
