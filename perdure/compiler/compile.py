"""Compiles an `App` into its `Plan`. Every check of an agent tree happens here."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from perdure.agents.agent_tool import AgentTool, tool_agents
from perdure.agents.custom import BaseAgent
from perdure.agents.definitions import App, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from perdure.agents.placeholders import required_keys
from perdure.agents.tools import activity_options, as_tool
from perdure.agents.validation import check_agent_name, check_tool_name
from perdure.compiler.custom_agents import check_custom_agent
from perdure.compiler.plan_values import check_values
from perdure.errors import DefinitionError, DefinitionWarning
from perdure.models.base import BaseLlm
from perdure.models.registry import LLMRegistry
from perdure.plan.nodes import (
    MODEL_OPTIONS,
    SET_MODEL_RESPONSE,
    CustomNode,
    LlmNode,
    LoopNode,
    Node,
    ParallelNode,
    Plan,
    SequentialNode,
    ToolOptions,
    ToolPlan,
)

_SHARED_PLACEHOLDER = re.compile(r"\{\s*(user|app):")
_SHARED_KEY = ("user:", "app:")


def compile_app(app: App) -> Plan:
    """Return the plan of an app. It is the same in every process that has the same code.

    Raises:
        DefinitionError: The app is not valid; the message names agent or function and says what to do.
    """
    agents = _check_tree(app.root_agent)
    _check_activities(app)
    for agent in agents:
        if agent.has_own_run:
            check_custom_agent(agent, agents)
    default = activity_options(
        f"app {app.name!r}: model calls", app.model_timeout, app.model_retry, default=MODEL_OPTIONS
    )
    root = _node(app.root_agent, default)
    plan = Plan(
        app=app.name,
        resumable=app.is_resumable,
        shows_errors=app.errors == "shown",
        root=root,
        activities=tuple(function.__name__ for function in app.activities),
        max_llm_calls=app.max_llm_calls,
        steps_per_activity=app.steps_per_activity,
    )
    plan = plan.model_copy(update={"shared_state": any(map(_touches_shared_state, plan.every_node))})
    _check_deadlines(plan)
    for node in plan.every_node:
        if isinstance(node, LoopNode):
            _check_loop(node)
    _check_instructions(plan)
    return check_values(plan)


def _check_tree(root: BaseAgent) -> list[BaseAgent]:
    """Return all agents of a tree, those of its tools included, and make sure that it is one."""
    if root.parent_agent is not None:
        raise DefinitionError(
            f"root agent {root.name!r} is a sub-agent of {root.parent_agent.name!r}; an app's root has no parent"
        )
    paths: dict[str, str] = {}
    agents: list[BaseAgent] = []
    placed: list[BaseAgent] = []
    at_hand: list[BaseAgent] = []

    def visit(agent: BaseAgent, path: str) -> None:
        check_agent_name(agent.name)
        if any(agent is above for above in at_hand):
            raise DefinitionError(
                f"agent {agent.name!r} would run within itself, at {path!r}, without an end; take it out of the tools"
                " underneath, or give these a second agent with another name"
            )
        if any(agent is known for known in agents):
            return
        if agent.name in paths:
            raise DefinitionError(
                f"two agents are named {agent.name!r}, at {paths[agent.name]!r} and {path!r}; give each agent of an "
                "app its own name, those that tools run, too"
            )
        paths[agent.name] = path
        agents.append(agent)
        at_hand.append(agent)
        agent.link_sub_agents()
        for child in agent.sub_agents:
            place(child, f"{path}/{child.name}")
        for inner in tool_agents(agent):
            visit(inner, f"{path}/{inner.name}")
        at_hand.remove(agent)

    def place(agent: BaseAgent, path: str) -> None:
        if any(agent is known for known in placed):
            raise DefinitionError(f"agent {agent.name!r} has two parents, at {paths[agent.name]!r} and {path!r}")
        placed.append(agent)
        visit(agent, path)

    place(root, root.name)
    return agents


def _check_activities(app: App) -> None:
    names: set[str] = set()
    for function in app.activities:
        name = getattr(function, "__name__", type(function).__name__)
        if not inspect.isfunction(function) or function.__qualname__ != name or not name.isidentifier():
            raise DefinitionError(
                f"app {app.name!r}: activity {name!r} is no function of a module; define it with def or async def at "
                "module level, so that any worker finds it by its name"
            )
        if name in names:
            raise DefinitionError(f"app {app.name!r}: two activities are named {name!r}; give each its own name")
        names.add(name)


def _node(agent: BaseAgent, options: ToolOptions) -> Node:
    base: dict[str, Any] = {
        "name": agent.name,
        "description": agent.description,
        "sub_agents": tuple(_node(child, options) for child in agent.sub_agents),
    }
    match agent:
        case LlmAgent() | SequentialAgent() | LoopAgent() | ParallelAgent() if agent.has_own_run:
            raise DefinitionError(
                f"agent {agent.name!r}: {type(agent).__name__} overrides _run_async_impl of a built-in agent, which "
                "Perdure runs itself; derive it from BaseAgent"
            )
        case _ if agent.has_own_run:
            return CustomNode(**base, code=f"{type(agent).__module__}:{type(agent).__qualname__}")
        case LlmAgent():
            return _llm_node(agent, base, options)
        case SequentialAgent():
            return SequentialNode(**base)
        case LoopAgent():
            if agent.max_iterations is not None and agent.max_iterations < 1:
                raise DefinitionError(
                    f"agent {agent.name!r}: max_iterations is {agent.max_iterations}; it must be at least 1, or None "
                    "for no limit"
                )
            return LoopNode(**base, max_iterations=agent.max_iterations)
        case ParallelAgent():
            return ParallelNode(**base)
        case _:
            raise DefinitionError(
                f"agent {agent.name!r}: {type(agent).__name__} has no `async def _run_async_impl(self, ctx)` that "
                "yields events; write one, or use LlmAgent, SequentialAgent, LoopAgent or ParallelAgent"
            )


def _llm_node(agent: LlmAgent, base: dict[str, Any], options: ToolOptions) -> LlmNode:
    dynamic = not isinstance(agent.instruction, str)
    return LlmNode(
        **base,
        model=_model_name(agent),
        instruction="" if dynamic else cast(str, agent.instruction),
        dynamic_instruction=dynamic,
        tools=_tools(agent, options),
        output_key=agent.output_key,
        output_schema=_output_schema(agent),
        include_contents=agent.include_contents,
        generate_content_config=_generation_config(agent),
        disallow_transfer_to_parent=agent.disallow_transfer_to_parent,
        disallow_transfer_to_peers=agent.disallow_transfer_to_peers,
        max_llm_calls=max(agent.max_llm_calls or 0, 0),
        model_options=activity_options(
            f"agent {agent.name!r}: model calls", agent.model_timeout, agent.model_retry, default=options
        ),
    )


def _model_name(agent: LlmAgent) -> str:
    model = agent.resolved_model()
    if isinstance(model, BaseLlm):
        return model.model
    try:
        LLMRegistry.resolve(model)
    except DefinitionError as error:
        raise DefinitionError(f"agent {agent.name!r}: {error}") from error
    return model


def _tools(agent: LlmAgent, options: ToolOptions) -> tuple[ToolPlan, ...]:
    plans: list[ToolPlan] = []
    for given in agent.tools:
        try:
            plan = as_tool(given).plan()
            if isinstance(given, AgentTool):
                plan = plan.model_copy(update={"agent": _node(given.agent, options)})
        except DefinitionError as error:
            raise DefinitionError(f"agent {agent.name!r}: {error}") from error
        check_tool_name(plan, f"agent {agent.name!r}")
        if plan.name == SET_MODEL_RESPONSE and agent.output_schema:
            raise DefinitionError(
                f"agent {agent.name!r}: the tool name {plan.name!r} is reserved: its model answers by it, by the"
                " agent's output_schema; rename the function"
            )
        if any(plan.name == other.name for other in plans):
            raise DefinitionError(
                f"agent {agent.name!r} has two tools named {plan.name!r}; rename one of the functions, and give a"
                " decorator functools.wraps, so that each keeps its own name"
            )
        plans.append(plan)
    return tuple(plans)


def _output_schema(agent: LlmAgent) -> dict[str, Any] | None:
    output = agent.structured_output()
    if output is None:
        return None
    config = agent.generate_content_config
    for name in ("response_schema", "response_json_schema", "response_mime_type") if config is not None else ():
        if getattr(config, name):
            raise DefinitionError(
                f"agent {agent.name!r}: generate_content_config sets {name}, which output_schema is for; leave one out"
            )
    return output.schema


def _generation_config(agent: LlmAgent) -> dict[str, Any]:
    config = agent.generate_content_config
    if config is None:
        return {}
    for name, field in (("tools", "tools"), ("system_instruction", "instruction")):
        if getattr(config, name):
            raise DefinitionError(
                f"agent {agent.name!r}: generate_content_config sets {name}; use the agent's own field {field!r}"
            )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return config.model_dump(mode="json", by_alias=True, exclude_none=True)
    except (PydanticSerializationError, ValidationError, UserWarning) as error:
        raise DefinitionError(
            f"agent {agent.name!r}: generate_content_config cannot be written as JSON ({error}); use plain values, "
            "such as a JSON schema (response_json_schema) instead of a Python type"
        ) from error


def _check_deadlines(plan: Plan) -> None:
    if plan.resumable:
        return
    for node in plan.nodes.values():
        for tool in node.tools if isinstance(node, LlmNode) else ():
            if tool.expiry is not None or tool.remind_in is not None:
                raise DefinitionError(
                    f"agent {node.name!r}: tool {tool.name!r} has a deadline or a reminder, but the app is not "
                    "resumable: nothing waits there, and an answer starts a new invocation; set "
                    "ResumabilityConfig(is_resumable=True)"
                )


def _check_loop(node: LoopNode) -> None:
    if node.max_iterations is None and node.sub_agents and not any(map(_can_escalate, _below(node))):
        warnings.warn(
            f"loop {node.name!r} never ends: it has no max_iterations, and nothing underneath can escalate; set "
            "max_iterations, or give an agent underneath the tool exit_loop",
            DefinitionWarning,
            stacklevel=2,
        )


def _check_instructions(plan: Plan) -> None:
    """Warn of keys that an instruction needs and that nothing in the app can write."""
    nodes = plan.every_node
    if any(isinstance(node, CustomNode) or any(map(_sees_state, _tools_of(node))) for node in nodes):
        return
    models = [node for node in nodes if isinstance(node, LlmNode)]
    written = {node.output_key for node in models}
    for node in models:
        for key in required_keys(node.instruction):
            if key not in written:
                warnings.warn(
                    f"agent {node.name!r}: its instruction needs the state key {key!r}, which no output_key, tool or"
                    " custom agent of the app writes, so that each model call fails unless it comes from outside"
                    f" (create_session(state=…), a message's state_delta, change_state); write {{{key}?}} if it may be"
                    f" missing, or ${{{key}}} if the braces stand for themselves",
                    DefinitionWarning,
                    stacklevel=3,
                )


def _tools_of(node: Node) -> tuple[ToolPlan, ...]:
    return node.tools if isinstance(node, LlmNode) else ()


def _below(node: Node) -> Iterator[Node]:
    for child in node.sub_agents:
        yield child
        yield from _below(child)


def _can_escalate(node: Node) -> bool:
    match node:
        case CustomNode():
            return True
        case LlmNode():
            return any(tool.kind == "exit_loop" or _sees_state(tool) for tool in node.tools)
        case _:
            return False


def _sees_state(tool: ToolPlan) -> bool:
    return tool.needs_context and tool.kind in ("function", "long_running")


def _touches_shared_state(node: Node) -> bool:
    match node:
        case CustomNode():
            return True
        case LlmNode():
            return (
                node.dynamic_instruction
                or _SHARED_PLACEHOLDER.search(node.instruction) is not None
                or (node.output_key or "").startswith(_SHARED_KEY)
                or any(map(_sees_state, node.tools))
            )
        case _:
            return False
