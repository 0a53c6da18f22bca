"""Runs the sub-agents to which google.adk 2's LLM agents give tasks: for a single turn, or in talk with the user.

ADK: `workflow/_llm_agent_wrapper.py`, and `_SingleTurnAgentTool`. A sub-agent runs as a node under the call, on a
branch of its own; one that talks with the user in an isolation scope of its own, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.genai import types
from temporalio import workflow

from perdure.errors import EffectFailed
from perdure.journal.entries import FailureCaught
from perdure.journal.events import USER, Event
from perdure.journal.node_runs import NodeRun
from perdure.journal.runs import AgentRun, place_of, upwards
from perdure.journal.tasks import find_end, task_branch
from perdure.journal.tool_output import AgentAsked, ToolOutput
from perdure.messages.session import ToolInput
from perdure.plan.nodes import CustomNode, LlmNode, ToolPlan
from perdure.rules.llm_turns import has_spoken
from perdure.workflows.agents.callbacks import after_agent, before_agent
from perdure.workflows.agents.scope import Scope
from perdure.workflows.agents.tool_runs import run_tool
from perdure.workflows.run.step_failures import told


def take_place(scope: Scope, node: LlmNode, run: AgentRun) -> None:
    """Give the run of an agent that has no task its place among the nodes; others get theirs with their task."""
    if not scope.plan.has_tasks or run.node is not None or _scope(run) is not None or _within_node(scope, run):
        return
    path = "/".join(f"{name}@1" for name in scope.plan.path(node.name))
    if node.mode == "task":
        _begin(scope, run, NodeRun(path=path, scope=path, input=scope.invocation.message.content))
    else:
        _begin(scope, run, NodeRun(path=path))


def _within_node(scope: Scope, run: AgentRun) -> bool:
    """Return whether an agent works for one that is a node of a graph: all that it says is that node's."""
    nodes = scope.plan.nodes
    return any(isinstance(node := nodes[up.agent], CustomNode) and node.graph is not None for up in upwards(run))


async def listen(scope: Scope, node: LlmNode, run: AgentRun) -> None:
    """End a turn of an agent that does a task, and wait until the user says something.

    Raises:
        EffectFailed: A callback raised.
    """
    await after_agent(scope, node, run)
    last = next((one for one in reversed(scope.projection.own_events) if one.author == node.name), None)
    if scope.plan.shows_checkpoints and last is not None and not last.actions.end_of_agent:
        scope.end(node, run)
    with scope.waits.until(lambda: not has_spoken(scope.facts, run)) as replied:
        await workflow.wait_condition(replied)
    scope.progress.check_stopped()


async def begin_anew(scope: Scope, node: LlmNode, run: AgentRun) -> bool:
    """Begin an agent's run again, with the callbacks before it, as google.adk does; returns whether it is to run.

    Raises:
        EffectFailed: One raised.
    """
    assert run.node is not None, "it has a place"
    run.checkpoints += 1
    run.children.clear()
    run.called_back.clear()
    _begin(scope, run, run.node)
    return await before_agent(scope, node, run)


async def run_task(scope: Scope, run: AgentRun, call: types.FunctionCall) -> Event:
    """Have a sub-agent do the task of a call, for days, if need be; returns the event that tells its result.

    Raises:
        EffectFailed: The sub-agent failed.
    """
    name, call_id = call.name or "", call.id or ""
    below = _run_below(scope, run, name, call_id)
    if below.begun_after is None:
        _begin(scope, below, NodeRun(path=f"{_path(run)}/{name}@{call_id}", scope=call_id))
    if find_end(scope.projection.own_events, call_id, scope.invocation.id) is None:
        # It has ended a turn, if anything.
        below.ended = False
        await scope.run_agent(scope, scope.plan.nodes[name], below)
    end = find_end(scope.projection.own_events, call_id, scope.invocation.id)
    result = end.output if end is not None else None
    response = types.FunctionResponse(id=call_id, name=name, response=_as_response(result))
    content = types.Content(role=USER, parts=[types.Part(function_response=response)])
    return Event(author=USER, content=content, branch=run.branch)


def _as_response(result: Any) -> dict[str, Any]:
    return result if isinstance(result, dict) else {"output": result}  # pyright: ignore[reportUnknownVariableType] -- JSON


async def run_single_turn(
    scope: Scope, tool: ToolPlan, call: ToolInput, run: AgentRun, begun: Callable[[], None]
) -> ToolOutput:
    """Run a tool and, between the two halves of its code, its sub-agent; returns the tool's output.

    Args:
        scope: The invocation.
        tool: The tool.
        call: Its call.
        run: The run of the agent that calls.
        begun: Called once the callbacks before the sub-agent have run.

    Raises:
        EffectFailed: The tool failed. What its sub-agent failed of it has been told.
    """
    below = _run_below(scope, run, tool.name, call.function_call_id)
    if below.begun_after is None:
        output = await run_tool(scope, tool, call)
        if output.asks is None:
            # A callback has answered, or its arguments are wrong.
            return output
        place = NodeRun(
            path=f"{_path(run)}/{tool.name}@1",
            input=output.asks.content if output.asks.content.parts else None,
            scope=_scope(run),
            answers=True,
        )
        if output.asks.state:
            # Other calls of the answer have written it, and no event holds it yet.
            scope.keep_state(output.asks.state)
        _begin(scope, below, place, output.asks)
    if not below.ended and below.failure is None:
        await _run_to_its_end(scope, run, below, begun)
    scope.progress.check_stopped()
    return await run_tool(scope, tool, call)


async def _run_to_its_end(scope: Scope, run: AgentRun, below: AgentRun, begun: Callable[[], None]) -> None:
    node = scope.plan.nodes[below.agent]
    try:
        if await before_agent(scope, node, below):
            begun()
            await scope.run_agent(scope, node, below)
    except EffectFailed as failed:
        scope.progress.told([failed])
        scope.log.append(
            FailureCaught(
                invocation_id=scope.invocation.id,
                agent=run.agent,
                branch=run.branch,
                run=run.path,
                failures=tuple(told(failed)),
                sub_run=below.path,
            )
        )


def with_result(response: Event, outputs: Mapping[str, ToolOutput], run: AgentRun) -> Event:
    """Return a response event with the result of the agent's task as the node's output, if it ends that."""
    results = [output.task_result for output in outputs.values() if output.task_result is not None]
    if not results or run.node is None:
        return response
    node_info = {"outputFor": [run.node.path, *run.node.output_for]}
    return response.model_copy(update={"output": results[-1], "node_info": node_info})


def _run_below(scope: Scope, run: AgentRun, agent: str, call_id: str) -> AgentRun:
    """Return the run of a sub-agent under a call, begun or not."""
    branch = task_branch(run.branch, agent, call_id)
    known = [below for below in run.children if below.agent == agent]
    found = next((below for below in known if below.branch == branch), None)
    if found is None:
        found = run.begin(agent, branch, len(known) + 1)
        run.children.append(found)
    return found


def _begin(scope: Scope, run: AgentRun, node: NodeRun, asked: AgentAsked | None = None) -> None:
    run.node = node
    run.begun_after = scope.projection.events[-1].id if scope.projection.events else ""
    scope.log_begin(run, node, asked)


def _path(run: AgentRun) -> str:
    place = place_of(run)
    return place.path if place is not None else ""


def _scope(run: AgentRun) -> str | None:
    place = place_of(run)
    return place.scope if place is not None else None
