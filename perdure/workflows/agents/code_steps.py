"""Runs custom agents of google.adk's: their code in steps, and between these the sub-agents that it waits for.

A step runs the code until it waits for a sub-agent that has not run: from where the last one left it (`adk/code/`), or
from its top, given what it and its sub-agents have logged. So the workflow itself runs none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.errors import EffectFailed
from perdure.journal.entries import RunBegan
from perdure.journal.events import Event
from perdure.journal.runs import AgentRun, is_state
from perdure.messages.callbacks import Callback
from perdure.messages.step_log import NextAgent, StepLog
from perdure.plan.nodes import CustomNode, LoopNode, Node, ParallelNode, SequentialNode
from perdure.workflows.agents.callbacks import after_agent, run_step
from perdure.workflows.agents.caught_failures import Caught
from perdure.workflows.agents.scope import Scope


class CodeSteps:
    """The steps of one run of a custom agent."""

    _WHICH: Callback = "run"

    def __init__(self, scope: Scope, node: CustomNode, run: AgentRun) -> None:
        """Take up a run."""
        self._scope = scope
        self._node = node
        self._run = run
        self._past = {(past.agent, past.nth): past for past in run.children}
        whose = {"invocation_id": scope.invocation.id, "agent": node.name, "branch": run.branch}
        self._caught = Caught(scope, whose | {"run": scope.name_of(run)})
        self._failures = [self._caught.met_again(past.failure) for past in run.children if past.failure is not None]
        self._ended = False
        """Its code has logged its end."""

    async def run(self) -> bool:
        """Run the custom agent to its end; returns whether an event of it, or underneath it, escalated.

        Raises:
            EffectFailed: Its code raised, or let a sub-agent's failure pass.
        """
        scope, run = self._scope, self._run
        if run.begun_after is None:
            self._take_note_of_begin(run)
        while not scope.interrupted:
            step = await self._take_step()
            if step.agents:
                await self._run_agents([self._next_run(one) for one in step.agents])
                continue
            left = [] if step.ended else self._left_open()
            if not left:
                break
            await scope.wait_for(left)
            self._begin_again()
        else:
            return run.escalated
        self._caught.end()
        if not step.ended:
            await after_agent(scope, self._node, run)
        if not self._ended:
            # Its author logged no end; the journal needs one to know where its parent went on.
            scope.end(self._node, run, hidden=True)
        return run.escalated

    def _take_note_of_begin(self, run: AgentRun) -> None:
        """Tell the journal where an agent run begins.

        Of the code: what it sees of the session when it is taken from its top again. Of a sub-agent: that it is asked
        for, so that a run that is cut off here goes on with it.
        """
        scope = self._scope
        events = scope.projection.events
        before = len(events)
        if run is not self._run and run.log:
            # A log from elsewhere may have some of what it said.
            before = next((index for index, event in enumerate(events) if event.id == run.log[0].id), before)
        run.begun_after = events[before - 1].id if before else ""
        scope.log.append(
            RunBegan(
                invocation_id=scope.invocation.id,
                agent=run.agent,
                branch=run.branch,
                after=run.begun_after,
                run=scope.name_of(run),
                node=run.node,
            )
        )

    def _left_open(self) -> list[str]:
        """Return the calls that its code made and that the user has still to answer, where the app waits for that."""
        scope, agents = self._scope, self._scope.plan.nodes.keys() - {self._node.name}
        return [
            id
            for id, call in scope.projection.calls.items()
            # Its events may have another author; so have those of agents that the code itself runs.
            if scope.plan.resumable and call.answer != "logged" and call.pending.agent not in agents
            if call.pending.invocation_id == scope.invocation.id
        ]

    def _begin_again(self) -> None:
        """Let the code begin at its top once more, as ADK does behind an answer: it finds that in the session."""
        # Its sub-agents' runs have other names from here on.
        self._run.checkpoints += 1
        self._past.clear()
        self._failures.clear()
        self._caught.forget()
        self._take_note_of_begin(self._run)

    async def _take_step(self) -> StepLog:
        """Run the code up to the sub-agents that it waits for, or to its end."""
        scope, run = self._scope, self._run
        scope.progress.check_stopped()
        try:
            step = await run_step(scope, run.agent, self._WHICH, branch=run.branch, run=scope.name_of(run))
            await self._log(step)
        except EffectFailed as failed:
            left, failed.left = failed.left, None
            if isinstance(left, StepLog):
                await self._log(left)
            self._caught.give_up(None)
            raise
        if step.passes_on and self._failures:
            failure = self._failures[0]
            self._caught.give_up(failure)
            raise failure
        return step

    async def _log(self, step: StepLog) -> None:
        for event in await self._scope.log_step(step, self._run):
            self._run.escalated |= bool(event.actions.escalate)
            if is_state(event):
                self._forget(event)

    def _forget(self, event: Event) -> None:
        """Forget what was before a checkpoint: entered again, the code goes on from there."""
        self._ended |= bool(event.actions.end_of_agent)
        self._past.clear()
        self._failures.clear()
        self._caught.forget()

    def _next_run(self, asked: NextAgent) -> AgentRun:
        run = self._past.get((asked.agent, asked.nth)) or self._run.begin(asked.agent, asked.branch, asked.nth)
        run.branch = asked.branch
        if run.begun_after is None:
            run.node = asked.node
            self._take_note_of_begin(run)
        return run

    async def _run_agents(self, runs: Sequence[AgentRun]) -> None:
        """Run sub-agents at once to their ends; what fails of it the code is told by its next step."""
        results = await asyncio.gather(*map(self._run_agent, runs), return_exceptions=True)
        failures: list[EffectFailed] = []
        for run, result in zip(runs, results, strict=True):
            if isinstance(result, EffectFailed):
                failures.append(result)
                self._caught.met(result, sub_agent=run.agent, sub_run=self._scope.name_of(run))
            elif isinstance(result, BaseException):
                raise result
            else:
                self._run.escalated |= result
        if failures:
            self._met(failures)
            self._scope.progress.told(failures)
            self._caught.go_on()

    def _met(self, failures: list[EffectFailed]) -> None:
        self._failures = failures

    async def _run_agent(self, run: AgentRun) -> bool:
        scope, node = self._scope, self._scope.plan.nodes[run.agent]
        with scope.progress.branch():
            escalated = await scope.run_agent(scope, node, run)
        if _logs_nothing(node):
            scope.end(node, run, hidden=True)
        return escalated


def _logs_nothing(node: Node) -> bool:
    return isinstance(node, SequentialNode | LoopNode | ParallelNode) and not node.sub_agents
