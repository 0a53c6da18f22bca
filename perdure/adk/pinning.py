"""Gives today's agents the tree, the tools and the plain values that an invocation is pinned to.

Plain is what survives JSON by its field's own type: a text, a flag, a configuration. What does not is code, and code is
today's: functions, callbacks, schemas, planners.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import lru_cache
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_toolset import BaseToolset
from pydantic import TypeAdapter

from perdure.adk.supported import HONOURED, held_by, tool_name
from perdure.adk.trees import walk
from perdure.plan.nodes import CustomNode, LlmNode, Node

__all__ = ["pinned_trees", "plain_values"]

_BY_NODE = frozenset({"name", "description", "parent_agent", "sub_agents", "tools", "model", "instruction"})
"""What a node has in fields of its own."""

_CODE = frozenset({"planner", "code_executor", "input_schema", "output_schema"})
"""Objects and classes, whatever they hold."""

_UNPINNED = frozenset({"http_options"})
"""Of a `GenerateContentConfig`: how to reach a provider, with its keys, which no history may hold."""

PINNABLE = frozenset(
    name for name in HONOURED[LlmAgent] - _BY_NODE - _CODE if not name.endswith("_callback")
) & frozenset(LlmAgent.model_fields)
"""The fields of an `LlmAgent` that may be plain."""


def plain_values(agent: LlmAgent) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return an agent's plain values that are not the defaults, as JSON, and the names of the fields that are code."""
    values: dict[str, Any] = {}
    code: list[str] = []
    for name in sorted(PINNABLE):
        value = getattr(agent, name)
        if value == LlmAgent.model_fields[name].get_default(call_default_factory=True):
            continue
        try:
            values[name] = _to_json(name, value)
        except _NoData:
            code.append(name)
    return values, tuple(code)


class _NoData(Exception):
    """A value does not survive JSON."""


@lru_cache
def _adapter(name: str) -> TypeAdapter[Any]:
    annotation: Any = LlmAgent.model_fields[name].annotation
    return TypeAdapter(annotation)


def _to_json(name: str, value: Any) -> Any:
    bare = _without_unpinned(value)
    try:
        if hasattr(bare, "model_dump"):
            data = bare.model_dump(mode="json", by_alias=True, exclude_none=True)
        else:
            data = _adapter(name).dump_python(bare, mode="json", exclude_none=True, warnings="error")
        back = _adapter(name).validate_python(data)
    except Exception as error:
        raise _NoData from error
    if back != bare:
        raise _NoData
    return data


def _without_unpinned(value: Any) -> Any:
    unpinned = {name: None for name in _UNPINNED if getattr(value, name, None) is not None}
    return value.model_copy(update=unpinned) if unpinned else value


def pinned_trees(root: Node, known: Mapping[str, BaseAgent]) -> list[BaseAgent]:
    """Return what is pinned of a plan: its tree; or of a graph, which is code, the trees of the agents in it.

    Args:
        root: The plan's root.
        known: Today's agents, by name.
    """
    of_graph = isinstance(root, CustomNode) and root.graph is not None
    trees = [_pinned_tree(node, known) for node in (root.sub_agents if of_graph else (root,))]
    return [tree for tree in trees if tree is not None]


def _pinned_tree(root: Node, known: Mapping[str, BaseAgent]) -> BaseAgent | None:
    """Return copies of today's agents in a plan's tree, with the plan's plain values; `None` without the root.

    Args:
        root: The tree's root in the plan.
        known: Today's agents, by name. What a plan has beside them is left out; a step of its own asks for it by name.
    """
    agent = known.get(root.name)
    if agent is None:
        return None
    children = [child for node in root.sub_agents if (child := _pinned_tree(node, known)) is not None]
    update: dict[str, Any] = {"description": root.description, "parent_agent": None}
    if isinstance(root, CustomNode):
        held = {one.name for one in held_by(agent)}
        update |= _fields_of(agent, {one.name: one for child in children for one in walk(child)})
        children = [child for child in children if child.name not in held]
    update["sub_agents"] = children
    if isinstance(root, LlmNode) and isinstance(agent, LlmAgent):
        update |= _values(root, agent)
        update["tools"] = _tools(root, agent)
    pinned = agent.model_copy(update=update)
    for child in children:
        child.parent_agent = pinned
    return pinned


def _fields_of(agent: BaseAgent, pinned: Mapping[str, BaseAgent]) -> dict[str, Any]:
    """Return a custom agent's fields that hold an agent, with what is pinned in its place."""
    held = {name: value for name, value in vars(agent).items() if isinstance(value, BaseAgent)}
    return {name: pinned[value.name] for name, value in held.items() if value.name in pinned}


def _values(node: LlmNode, agent: LlmAgent) -> dict[str, Any]:
    update: dict[str, Any] = {}
    for name in PINNABLE.difference(node.code):
        today = getattr(agent, name)
        if name not in node.values:
            update[name] = LlmAgent.model_fields[name].get_default(call_default_factory=True)
            continue
        value = _adapter(name).validate_python(node.values[name])
        kept = {field: getattr(today, field, None) for field in _UNPINNED if hasattr(value, field)}
        update[name] = value.model_copy(update=kept) if kept else value
    if isinstance(agent.instruction, str) and not node.dynamic_instruction:
        update["instruction"] = node.instruction
    if not isinstance(agent.model, BaseLlm) and agent.model:
        update["model"] = node.model
    return update


def _tools(node: LlmNode, agent: LlmAgent) -> list[Any]:
    """Return today's tools by the plan's names, in its order, and then the toolsets."""
    given = cast("list[Any]", agent.tools)  # pyright: ignore[reportUnknownMemberType] -- a bare `Callable` is in it
    by_name = {tool_name(tool): tool for tool in given if not isinstance(tool, BaseToolset)}
    names = [tool.name for tool in node.tools]
    if names != [*by_name]:
        given = [by_name[name] for name in names if name in by_name]
        given += [tool for tool in cast("list[Any]", agent.tools) if isinstance(tool, BaseToolset)]  # pyright: ignore[reportUnknownMemberType]
    return [_described(tool, node) for tool in given]


def _described(tool: Any, node: LlmNode) -> Any:
    planned = node.tool(tool_name(tool))
    if not isinstance(tool, AgentTool) or planned is None or planned.agent is None:
        return tool
    if tool.description == planned.agent.description or tool.description != tool.agent.description:
        return tool
    described = copy(tool)
    described.description = planned.agent.description
    return described
