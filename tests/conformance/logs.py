"""Scenarios as values: their plans, and their expected logs as events. No server, no agent code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.genai import types

from perdure.journal.events import Event
from perdure.plan.nodes import (
    EXIT_LOOP,
    CustomNode,
    LlmNode,
    LoopNode,
    Node,
    ParallelNode,
    Plan,
    SequentialNode,
    ToolPlan,
)
from tests.conformance.scenario import (
    AgentSpec,
    CustomSpec,
    LlmSpec,
    LoopSpec,
    ParallelSpec,
    ProgramSpec,
    Scenario,
    SequentialSpec,
    ToolSpec,
    find,
    load,
)

FOLDER = Path(__file__).parent / "scenarios"
"""The scenarios that came with the format; left as they are."""

EXTRA = Path(__file__).parent / "extra"
"""Perdure's own: what went wrong once."""

MORE = Path(__file__).parent / "more"
"""Perdure's own: combinations whose logs come from ADK itself, or from it with the rules of SEMANTICS.md."""


def all_scenarios() -> list[Scenario]:
    """Return the scenarios that the project keeps, in order of name, its own last."""
    return [load(path) for path in find([FOLDER, EXTRA, MORE])]


def plan_of(scenario: Scenario) -> Plan:
    """Return the plan of a scenario's app, without declarations of its tools' parameters."""
    return Plan(app=scenario.app.name, resumable=scenario.app.resumable, root=_node(scenario.app.root, scenario.tools))


def _node(spec: AgentSpec, tools: dict[str, ToolSpec]) -> Node:
    children = tuple(_node(child, tools) for child in spec.sub_agents)
    match spec:
        case LlmSpec():
            return LlmNode(
                name=spec.name,
                sub_agents=children,
                model="scripted",
                instruction=spec.instruction,
                tools=tuple(_tool(name, tools.get(name)) for name in spec.tools),
                output_key=spec.output_key,
                include_contents=spec.include_contents,
                disallow_transfer_to_parent=spec.disallow_transfer_to_parent,
                disallow_transfer_to_peers=spec.disallow_transfer_to_peers,
            )
        case SequentialSpec():
            return SequentialNode(name=spec.name, sub_agents=children)
        case LoopSpec():
            return LoopNode(name=spec.name, sub_agents=children, max_iterations=spec.max_iterations)
        case ParallelSpec():
            return ParallelNode(name=spec.name, sub_agents=children)
        case CustomSpec():
            return CustomNode(name=spec.name, sub_agents=children, code="tests.conformance.steps_agent:StepsAgent")
        case ProgramSpec():
            return CustomNode(name=spec.name, sub_agents=children, code="tests.prove.program_agent:ProgramAgent")


def _tool(name: str, spec: ToolSpec | None) -> ToolPlan:
    declaration = types.FunctionDeclaration(name=name)
    if spec is None:
        return ToolPlan(name=name, kind="exit_loop" if name == EXIT_LOOP else "transfer", declaration=declaration)
    return ToolPlan(
        name=name,
        kind="long_running" if spec.long_running else "function",
        declaration=declaration,
        confirmation="always" if spec.confirm else "never",
    )


def expected_turns(scenario: Scenario) -> Iterator[list[Event]]:
    """Yield the events that each turn must append; a failed turn has no event of its own."""
    number = 0
    for turn in scenario.expect.turns:
        events: list[Event] = []
        for item in turn:
            if "author" in item:
                number += 1
                events.append(event_of(item, number))
        yield events


def event_of(item: dict[str, Any], number: int) -> Event:
    """Return the event that an item of the normal form describes."""
    content: dict[str, Any] | None = None
    if "parts" in item:
        from_user = item["author"] == "user" or any("response" in part for part in item["parts"])
        content = {"role": "user" if from_user else "model", "parts": [_part(part) for part in item["parts"]]}
    return Event.model_validate(
        {
            "id": f"ev-{number}",
            "timestamp": float(number),
            "author": item["author"],
            "invocation_id": item["invocation"],
            "branch": item["branch"],
            "content": content,
            "error_code": item.get("error_code"),
            "finish_reason": item.get("finish_reason"),
            "long_running_tool_ids": item.get("long_running"),
            "actions": item.get("actions", {}),
        }
    )


def _part(part: dict[str, Any]) -> dict[str, Any]:
    names = {"call": "function_call", "response": "function_response"}
    return {names.get(kind, kind): value for kind, value in part.items()}
