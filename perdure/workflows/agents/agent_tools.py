"""Runs google.adk's tools that run an agent: the agent in a scope of its own under the call, each step by itself.

The tool's own code runs twice around that: up to where it runs the agent, and from there with what the agent logged.
"""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from perdure.errors import EffectFailed
from perdure.journal.entries import Failure, InvocationStarted, ScopeBegan
from perdure.journal.tool_output import AgentAsked, ToolOutput
from perdure.messages.session import ToolInput
from perdure.plan.nodes import ToolPlan
from perdure.workflows.agents.callbacks import begin_turn, end_turn
from perdure.workflows.agents.scope import Scope
from perdure.workflows.agents.tool_runs import run_tool
from perdure.workflows.run.log import new_id


async def run_agent_tool(scope: Scope, tool: ToolPlan, call: ToolInput, begun: Callable[[], None]) -> ToolOutput:
    """Run a tool and its agent; returns the tool's output.

    Args:
        scope: The invocation.
        tool: The tool.
        call: Its call.
        begun: Called once the agent is to run, with a state of its own.

    Raises:
        EffectFailed: The tool failed; or the agent did, and the tool's callbacks had no answer to that.
    """
    if call.function_call_id not in scope.projection.scopes:
        output = await run_tool(scope, tool, call)
        if output.asks is None:
            # A callback has answered.
            return output
        _begin(scope, call, output.asks)
    begun()
    await _run(scope, call)
    scope.progress.check_stopped()
    return await run_tool(scope, tool, call)


def _begin(scope: Scope, call: ToolInput, asked: AgentAsked) -> None:
    scope.log.append(
        ScopeBegan(
            invocation_id=call.invocation_id,
            call_id=call.function_call_id,
            agent=call.agent,
            tool=call.tool,
            asked=asked,
            event_id=new_id(),
            timestamp=workflow.time(),
        )
    )


async def _run(around: Scope, call: ToolInput) -> None:
    """Run the agent from where it stopped to its end, or until it fails."""
    plan = around.plan.scope(call.agent, call.tool)
    assert plan is not None, "the tool runs an agent"
    scope = around.within(call.function_call_id, plan)
    if scope.invocation.status in ("failed", "finished"):
        return
    try:
        if scope.invocation.status == "queued" and await _ends_at_once(scope):
            return
        await scope.run_agent(scope, plan.root, scope.runs().root)
        await end_turn(scope, plan.root.name)
    except EffectFailed as failed:
        failure = Failure(agent=failed.agent, step=failed.step, cause=failed.cause)
        scope.log.settle(scope.invocation.id, "failed", failures=(failure,))
    else:
        scope.log.settle(scope.invocation.id, "finished")


async def _ends_at_once(scope: Scope) -> bool:
    """Begin the agent's run with the tool's message; returns whether a plugin has answered in its place."""
    agent = scope.plan.root.name
    step = await begin_turn(scope, agent)
    scope.log.append(
        InvocationStarted(
            invocation_id=scope.invocation.id,
            agent=agent,
            plan=scope.plan.digest,
            timestamp=workflow.time(),
            content=step.message,
        )
    )
    await scope.log_beside(step)
    if step.ended:
        await end_turn(scope, agent)
        scope.log.settle(scope.invocation.id, "finished")
    return step.ended
