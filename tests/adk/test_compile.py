"""The plan of a google.adk app, and what is refused."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk import internals
from perdure.adk.compile import compile_adk_app
from perdure.adk.loading import as_adk_app
from perdure.errors import DefinitionError
from perdure.plan.diff import describe_change, describe_plan, diff_plans
from perdure.plan.nodes import CustomNode, LlmNode, Node, Plan


def plan_of(app: App | BaseAgent) -> Plan:
    taken = as_adk_app(app, "shop")
    assert taken is not None
    return compile_adk_app(taken)


def ask_approval(amount: int) -> None:
    """Asks a person."""


def look_up(key: str) -> str:
    """Looks a key up."""
    return key


def told(_context: ReadonlyContext) -> str:
    return "Go."


def look(callback_context: CallbackContext) -> None:
    """Looks."""


def llm(name: str, **fields: Any) -> LlmAgent:
    return LlmAgent(name=name, model="gemini-2.5-flash", **fields)


def test_a_tree_of_all_kinds() -> None:
    root = SequentialAgent(
        name="root",
        sub_agents=[
            LoopAgent(name="loop", max_iterations=3, sub_agents=[llm("writer", instruction="Write.")]),
            ParallelAgent(name="both", sub_agents=[llm("left"), llm("right", instruction=told)]),
            llm("clerk", tools=[look_up, LongRunningFunctionTool(ask_approval)]),
        ],
    )
    plan = plan_of(root)
    loop, both, clerk = plan.root.sub_agents
    assert [node.kind for node in (plan.root, loop, both, clerk)] == ["sequential", "loop", "parallel", "llm"]
    assert plan.adk is not None
    assert plan.adk.major == min(internals.MAJOR, 2)
    writer = loop.sub_agents[0]
    right = both.sub_agents[1]
    assert isinstance(writer, LlmNode)
    assert isinstance(right, LlmNode)
    assert isinstance(clerk, LlmNode)
    assert (writer.instruction, writer.dynamic_instruction) == ("Write.", False)
    assert (right.instruction, right.dynamic_instruction) == ("", True)
    assert [(tool.name, tool.kind) for tool in clerk.tools] == [
        ("look_up", "function"),
        ("ask_approval", "long_running"),
    ]


def test_the_plan_is_the_same_each_time() -> None:
    assert plan_of(llm("root")).digest == plan_of(llm("root")).digest
    assert plan_of(llm("root")).digest != plan_of(llm("root", instruction="Write.")).digest


class Watching(BasePlugin):
    """Looks before agents and after runs."""

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        """Look."""

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """Look."""


def test_callbacks_are_steps_only_where_there_are_any() -> None:
    plan = plan_of(App(name="shop", root_agent=llm("root", after_agent_callback=look)))
    assert (plan.root.before, plan.root.after) == (False, True)
    plan = plan_of(App(name="shop", root_agent=llm("root"), plugins=[Watching(name="watching")]))
    assert (plan.root.before, plan.root.after) == (True, False)
    assert plan.adk is not None
    assert (plan.adk.begins, plan.adk.ends) == (False, True)


class Story(BaseAgent):
    """An agent of its own kind."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name)


