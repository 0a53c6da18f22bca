"""Runs graphs of google.adk's: their nodes in steps, and beside these, at the same time, the agents among the nodes."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from perdure.errors import EffectFailed
from perdure.journal.events import Event
from perdure.journal.runs import AgentRun
from perdure.messages.step_log import NextAgent, StepLog
from perdure.plan.nodes import CustomNode
from perdure.workflows.agents.code_steps import CodeSteps
from perdure.workflows.agents.scope import Scope


class GraphSteps(CodeSteps):
    """The steps of one run of a graph."""

    _WHICH = "graph"

    def __init__(self, scope: Scope, node: CustomNode, run: AgentRun) -> None:
        """Take up a run."""
        super().__init__(scope, node, run)
        self._begun: set[tuple[str, int, int]] = set()
        """Agents that were begun, or gone on with: the name, which run of it, and since which begin of the graph."""

    async def run(self) -> bool:
        """Run the graph to its end; returns whether an event of it, or underneath it, escalated.

        Raises:
            EffectFailed: A node failed.
        """
        scope, run = self._scope, self._run
        if run.begun_after is None:
            self._take_note_of_begin(run)
        working: list[asyncio.Task[None]] = []
        try:
            while not scope.interrupted:
                step = await self._take_step()
                # The journal tells of all of them before the next step.
                runs = [self._next_run(asked) for asked in step.agents if self._is_new(asked)]
                working += [asyncio.create_task(self._run_agents([run])) for run in runs]
                if step.goes_on:
                    continue
                if working:
                    done, working = await workflow.wait(working, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                    continue
                if step.agents:
                    # They have ended since that step was scheduled.
                    continue
                left = self._left_open()
                if not left:
                    break
                await scope.wait_for(left)
                self._begin_again()
            else:
                return run.escalated
        finally:
            for task in working:
                task.cancel()
            if working:
                await workflow.wait(working)
        self._caught.end()
        scope.end(self._node, run)
        return run.escalated

    def _is_new(self, asked: NextAgent) -> bool:
        """Return whether an agent is asked for that does not run yet; a graph that runs from its top asks again."""
        key = (asked.agent, asked.nth, self._run.checkpoints)
        new = key not in self._begun
        self._begun.add(key)
        return new

    async def _log(self, step: StepLog) -> None:
        await super()._log(step)
        for path in step.done:
            mark = Event(author=self._node.name, node_info={"path": path})
            await self._scope.log_event(mark, self._run, hidden=True)

    def _met(self, failures: list[EffectFailed]) -> None:
        # The newest first: the graph may have run others anew.
        self._failures = failures + self._failures
