"""Runs the callbacks before and after google.adk's agents, each in a step of its own, once."""

from __future__ import annotations

from perdure.journal.runs import AgentRun
from perdure.messages.session import Callback, CallbackInput
from perdure.plan.nodes import Node, ToolOptions
from perdure.workflows.agents.scope import Scope

_OPTIONS = ToolOptions(max_attempts=15)
"""What a callback raises fails the step at once; what died with its worker runs again."""


async def before_agent(scope: Scope, node: Node, run: AgentRun) -> bool:
    """Run the callbacks before an agent, if they have not run; returns whether the agent is to run.

    Raises:
        EffectFailed: One raised.
    """
    if not node.before or "before" in run.called_back:
        return True
    ended = await _call_back(scope, run, "before")
    if ended:
        # As in ADK, which skips the callbacks behind it, too, and logs no end.
        scope.end(node, run, hidden=True)
    return not ended


async def after_agent(scope: Scope, node: Node, run: AgentRun) -> None:
    """Run the callbacks after an agent, if they have not run.

    Raises:
        EffectFailed: One raised.
    """
    if node.after and "after" not in run.called_back:
        await _call_back(scope, run, "after")


async def _call_back(scope: Scope, run: AgentRun, which: Callback) -> bool:
    scope.progress.check_stopped()
    call = CallbackInput(
        which=which,
        agent=run.agent,
        invocation_id=scope.invocation.id,
        branch=run.branch,
        run=scope.name_of(run),
        journal=scope.carrier.slice(scope.projection),
    )
    with scope.slice_under_way(call.journal) as witness:
        step = await scope.activities.callback(call, _OPTIONS, witness)
    for event in await scope.log_step(step, run, of=which):
        run.escalated |= bool(event.actions.escalate)
    return step.ended
