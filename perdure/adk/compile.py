"""Compiles a google.adk app into a `Plan`: the tree, the tools' names, and the plain values that an invocation pins."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types

from perdure.adk import internals
from perdure.adk.graphs import builds_agents, function_of, is_graph, points_of, runs_node, shape_of, tool_of
from perdure.adk.node_tools import agents_run_by, code_of_tool, function_of_tool, runs_nodes
from perdure.adk.pinning import plain_values
from perdure.adk.supported import (
    Problem,
    is_custom,
    is_remote,
    mode_of,
    model_name,
    problem_of_agent,
    problem_of_app,
    runs_itself,
    sub_agents_of,
    tool_name,
)
from perdure.adk.tools.delegation_tools import delegation_of
from perdure.adk.tools.straight_tools import runs_through
from perdure.adk.trees import Tree, walk
from perdure.agents.adk_app import AdkApp
from perdure.agents.durable import Durability, durability_of
from perdure.compiler.check.findings import Part, Seen, UserCode
from perdure.compiler.check.hazards import coarser_tool
from perdure.compiler.plan_values import check_values
from perdure.errors import DefinitionError
from perdure.plan.graph_shapes import GraphShape
from perdure.plan.nodes import (
    ADK_OPTIONS,
    AdkRules,
    CustomNode,
    LlmNode,
    LoopNode,
    Node,
    ParallelNode,
    Plan,
    RefusedNode,
    SequentialNode,
    ToolPlan,
)

_AGENT_CALLBACKS = ("before_agent_callback", "after_agent_callback")
_MODEL_CALLBACKS = (
    *("before_model_callback", "after_model_callback", "on_model_error_callback"),
    *("before_tool_callback", "after_tool_callback", "on_tool_error_callback"),
)
_BUILDS_AGENTS = "it names a class of agents: one that it builds and gives to run_node runs within its step"
_BUILD_OUTSIDE = "build the agent where the code is loaded, and name it: then each of its steps is recorded"
_REMEMBERING = frozenset({"LoadMemoryTool", "PreloadMemoryTool"})


def compile_adk_app(app: AdkApp) -> Plan:
    """Return the plan of a google.adk app. It is the same in every process that has the same code and google.adk.

    Raises:
        DefinitionError: Perdure cannot run it; the message names the agent and says what to do.
    """
    plan, seen = _look(app, closely=False)
    refused = seen.refused
    if refused is not None or plan is None:
        assert refused is not None, "what has no plan has a reason"
        raise DefinitionError(f"{refused.reason}; {refused.remedy}" if refused.remedy else refused.reason)
    return check_values(plan)


def look_at(app: AdkApp) -> Seen:
    """Return what an app's agents and tools are, before any runs; what is refused, too.

    Raises:
        DefinitionError: The installed google.adk is not supported.
    """
    return _look(app, closely=True)[1]


def _look(app: AdkApp, *, closely: bool) -> tuple[Plan | None, Seen]:
    internals.check_installed()
    root, plugins = app.app.root_agent, app.app.plugins
    looked = _Look(_Hooks([type(plugin) for plugin in plugins]), closely)
    problem = problem_of_app(app.name, app.app)
    if problem is not None:
        kind = type(root if not isinstance(root, BaseAgent) else app.app).__name__
        looked.seen.parts.append(
            Part(
                name=app.name, path=app.name, kind=kind, verdict="refused", reason=problem.reason, remedy=problem.remedy
            )
        )
        if not isinstance(root, BaseAgent) and not is_graph(root):
            return None, looked.seen
    node = looked.tree(root)
    for plugin in plugins if closely else ():
        for name in _overridden(plugin):
            looked.seen.code.append(UserCode("callback", f"{name} of plugin {plugin.name!r}", getattr(plugin, name)))
    if looked.seen.refused is not None:
        return None, looked.seen
    rules = _rules(app, root, looked.hooks)
    plan = Plan(app=app.name, resumable=app.is_resumable, root=node, adk=rules, shows_errors=True, max_llm_calls=500)
    plan = plan.model_copy(update={"steps_per_activity": app.steps_per_activity})
    if is_graph(root) or plan.has_tasks or any(tool.runs_nodes for tool in plan.every_tool):
        # As ADK does: nodes go on behind their answers in any app.
        rules = rules.model_copy(update={"hides_checkpoints": not app.is_resumable})
        plan = plan.model_copy(update={"resumable": True, "adk": rules})
    return plan, looked.seen


def _overridden(plugin: BasePlugin) -> Iterator[str]:
    for name, function in vars(BasePlugin).items():
        if name.endswith("_callback") and getattr(type(plugin), name, None) is not function:
            yield name


def _rules(app: AdkApp, root: BaseAgent, hooks: _Hooks) -> AdkRules:
    return AdkRules(
        major=2 if internals.MAJOR >= 2 else 1,
        logs_failures=internals.MAJOR >= 2 and isinstance(root, LlmAgent),
        keeps_finished=internals.KEEPS_FINISHED,
        begins=hooks.has("on_user_message_callback") or hooks.has("before_run_callback"),
        watches=hooks.has("on_event_callback"),
        ends=hooks.has("after_run_callback") or app.app.events_compaction_config is not None,
    )


class _Hooks:
    """Which callbacks run around agents and tools by plugins."""

    def __init__(self, plugins: list[type[Any]]) -> None:
        self.plugins = plugins

    def has(self, name: str) -> bool:
        """Return whether a plugin overrides a hook."""
        return any(getattr(plugin, name, None) is not getattr(BasePlugin, name, None) for plugin in self.plugins)


@dataclass
class _Look:
    """One walk over a tree of agents: makes its nodes, and notes each agent and tool."""

    hooks: _Hooks
    closely: bool
    """Read the source of tools, too."""
    path: str = ""
    around: tuple[BaseAgent, ...] = ()
    """The agents whose tools run the tree."""
    seen: Seen = field(default_factory=Seen)

    def tree(self, root: BaseAgent) -> Node:
        """Return the node of a tree's root."""
        names = [agent.name for agent in walk(root)]
        node = self._node(root, self.path, Tree(root))
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            reason = f"two agents are named {name!r}"
            remedy = "give each agent of a tree its own name"
            self.seen.parts.append(
                Part(name=name, path=name, kind="LlmAgent", verdict="refused", reason=reason, remedy=remedy)
            )
        return node

    def _node(
        self,
        agent: BaseAgent,
        path: str,
        tree: Tree,
        *,
        above: tuple[BaseAgent, ...] = (),
        as_node: bool = False,
        in_node: bool = False,
    ) -> Node:
        path = f"{path}/{agent.name}" if path else agent.name
        if is_graph(agent):
            return self._graph(agent, path, tree)
        problem = problem_of_agent(agent, as_node=as_node, above=above, in_tool=bool(self.around), in_node=in_node)
        part = Part(name=agent.name, path=path, kind=type(agent).__name__)
        if problem is not None:
            part = _refused(part, problem)
        elif (coarser := _coarser(agent, tree)) is not None:
            part = part.model_copy(update={"verdict": "coarser", "reason": coarser})
        self.seen.parts.append(part)
        self._callbacks(agent, _AGENT_CALLBACKS)
        tools: tuple[ToolPlan, ...] = ()
        children = tree.children_of(agent)
        code: tuple[CustomNode, ...] = ()
        custom = is_custom(agent)
        if custom and self.closely and not is_remote(agent):
            run = type(agent).run_async if runs_itself(agent) else getattr(type(agent), "_run_async_impl")  # noqa: B009
            self.seen.code.append(UserCode("agent", f"the code of agent {agent.name!r}", run))
        if isinstance(agent, LlmAgent) and not custom:
            self._callbacks(agent, _MODEL_CALLBACKS)
            tools = self._tools(agent, path)
            held = [child for child in children if not any(child is one for one in sub_agents_of(agent))]
            children = [child for child in children if not any(child is one for one in held)]
            code = tuple(self._tool_nodes(agent, path, tree, held, tools))
        base: dict[str, Any] = {
            "name": agent.name,
            "description": agent.description,
            "sub_agents": tuple(
                self._node(child, path, tree, above=(*above, agent), in_node=as_node or in_node) for child in children
            )
            + code,
        }
        if not runs_itself(agent):
            base["before"] = bool(agent.before_agent_callback) or self.hooks.has("before_agent_callback")
            base["after"] = bool(agent.after_agent_callback) or self.hooks.has("after_agent_callback")
        if problem is not None:
            return RefusedNode(name=agent.name, step="compile", reason=part.reason or "")
        if custom:
            return CustomNode(**base, code=f"{type(agent).__module__}:{type(agent).__qualname__}")
        if isinstance(agent, LlmAgent):
            mode = mode_of(agent)
            return _llm_node(agent, base, tools, None if as_node and mode == "single_turn" else mode)
        return _composite_node(agent, base)

    def _tool_nodes(
        self, agent: LlmAgent, path: str, tree: Tree, held: list[BaseAgent], tools: tuple[ToolPlan, ...]
    ) -> Iterator[CustomNode]:
        """Yield the nodes of an agent's tools that run nodes, each with the agents that it runs, or the first of it."""
        given = {tool_name(tool): tool for tool in cast("list[object]", agent.tools)}  # pyright: ignore[reportUnknownMemberType]
        left = list(held)
        for plan in tools:
            if not plan.runs_nodes:
                continue
            tool = given[plan.name]
            run = [one for one in left if any(one is named for named in agents_run_by(tool))]
            left = [one for one in left if not any(one is taken for taken in run)]
            at = f"{path}/{plan.name}"
            graph = getattr(tool, "node", None) if runs_node(tool) else None
            yield CustomNode(
                name=f"{agent.name}.{plan.name}",
                tool=plan.name,
                sub_agents=tuple(self._node(child, at, tree, as_node=True) for child in run),
                code=f"{type(tool).__module__}:{type(tool).__qualname__}",
                graph=shape_of(graph) if is_graph(graph) else GraphShape(),
            )

    def _graph(self, graph: BaseAgent, path: str, tree: Tree) -> Node:
        """Return the node of a graph; of its own nodes, those that are no agents are steps of it."""
        self.seen.parts.append(Part(name=graph.name, path=path, kind=type(graph).__name__))
        for node in points_of(graph):
            at = f"{path}/{node.name}"
            code = function_of(node) or function_of_tool(tool_of(node))
            part = Part(name=node.name, path=at, kind=type(node).__name__.lstrip("_"))
            self.seen.parts.append(self._building(part, code))
            if code is not None and self.closely:
                self.seen.code.append(UserCode("node", f"node {node.name!r} of graph {path!r}", code))
        return CustomNode(
            name=graph.name,
            description=graph.description,
            sub_agents=tuple(self._node(child, path, tree, as_node=True) for child in tree.children_of(graph)),
            code=f"{type(graph).__module__}:{type(graph).__qualname__}",
            graph=shape_of(graph),
        )

    def _callbacks(self, agent: BaseAgent, fields: Sequence[str]) -> None:
        for name in fields if self.closely else ():
            given: Any = getattr(agent, name, None) or ()
            each = cast("list[Callable[..., Any]]", given if isinstance(given, list) else [given] if given else [])
            for function in each:
                self.seen.code.append(UserCode("callback", f"{name} of agent {agent.name!r}", function))

    def _tools(self, agent: LlmAgent, path: str) -> tuple[ToolPlan, ...]:
        """Return what is known of the tools before any runs; those of toolsets are found when their step asks."""
        plans: list[ToolPlan] = []
        # google.adk's type of a tool has a bare `Callable` in it.
        for given in cast("list[object]", agent.tools):  # pyright: ignore[reportUnknownMemberType]
            plan = self._tool(agent, given, path)
            if plan is not None:
                plans.append(plan)
        return tuple(plans)

    def _tool(self, agent: LlmAgent, given: object, path: str) -> ToolPlan | None:
        name = tool_name(given)
        part = Part(name=name, path=f"{path}/{name}", kind=type(given).__name__, tool=True)
        inner: dict[str, Any] = {}
        at = len(self.seen.parts)
        if (delegates := delegation_of(given)) is not None:
            # Its agent is one of the sub-agents.
            inner = {"delegates": delegates}
        elif isinstance(given, AgentTool):
            part, inner = self._agent_tool(agent, given, part)
        elif (problem := _problem_of_tool(given, name)) is not None:
            reason = f"agent {agent.name!r}: {problem.reason}"
            part = part.model_copy(update={"verdict": "refused", "reason": reason, "remedy": problem.remedy})
        elif self.closely:
            part = self._read(agent, given, part)
        if runs_nodes(given):
            inner = {"runs_nodes": True}
            part = self._building(part, code_of_tool(given))
        elif not inner and runs_through(agent, given, self.hooks.plugins):
            inner = {"runs_through": True}
        self.seen.parts.insert(at, part)
        if isinstance(given, BaseToolset) or part.verdict == "refused":
            return None
        kind = "long_running" if isinstance(given, BaseTool) and given.is_long_running else "function"
        plan = ToolPlan(
            name=name, kind=kind, declaration=types.FunctionDeclaration(name=name), options=ADK_OPTIONS, **inner
        )
        durability = durability_of(given)
        return plan if durability is None else _durable(plan, durability)

    def _building(self, part: Part, function: Any) -> Part:
        """Return the part of code that runs nodes: coarser where it may build agents for that."""
        if part.verdict == "durable" and self.closely and builds_agents(function):
            coarser = {"verdict": "coarser", "reason": _BUILDS_AGENTS, "remedy": _BUILD_OUTSIDE}
            return part.model_copy(update=coarser)
        return part

    def _read(self, agent: LlmAgent, given: object, part: Part) -> Part:
        """Read what a tool does, as far as its source tells."""
        who = f"tool {part.name!r} of agent {agent.name!r}"
        if type(given).__name__ in _REMEMBERING:
            self.seen.remembers.append(who)
        if _may_ask_for_credentials(given):
            self.seen.asks_credentials.append(who)
        function = function_of_tool(given)
        if function is None:
            return part
        code = UserCode("tool", who, function)
        self.seen.code.append(code)
        return coarser_tool(part, code)

    def _agent_tool(self, agent: LlmAgent, tool: AgentTool, part: Part) -> tuple[Part, dict[str, Any]]:
        """Return what a plan has of a tool that runs an agent, each of whose steps is to be one of its own.

        Nothing where the tool runs code of its own, or the agent cannot be compiled: then the tool is one step.
        """
        around = (*self.around, agent)
        if type(tool).run_async is not AgentTool.run_async:
            return _one_step(part, f"{type(tool).__name__} has a run_async of its own"), {}
        # An agent may be its own tool, without an end.
        if any(one is tool.agent for one in around):
            return _one_step(part, f"agent {tool.agent.name!r} runs within itself"), {}
        plugins = getattr(tool, "include_plugins", False)
        look = _Look(self.hooks if plugins else _Hooks([]), self.closely, part.path, around)
        node = look.tree(tool.agent)
        refused = look.seen.refused
        if refused is not None:
            return _one_step(part, refused.reason or ""), {}
        self.seen.parts += look.seen.parts
        self.seen.code += look.seen.code
        self.seen.remembers += look.seen.remembers
        self.seen.asks_credentials += look.seen.asks_credentials
        return part, {"agent": node, "plugins": plugins}


