"""Compiles a google.adk app into a `Plan`: the tree, the tools' names, and the plain values that an invocation pins."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from perdure.adk import internals
from perdure.agents.adk_app import AdkApp
from perdure.errors import DefinitionError
from perdure.plan.nodes import (
    AdkRules,
    LlmNode,
    LoopNode,
    Node,
    ParallelNode,
    Plan,
    SequentialNode,
    ToolOptions,
    ToolPlan,
)

_ONCE = ToolOptions(max_attempts=15)
"""google.adk tries nothing again by itself: the step says so of each failure. What died with its worker is."""


def compile_adk_app(app: AdkApp) -> Plan:
    """Return the plan of a google.adk app. It is the same in every process that has the same code and google.adk.

    Raises:
        DefinitionError: Perdure cannot run it; the message names the agent and says what to do.
    """
    internals.check_installed()
    root = app.app.root_agent
    if not isinstance(root, BaseAgent):
        raise DefinitionError(f"app {app.name!r}: its root is a {type(root).__name__}; graphs are not supported yet")
    _check_names(root)
    plugins: Sequence[BasePlugin] = app.app.plugins
    hooks = _Hooks([type(plugin) for plugin in plugins])
    return Plan(
        app=app.name,
        resumable=app.is_resumable,
        root=_node(root, hooks),
        adk=_rules(app, root, hooks),
        shows_errors=True,
        max_llm_calls=500,
    )


def _rules(app: AdkApp, root: BaseAgent, hooks: _Hooks) -> AdkRules:
    return AdkRules(
        major=2 if internals.MAJOR >= 2 else 1,
        logs_failures=internals.MAJOR >= 2 and isinstance(root, LlmAgent),
        begins=hooks.has("on_user_message_callback") or hooks.has("before_run_callback"),
        ends=hooks.has("after_run_callback") or app.app.events_compaction_config is not None,
    )


def walk(root: BaseAgent) -> Iterator[BaseAgent]:
    """Yield an agent and all of its sub-agents, depth-first."""
    yield root
    for child in root.sub_agents:
        yield from walk(child)


def _check_names(root: BaseAgent) -> None:
    """Check that a tree has no two agents of one name.

    Raises:
        DefinitionError: It has.
    """
    names = [agent.name for agent in walk(root)]
    for name in names:
        if names.count(name) > 1:
            raise DefinitionError(f"two agents are named {name!r}; give each agent of a tree its own name")


class _Hooks:
    """Which callbacks run around agents and tools by plugins."""

    def __init__(self, plugins: list[type[Any]]) -> None:
        self._plugins = plugins

    def has(self, name: str) -> bool:
        """Return whether a plugin overrides a hook."""
        return any(getattr(plugin, name, None) is not getattr(BasePlugin, name, None) for plugin in self._plugins)


def _node(agent: BaseAgent, hooks: _Hooks, around: tuple[BaseAgent, ...] = ()) -> Node:
    """Return an agent's node; `around` are the agents whose tools run it."""
    base: dict[str, Any] = {
        "name": agent.name,
        "description": agent.description,
        "sub_agents": tuple(_node(child, hooks, around) for child in agent.sub_agents),
        "before": bool(agent.before_agent_callback) or hooks.has("before_agent_callback"),
        "after": bool(agent.after_agent_callback) or hooks.has("after_agent_callback"),
    }
    # By their code, not their class: what a subclass overrides is a custom agent's.
    run = type(agent)._run_async_impl  # pyright: ignore[reportPrivateUsage]
    if isinstance(agent, LlmAgent) and run is LlmAgent._run_async_impl:  # pyright: ignore[reportPrivateUsage]
        return _llm_node(agent, base, hooks, around)
    if isinstance(agent, SequentialAgent) and run is SequentialAgent._run_async_impl:  # pyright: ignore[reportPrivateUsage]
        return SequentialNode(**base)
    if isinstance(agent, LoopAgent) and run is LoopAgent._run_async_impl:  # pyright: ignore[reportPrivateUsage]
        return LoopNode(**base, max_iterations=agent.max_iterations or None)
    if isinstance(agent, ParallelAgent) and run is ParallelAgent._run_async_impl:  # pyright: ignore[reportPrivateUsage]
        return ParallelNode(**base)
    raise DefinitionError(
        f"agent {agent.name!r}: {type(agent).__name__} runs code of its own, which Perdure does not run for"
        " google.adk's agents yet; use LlmAgent, SequentialAgent, LoopAgent or ParallelAgent"
    )


