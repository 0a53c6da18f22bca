"""Runs google.adk's tools that run nodes: their code in steps, as a graph's, and beside these the agents among them."""

from __future__ import annotations

from perdure.errors import EffectFailed
from perdure.journal.runs import AgentRun
from perdure.journal.tasks import task_branch
from perdure.journal.tool_output import ToolOutput
from perdure.messages.session import ToolInput
from perdure.plan.nodes import CustomNode
from perdure.workflows.agents.code_steps import CodeSteps
from perdure.workflows.agents.scope import Scope


async def run_node_tool(scope: Scope, call: ToolInput, run: AgentRun) -> ToolOutput:
    """Run a tool, and what it runs, to its end; returns its output, which is kept, so that nothing of it runs again.

    Raises:
        EffectFailed: It failed, or what it ran, and its callbacks had no answer to that.
    """
    node = scope.plan.nodes[f"{call.agent}.{call.tool}"]
    assert isinstance(node, CustomNode), "so a plan has it"
    below = _run_below(run, node.name, task_branch(run.branch, call.tool, call.function_call_id))
    try:
        step = await CodeSteps(scope, node, below).run_code()
    except EffectFailed as failed:
        if failed.agent != node.name:
            raise
        raise EffectFailed(call.agent, call.tool, failed.cause) from failed
    output = (step.output if step is not None else None) or ToolOutput()
    if not (output.actions.requested_tool_confirmations or output.actions.requested_auth_configs):
        # Otherwise it runs again with what a person says.
        scope.keep(call.function_call_id, output)
    scope.end(node, below, hidden=True)
    return output


def _run_below(run: AgentRun, node: str, branch: str) -> AgentRun:
    """Return the run of a call's code: the one that goes on, or another one."""
    known = [below for below in run.children if below.agent == node]
    found = next((below for below in known if below.branch == branch and not below.ended), None)
    if found is None:
        found = run.begin(node, branch, len(known) + 1)
        run.children.append(found)
    return found
