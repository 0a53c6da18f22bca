"""Compares two plans, agent by agent. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from perdure.plan.nodes import LlmNode, Node, Plan, ToolPlan

_OWN_LINE = frozenset({"name", "sub_agents", "tools", "instruction"})
"""Fields of a node that are compared in a way of their own."""


class Change(BaseModel):
    """One difference from the first plan to the second."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["added", "removed", "moved", "changed"]
    what: Literal["app", "agent", "tool", "instruction"]
    agent: str | None = None
    """The agent that it is about; `None` for the app."""
    name: str | None = None
    """The tool, or the option."""
    before: Any = None
    """The value in the first plan, where that is short; of a moved agent, where it stood."""
    after: Any = None
    """The same in the second plan."""
    diff: tuple[str, ...] = ()
    """For an instruction, the lines of a unified diff."""


def diff_plans(before: Plan, after: Plan) -> tuple[Change, ...]:
    """Return how `after` differs from `before`: app first, then the agents in the order of `after`; empty if equal."""
    return (
        *_changed("app", None, _options(before, {"root"}), _options(after, {"root"})),
        *_removed(before, after),
        *(change for name in after.nodes for change in _agent(before, after, name)),
    )


def _removed(before: Plan, after: Plan) -> Iterator[Change]:
    for name in before.nodes:
        if name not in after.nodes:
            yield Change(kind="removed", what="agent", agent=name, before=_place(before, name))


def _agent(before: Plan, after: Plan, name: str) -> Iterator[Change]:
    old, new = before.nodes.get(name), after.nodes[name]
    if old is None:
        yield Change(kind="added", what="agent", agent=name, after=_place(after, name))
        return
    yield from _moved(before, after, name)
    yield from _reordered(old, new)
    if isinstance(old, LlmNode) and isinstance(new, LlmNode):
        yield from _instruction(old, new)
        yield from _tools(old, new)
        yield from _agents_of_tools(before, after, old, new)
    yield from _changed("agent", name, _agent_options(old), _agent_options(new))


def _moved(before: Plan, after: Plan, name: str) -> Iterator[Change]:
    old, new = _place(before, name), _place(after, name)
    if old != new:
        yield Change(kind="moved", what="agent", agent=name, before=old, after=new)


def _reordered(old: Node, new: Node) -> Iterator[Change]:
    """Compare the order of those sub-agents that both have."""
    names = {child.name for child in old.sub_agents} & {child.name for child in new.sub_agents}
    first, second = ([child.name for child in node.sub_agents if child.name in names] for node in (old, new))
    if first != second:
        yield Change(kind="changed", what="agent", agent=new.name, name="order", before=first, after=second)


def _place(plan: Plan, name: str) -> str:
    parent = plan.parents.get(name)
    return f"under {parent.name}" if parent is not None else "at the root"


def _instruction(old: LlmNode, new: LlmNode) -> Iterator[Change]:
    if old.instruction != new.instruction:
        lines = difflib.unified_diff(
            old.instruction.splitlines(), new.instruction.splitlines(), "run", "code", n=1, lineterm=""
        )
        yield Change(kind="changed", what="instruction", agent=new.name, diff=tuple(lines))


def _tools(old: LlmNode, new: LlmNode) -> Iterator[Change]:
    for tool in old.tools:
        if new.tool(tool.name) is None:
            yield Change(kind="removed", what="tool", agent=new.name, name=tool.name)
    for tool in new.tools:
        known = old.tool(tool.name)
        if known is None:
            yield Change(kind="added", what="tool", agent=new.name, name=tool.name)
        elif known != tool:
            yield from _changed("tool", new.name, _tool_options(known), _tool_options(tool), tool.name)


def _agents_of_tools(before: Plan, after: Plan, old: LlmNode, new: LlmNode) -> Iterator[Change]:
    """Compare the agents that the tools run which both have."""
    for tool in new.tools:
        first, second = before.scope(old.name, tool.name), after.scope(new.name, tool.name)
        if first is not None and second is not None:
            yield from _removed(first, second)
            yield from (change for name in second.nodes for change in _agent(first, second, name))