def _composite_node(agent: BaseAgent, base: dict[str, Any]) -> Node:
    if isinstance(agent, LoopAgent):
        return LoopNode(**base, max_iterations=agent.max_iterations or None)
    return (SequentialNode if isinstance(agent, SequentialAgent) else ParallelNode)(**base)


def _refused(part: Part, problem: Problem) -> Part:
    reason = f"agent {part.name!r}: {problem.reason}"
    return part.model_copy(update={"verdict": "refused", "reason": reason, "remedy": problem.remedy})


def _coarser(agent: BaseAgent, tree: Tree) -> str | None:
    """Return how an agent is less durable than others, if it is."""
    if is_remote(agent):
        return "its turn is one step: the remote agent is asked again if that is cut off"
    if is_custom(agent):
        if isinstance(agent, LlmAgent):
            return "its code is one step, its model calls and its tools with it: it runs again if it is cut off"
        between = "between its sub-agents it is a step" if tree.children_of(agent) else "it is one step"
        return f"it runs code of its own: {between}, which runs again if it is cut off"
    if isinstance(agent, LlmAgent) and agent.code_executor is not None:
        return "the code that its model writes runs in the model's step, which asks again if it is cut off"
    return None


def _problem_of_tool(given: object, name: str) -> Problem | None:
    """Return why a tool cannot run, or cannot have what `durable` gave it."""
    if not isinstance(given, BaseTool | BaseToolset) and not callable(given):
        reason = f"tool {name!r} is a {type(given).__name__}, which is not supported yet"
        return Problem(reason, "give it as an agent of its own, or as a function")
    durability = durability_of(given)
    if durability is None:
        return None
    plan = durability.plan()
    if plan.kind == "long_running" and not (isinstance(given, BaseTool) and given.is_long_running):
        reason = f"tool {name!r} is not long-running, so its answer cannot expire"
        return Problem(reason, "give durable a LongRunningFunctionTool, or leave it out")
    if runs_nodes(given) and (plan.at_most_once or plan.local):
        reason = f"tool {name!r} runs nodes, so it is run in several steps, neither at most once nor local"
        return Problem(reason, "leave that out, and give what must not happen twice to a tool, or a node, of its own")
    return None