class Chain(SequentialAgent):
    """A sequence in an order of its own."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name)


@pytest.mark.parametrize("custom", [Story, Chain])
def test_code_of_its_own_makes_a_custom_agent(custom: type[BaseAgent]) -> None:
    tale = custom(name="tale", sub_agents=[llm("writer")], before_agent_callback=look)
    (node,) = plan_of(llm("root", sub_agents=[tale])).root.sub_agents
    assert isinstance(node, CustomNode)
    assert (node.code, node.before, node.after) == (f"{__name__}:{custom.__name__}", True, False)
    assert [child.name for child in node.sub_agents] == ["writer"]


class Teller(BaseAgent):
    """Holds an agent that is in no tree."""

    writer: BaseAgent
    others: tuple[Any, ...] = ()

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name)


def test_a_held_agent_stays_where_it_is_a_sub_agent() -> None:
    critic, writer, elsewhere = llm("critic"), llm("writer"), llm("elsewhere")
    SequentialAgent(name="of_another_tree", sub_agents=[elsewhere])
    loop = LoopAgent(name="polish", sub_agents=[critic], max_iterations=1)
    teller = Teller(name="teller", writer=writer, others=(critic, loop, elsewhere))
    root = plan_of(SequentialAgent(name="root", sub_agents=[teller, writer])).root
    assert _names(root) == ["root", ["teller", ["polish", ["critic"]], ["elsewhere"]], ["writer"]]


def _names(node: Node) -> list[Any]:
    return [node.name, *map(_names, node.sub_agents)]


def test_what_a_custom_agent_holds_is_underneath_it_once() -> None:
    shared, sub_agent = llm("writer"), llm("editor")
    first = Teller(name="first", writer=sub_agent, others=(shared, "a word"), sub_agents=[sub_agent])
    second = Teller(name="second", writer=shared)
    (one, two) = plan_of(SequentialAgent(name="root", sub_agents=[first, second])).root.sub_agents
    assert [child.name for child in one.sub_agents] == ["editor", "writer"]
    assert two.sub_agents == ()
    assert [child.name for child in first.sub_agents] == ["editor"], "the app's own objects are as they were"


@pytest.mark.skipif(internals.MAJOR < 2, reason="google.adk 1 has neither")
def test_agents_that_run_apart_from_the_tree_are_refused_by_name() -> None:
    with pytest.raises(DefinitionError, match="agent 'helper': parallel_worker is not supported yet"):
        plan_of(llm("root", sub_agents=[llm("helper", parallel_worker=True)]))


def test_two_agents_of_one_name_are_refused() -> None:
    # ADK 2 warns of siblings only.
    with pytest.raises(DefinitionError, match="two agents are named 'twin'"):
        plan_of(llm("root", sub_agents=[llm("left", sub_agents=[llm("twin")]), llm("right", sub_agents=[llm("twin")])]))


def test_a_text_that_no_plan_can_hold_is_refused() -> None:
    with pytest.raises(DefinitionError, match="agent 'leaf': description has half of a character"):
        plan_of(llm("root", sub_agents=[llm("leaf", description="\ud83d")]))


def test_an_agent_without_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlmAgent, "_default_model", "", raising=False)
    with pytest.raises(DefinitionError, match="agent 'root': it has no model"):
        plan_of(LlmAgent(name="root"))


_STANDS_ON = [
    (owner, name, parameters) for owner, names in internals.EXPECTED.items() for name, parameters in names.items()
]


@pytest.mark.parametrize(("owner", "name", "_"), _STANDS_ON, ids=[name for _, name, _ in _STANDS_ON])
def test_a_version_that_moved_a_name_is_refused_by_it(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, _: tuple[str, ...]
) -> None:
    root = llm("root")
    monkeypatch.delattr(owner, name)
    with pytest.raises(DefinitionError, match=rf"google-adk .* is not supported: it has no .*\.{name}; install"):
        plan_of(root)


@pytest.mark.parametrize(
    ("owner", "name", "parameter"),
    [(owner, name, parameter) for owner, name, parameters in _STANDS_ON for parameter in parameters],
)
def test_a_version_that_renamed_a_parameter_is_refused_by_it(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, parameter: str
) -> None:
    signature = inspect.signature(getattr(owner, name))
    others = [one for one in signature.parameters.values() if one.name != parameter]

    def renamed() -> None: ...

    setattr(renamed, "__signature__", signature.replace(parameters=others))  # noqa: B010
    root = llm("root")
    monkeypatch.setattr(owner, name, renamed)
    with pytest.raises(DefinitionError, match=rf"it has no .*\.{name}\({parameter}=\); install"):
        plan_of(root)


def test_agents_of_tools_are_part_of_the_plan() -> None:
    def root(instruction: str, *more: AgentTool) -> LlmAgent:
        checker = llm("checker", instruction=instruction)
        return llm("root", tools=[AgentTool(llm("finder", tools=[AgentTool(checker)])), *more])

    before, after = plan_of(root("Check.")), plan_of(root("Check well."))
    assert [line.strip().split(" (")[0] for line in describe_plan(before)][1:] == [
        "root",
        "tool finder",
        "finder",
        "tool checker",
        "checker",
        "instruction: Check.",
    ]
    told = [line.strip() for change in diff_plans(before, after) for line in describe_change(change)]
    assert told[0] == "~ agent checker: instruction"
    assert "+Check well." in told


@pytest.mark.parametrize("kind", ["own code in the tool", "its own tool"])
def test_agents_of_tools_that_cannot_be_planned_are_one_step(kind: str) -> None:
    class OwnTool(AgentTool):
        async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
            return "own"

    root = llm("root")
    given = {
        "own code in the tool": OwnTool(llm("helper")),
        "its own tool": AgentTool(root),
    }
    root.tools = [given[kind]]
    node = plan_of(root).root
    assert isinstance(node, LlmNode)
    assert node.tools[0].agent is None
