"""Runs google.adk 2's tools that give sub-agents tasks, without the sub-agent: the workflow runs that.

A tool of an agent of mode `single_turn` runs up to where it would run its agent, and on from there with what that said.
One of mode `task` runs no code: google.adk's loop around the agent, here the workflow, does what it stands for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, Literal

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event as AdkEvent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext

from perdure.adk import graph_internals
from perdure.adk.events import actions_of, changed_state, plain_state
from perdure.adk.supported import mode_of
from perdure.adk.tools.agent_tools import Asks, restore
from perdure.journal.entries import RunBegan
from perdure.journal.invocations import Invocation
from perdure.journal.run_tree import build_runs
from perdure.journal.runs import AgentRun
from perdure.journal.tasks import FINISH_TASK
from perdure.journal.tool_output import AgentAsked
from perdure.plan.nodes import Plan
from perdure.steps.base import ToolCall

__all__ = ["as_single_turn", "asking", "begun", "delegation_of", "take_result", "told"]


def delegation_of(tool: object) -> Literal["task", "single_turn"] | None:
    """Return how a tool has a sub-agent work, if it is one that google.adk gave an agent for that."""
    return graph_internals.delegation_of(tool) if isinstance(tool, AgentTool) else None


def as_single_turn(agent: BaseAgent) -> BaseAgent:
    """Return an agent as google.adk runs it for a single turn: it is shown nothing but its task."""
    shown = isinstance(agent, LlmAgent) and "include_contents" not in agent.model_fields_set
    return agent.model_copy(update={"include_contents": "none"}) if shown else agent


def begun(plan: Plan, invocation: Invocation, path: str, tool: str, branch: str) -> tuple[RunBegan, AgentRun] | None:
    """Return the run that a call's tool began, with how it began; `None` if it is still to begin.

    Args:
        plan: The invocation's plan.
        invocation: The invocation.
        path: The agent run that made the call.
        tool: The tool, and so the sub-agent.
        branch: The run's branch.
    """
    entries = [one for one in invocation.entries if isinstance(one, RunBegan) and one.agent == tool]
    began = next((one for one in entries if one.branch == branch and one.run.rpartition("/")[0] == path), None)
    if began is None:
        return None
    return began, build_runs(plan, invocation.agent or plan.root.name, invocation.entries).runs[began.run]


def asking(tool: AgentTool, logged: dict[str, Any]) -> AgentTool:
    """Return a tool that raises `Asks` where it would run its agent; `logged` is the state in the log."""

    async def run_async(_: AgentTool, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        # The tool's own code may change it.
        given, actions = dict(args), tool_context.actions.model_copy(deep=True)

        async def run_node(_: object, node_input: object = None, **__: object) -> Any:
            content = graph_internals.content_of(tool.agent, node_input)
            seen = changed_state(logged, tool_context.session.state)
            raise Asks(AgentAsked(content=content, state=seen, args=plain_state(given), actions=actions_of(actions)))

        _take_over(tool_context, run_node)
        return await type(tool).run_async(tool, args=args, tool_context=tool_context)

    return _changed(tool, run_async)


def told(tool: AgentTool, began: RunBegan, run: AgentRun) -> AgentTool:
    """Return a tool that, where it would run its agent, gets what that has said, or fails as that did."""
    asked = began.asked
    assert asked is not None, "the tool has asked for its agent"

    async def run_node(*_: object, **__: object) -> Any:
        if run.failure is not None:
            raise graph_internals.node_failed(run.agent, run.failure.failures[0].cause)
        said = [event for event in run.log if (event.node_info or {}).get("outputFor")]
        if not said:
            return None
        last = said[-1]
        if last.output is not None:
            return last.output
        return "".join(part.text or "" for part in last.parts if not part.thought)

    async def run_async(_: AgentTool, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        # In place: callbacks behind the tool are to see them, too.
        args.clear()
        args.update(asked.args)
        restore(tool_context, asked.actions)
        _take_over(tool_context, run_node)
        return await type(tool).run_async(tool, args=args, tool_context=tool_context)

    return _changed(tool, run_async)


def _take_over(context: ToolContext, run_node: Callable[..., Awaitable[Any]]) -> None:
    """Have what a tool's context is to run be run by this, in this step."""
    vars(context)["run_node"] = run_node


def _changed(tool: AgentTool, run_async: Any) -> AgentTool:
    changed = copy(tool)
    changed.__class__ = type(type(tool).__name__, (type(tool),), {"run_async": run_async})
    return changed


def take_result(agent: LlmAgent, call: ToolCall, event: AdkEvent) -> Any:
    """Return the result of an agent's task, where a call's response ends it; else `None`. It is its output, too.

    ADK: `run_llm_agent_as_node`.
    """
    if mode_of(agent) != "task" or call.tool != FINISH_TASK or not graph_internals.ends_task(event):
        return None
    key, args = graph_internals.result_key(agent), dict(call.args)
    result = args[key] if key is not None and key in args else args
    if agent.output_key:
        event.actions.state_delta[agent.output_key] = result
    return result