def _durable(plan: ToolPlan, durability: Durability) -> ToolPlan:
    """Return a tool with what `durable` gave it."""
    given = durability.plan()
    update = {
        name: getattr(given, name) for name in ("at_most_once", "on_failure", "expiry", "response_schema", "local")
    }
    if durability.retries or given.at_most_once:
        update["options"] = given.options
    else:
        # What is not said of retries is as for other tools.
        update["options"] = given.options.model_copy(update={"max_attempts": ADK_OPTIONS.max_attempts})
    return plan.model_copy(update=update | {"retries": durability.retries})


def _one_step(part: Part, why: str) -> Part:
    reason = f"all that its agent does is one step: {why}"
    return part.model_copy(update={"verdict": "coarser", "reason": reason})


def _may_ask_for_credentials(given: object) -> bool:
    auth = ("_auth_config", "auth_config", "_auth_scheme", "auth_scheme")
    return any(getattr(given, name, None) is not None for name in auth)


def _llm_node(
    agent: LlmAgent, base: dict[str, Any], tools: tuple[ToolPlan, ...], mode: Literal["task", "single_turn"] | None
) -> LlmNode:
    instruction = agent.instruction if isinstance(agent.instruction, str) else None
    values, code = plain_values(agent)
    return LlmNode(
        **base,
        model=model_name(agent),
        instruction=instruction or "",
        dynamic_instruction=instruction is None,
        tools=tools,
        mode=mode,
        values=values,
        code=code,
        disallow_transfer_to_parent=agent.disallow_transfer_to_parent,
        disallow_transfer_to_peers=agent.disallow_transfer_to_peers,
        model_options=ADK_OPTIONS,
    )