def _refuse_delegated(agent: LlmAgent) -> None:
    """Refuse agents that are handed a task, and parallel workers: google.adk 2 runs them apart from the tree."""
    mode = str(getattr(agent, "mode", None) or "chat")
    if mode != "chat":
        raise DefinitionError(
            f"agent {agent.name!r}: mode={mode!r} is not supported yet; leave it out, and have the agent transferred to"
        )
    if getattr(agent, "parallel_worker", None):
        raise DefinitionError(f"agent {agent.name!r}: parallel_worker is not supported yet; use a ParallelAgent")


def _llm_node(agent: LlmAgent, base: dict[str, Any], hooks: _Hooks, around: tuple[BaseAgent, ...]) -> LlmNode:
    _refuse_delegated(agent)
    instruction = agent.instruction if isinstance(agent.instruction, str) else None
    return LlmNode(
        **base,
        model=_model_name(agent),
        instruction=instruction or "",
        dynamic_instruction=instruction is None,
        tools=_tools(agent, hooks, (*around, agent)),
        include_contents="default",
        disallow_transfer_to_parent=agent.disallow_transfer_to_parent,
        disallow_transfer_to_peers=agent.disallow_transfer_to_peers,
        model_options=_ONCE,
    )


def _model_name(agent: LlmAgent) -> str:
    model = agent.model
    if isinstance(model, BaseLlm):
        return model.model
    if model:
        return model
    try:
        return agent.canonical_model.model
    except Exception as error:
        raise DefinitionError(f"agent {agent.name!r} has no model: {error}") from error


def _tools(agent: LlmAgent, hooks: _Hooks, around: tuple[BaseAgent, ...]) -> tuple[ToolPlan, ...]:
    """Return what is known of the tools before any runs; those of toolsets are found when their step asks."""
    plans: list[ToolPlan] = []
    # google.adk's type of a tool has a bare `Callable` in it.
    for given in cast("list[object]", agent.tools):  # pyright: ignore[reportUnknownMemberType]
        if isinstance(given, BaseTool):
            name, long_running = given.name, given.is_long_running
        elif callable(given):
            name, long_running = getattr(given, "__name__", type(given).__name__), False
        else:
            continue
        kind = "long_running" if long_running else "function"
        declaration = types.FunctionDeclaration(name=name)
        inner = _agent_of_tool(given, hooks, around) if isinstance(given, AgentTool) else {}
        plans.append(ToolPlan(name=name, kind=kind, declaration=declaration, options=_ONCE, **inner))
    return tuple(plans)


def _agent_of_tool(tool: AgentTool, hooks: _Hooks, around: tuple[BaseAgent, ...]) -> dict[str, Any]:
    """Return what a plan has of a tool that runs an agent, each of whose steps is to be one of its own.

    Nothing where the tool runs code of its own, or the agent cannot be compiled: then the tool is one step.
    """
    agent = tool.agent
    # An agent may be its own tool, without an end.
    if type(tool).run_async is not AgentTool.run_async or any(one is agent for one in around):
        return {}
    plugins = getattr(tool, "include_plugins", False)
    try:
        _check_names(agent)
        node = _node(agent, hooks if plugins else _Hooks([]), around)
    except DefinitionError:
        return {}
    return {"agent": node, "plugins": plugins}
