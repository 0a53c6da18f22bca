"""Runs sequential, loop and parallel agents (SEMANTICS.md).

A child's run ends only when it is through: a pause is an await somewhere underneath, so nothing here knows of pauses.
"""

from __future__ import annotations

import asyncio

from perdure.errors import EffectFailed
from perdure.journal.runs import AgentRun, current_child, times_looped
from perdure.plan.nodes import LoopNode, Node, ParallelNode, SequentialNode
from perdure.workflows.agents.callbacks import after_agent
from perdure.workflows.agents.scope import Scope


async def run_sequential(scope: Scope, node: SequentialNode, run: AgentRun) -> bool:
    """Run the sub-agents one after the other, a checkpoint before each."""
    current, start = current_child([child.name for child in node.sub_agents], run)
    escalated = run.state is not None and run.escalated
    for child in node.sub_agents[start:]:
        resumes = child.name == current
        if not resumes:
            scope.checkpoint(node, run, {"current_sub_agent": child.name})
        current = None
        below = _of_child(run, child, resumes=resumes)
        escalated |= await scope.run_agent(scope, child, below)
        if scope.interrupted:
            return escalated
        if scope.stops_behind(below):
            break
    await after_agent(scope, node, run)
    scope.end(node, run)
    return escalated


def _of_child(run: AgentRun, child: Node, *, resumes: bool) -> AgentRun:
    return run.resume(child.name, run.branch) if resumes else run.begin(child.name, run.branch)


async def run_loop(scope: Scope, node: LoopNode, run: AgentRun) -> bool:
    """Run the sub-agents over and over, until an event escalates or `max_iterations` are done."""
    names = [child.name for child in node.sub_agents]
    current, start = current_child(names, run)
    iteration, scheduled = times_looped(run), scope.progress.scheduled
    while names and (node.max_iterations is None or iteration < node.max_iterations):
        for child in node.sub_agents[start:]:
            resumes = child.name == current
            if not resumes:
                state = {"current_sub_agent": child.name, "times_looped": iteration}
                scope.checkpoint(node, run, state)
            current = None
            below = _of_child(run, child, resumes=resumes)
            escalated = await scope.run_agent(scope, child, below)
            if scope.interrupted:
                return escalated
            if escalated or scope.stops_behind(below):
                await after_agent(scope, node, run)
                scope.end(node, run)
                return escalated
        start = 0
        iteration += 1
        if scope.progress.scheduled == scheduled:
            # A loop of agents that do nothing must not keep the workflow task for ever.
            await asyncio.sleep(1)
        scheduled = scope.progress.scheduled
    await after_agent(scope, node, run)
    scope.end(node, run)
    return False


async def run_parallel(scope: Scope, node: ParallelNode, run: AgentRun) -> bool:
    """Run the sub-agents at once, each on a branch of its own.

    A branch that fails does not cancel the others: they run to their end or pause first.

    Raises:
        EffectFailed: A branch failed, and all others are through.
    """
    if run.state is None:
        scope.checkpoint(node, run, {})
    prefix = f"{run.branch}." if run.branch else ""

    async def run_branch(index: int) -> bool:
        child = node.sub_agents[index]
        branch = f"{prefix}{node.name}.{child.name}"
        with scope.progress.branch():
            return await scope.run_agent(scope, child, run.resume(child.name, branch))

    results = await asyncio.gather(
        *(run_branch(index) for index in range(len(node.sub_agents))), return_exceptions=True
    )
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
    await after_agent(scope, node, run)
    scope.end(node, run)
    return any(results) or run.escalated
