"""Runs sequential, loop and parallel agents, as `perdure.rules.next_agents` decides.

A child's run ends only when it is through: a pause is an await somewhere underneath, so nothing here knows of pauses.
"""

from __future__ import annotations

import asyncio

from perdure.errors import EffectFailed
from perdure.journal.runs import AgentRun
from perdure.plan.nodes import LoopNode, ParallelNode, SequentialNode
from perdure.rules.next_agents import Branch, End, Enter, all_branches, child_behind, first_child, stops_behind
from perdure.workflows.agents.callbacks import after_agent
from perdure.workflows.agents.scope import Scope


async def run_in_turn(scope: Scope, node: SequentialNode | LoopNode, run: AgentRun) -> bool:
    """Run the sub-agents of a sequential or loop agent, a checkpoint before each."""
    step, scheduled = first_child(node, run), scope.progress.scheduled
    # What escalated in earlier iterations has no say in this one.
    escalated = isinstance(node, SequentialNode) and run.state is not None and run.escalated
    while isinstance(step, Enter):
        child = node.sub_agents[step.index]
        if step.checkpoint is not None:
            scope.checkpoint(node, run, step.checkpoint)
        below = run.resume(child.name, run.branch) if step.resumes else run.begin(child.name, run.branch)
        escalated |= await scope.run_agent(scope, child, below)
        if scope.interrupted:
            return escalated
        last = step.iteration
        step = child_behind(node, step, escalated=escalated, stops=stops_behind(scope.plan, below))
        if step.iteration > last:
            if scope.progress.scheduled == scheduled:
                # A loop of agents that do nothing must not keep the workflow task for ever.
                await asyncio.sleep(1)
            scheduled = scope.progress.scheduled
    return await _end(scope, node, run, step, escalated=escalated)


async def run_parallel(scope: Scope, node: ParallelNode, run: AgentRun) -> bool:
    """Run the sub-agents at once, each on a branch of its own.

    A branch that fails does not cancel the others: they run to their end or pause first.

    Raises:
        EffectFailed: A branch failed, and all others are through.
    """
    step = all_branches(node, run.branch, run)
    if isinstance(step, End):
        return await _end(scope, node, run, step, escalated=False)
    if step.checkpoint is not None:
        scope.checkpoint(node, run, step.checkpoint)

    async def run_branch(branch: Branch) -> bool:
        child = node.sub_agents[branch.index]
        with scope.progress.branch():
            return await scope.run_agent(scope, child, run.resume(child.name, branch.name))

    results = await asyncio.gather(*map(run_branch, step.branches), return_exceptions=True)
    failures = [result for result in results if isinstance(result, EffectFailed)]
    # From here on the agent above is told, which may deal with it.
    scope.progress.told(failures)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, EffectFailed):
            raise result
    if failures:
        first, *others = failures
        # It may stand for branches of its own already.
        first.beside += others
        raise first
    return await _end(scope, node, run, End(), escalated=any(results) or run.escalated)


async def _end(
    scope: Scope, node: SequentialNode | LoopNode | ParallelNode, run: AgentRun, end: End, *, escalated: bool
) -> bool:
    if not end.is_logged:
        return False
    await after_agent(scope, node, run)
    scope.end(node, run)
    return escalated