def _changed(
    what: Literal["app", "agent", "tool"],
    agent: str | None,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    prefix: str | None = None,
) -> Iterator[Change]:
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            name = f"{prefix}.{key}" if prefix else key
            yield Change(kind="changed", what=what, agent=agent, name=name, before=old.get(key), after=new.get(key))


def _options(model: BaseModel, without: set[str] | frozenset[str]) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=set(without))


def _agent_options(node: Node) -> dict[str, Any]:
    """Return a node's fields, its further values beside the others."""
    fields = _options(node, _OWN_LINE)
    return fields | fields.pop("values", {})


def _tool_options(tool: ToolPlan) -> dict[str, Any]:
    """Return a tool's fields, those of its options and its declaration beside the others."""
    fields = _options(tool, {"options", "declaration", "agent"})
    if tool.agent is not None:
        fields["agent"] = tool.agent.name
    options = {f"options.{key}": value for key, value in _options(tool.options, set()).items()}
    return fields | options | {f"declaration.{key}": value for key, value in _options(tool.declaration, set()).items()}


def describe_plan(plan: Plan) -> Iterator[str]:
    """Yield a plan as lines of text: the app with its digest, then the tree of agents."""
    resumable = "resumable" if plan.resumable else "not resumable"
    yield f"{plan.app} ({resumable}), plan {plan.digest[:12]}"
    if plan.activities:
        yield f"  activities: {', '.join(plan.activities)}"
    yield from _describe_node(plan.root, "  ")


def _describe_node(node: Node, indent: str) -> Iterator[str]:
    facts: list[str] = [node.kind]
    if isinstance(node, LlmNode):
        facts.append(node.model)
        if node.output_schema is not None:
            facts.append("answers by a schema")
    elif node.kind == "custom":
        facts.append(node.code)
    elif node.kind == "loop" and node.max_iterations is not None:
        facts.append(f"at most {node.max_iterations} times")
    yield f"{indent}{node.name} ({', '.join(facts)}){f': {node.description}' if node.description else ''}"
    if isinstance(node, LlmNode):
        words = "(a function)" if node.dynamic_instruction else _short(node.instruction)
        if words:
            yield f"{indent}  instruction: {words}"
        for tool in node.tools:
            yield f"{indent}  tool {tool.name}{_tool_notes(tool)}"
            if tool.agent is not None:
                yield from _describe_node(tool.agent, indent + "    ")
    for child in node.sub_agents:
        yield from _describe_node(child, indent + "  ")


def _tool_notes(tool: ToolPlan) -> str:
    notes = [] if tool.kind == "function" else [tool.kind.replace("_", "-")]
    if tool.confirmation != "never":
        notes.append("asks for confirmation" if tool.confirmation == "always" else "may ask for confirmation")
    if tool.on_failure == "tell_model":
        notes.append("tells the model of failures")
    if tool.skip_summarization:
        notes.append("ends the turn")
    return f" ({', '.join(notes)})" if notes else ""


def describe_change(change: Change) -> Iterator[str]:
    """Yield one difference as lines of text."""
    about = f"agent {change.agent}" if change.agent is not None else "app"
    if change.what == "instruction":
        yield f"~ {about}: instruction"
        yield from (f"    {line}" for line in change.diff)
        return
    if change.what == "tool" and change.kind in ("added", "removed"):
        about += f": tool {change.name}"
    sign = {"added": "+", "removed": "-", "moved": "~", "changed": "~"}[change.kind]
    if change.kind == "changed":
        what = f"tool {change.name}" if change.what == "tool" else change.name
        yield f"{sign} {about}: {what}: {_value(change.before)} → {_value(change.after)}"
    elif change.kind == "moved":
        yield f"{sign} {about}: {change.before} → {change.after}"
    else:
        place = change.after or change.before
        yield f"{sign} {about}{f' ({place})' if place else ''}"


def _value(value: Any) -> str:
    return "(none)" if value is None else _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:99]}…"
