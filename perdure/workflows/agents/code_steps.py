"""Runs custom agents and graphs: their code in steps, and beside these what it waits for.

A step runs the code until it waits for a sub-agent, or a function of `run_activity`, that has not run: from where the
last one left it (`steps/code/`), or from its top, given what there is. So the workflow itself runs none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

from temporalio import workflow

from perdure.errors import EffectFailed
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import ActivityKept, Failure, FailureCaught
from perdure.journal.events import Event
from perdure.journal.runs import AgentRun, is_state
from perdure.messages.session import CodeInput
from perdure.messages.step_log import CodeFailure, NextAgent, NextCall, StepLog
from perdure.plan.nodes import CustomNode, LoopNode, Node, ParallelNode, SequentialNode, ToolOptions
from perdure.workflows.agents.callbacks import after_agent, run_step
from perdure.workflows.agents.scope import Scope
from perdure.workflows.run.progress import Wanted
from perdure.workflows.run.step_failures import told

_ROOM_BYTES = 400_000
"""Arguments up to this size leave room in the payload for what the journal gained."""

_Key = tuple[object, ...]


class CodeSteps:
    """The steps of one run of a custom agent, or of a graph."""

    def __init__(self, scope: Scope, node: CustomNode, run: AgentRun) -> None:
        """Take up a run."""
        self._scope = scope
        self._node = node
        self._run = run
        self._past = {(past.agent, past.nth): past for past in run.children}
        self._whose: dict[str, Any] = {"invocation_id": scope.invocation.id, "agent": node.name, "branch": run.branch}
        self._whose["run"] = run.path
        self._has_met = any(map(_has_failed, (*run.children, *run.activities)))
        """The code was given a failure since its last checkpoint."""
        self._started: set[_Key] = set()
        """What the code asked for, and was begun, or gone on with, since the run was taken up."""
        self._agents: dict[_Key, asyncio.Task[None]] = {}
        self._wanted: dict[_Key, Wanted] = {}
        self._calls: dict[_Key, asyncio.Task[None]] = {}
        self._over = False
        """The code has ended: later results of functions, for which it did not wait, are nobody's any more."""
        self._ended = False
        """Its code has logged its end."""

    async def run(self) -> bool:
        """Run the code to its end; returns whether an event of it, or underneath it, escalated.

        Raises:
            EffectFailed: Its code raised, or let a failure pass.
        """
        scope, run = self._scope, self._run
        step = await self.run_code()
        if step is None:
            return run.escalated
        if self._node.graph is not None:
            scope.end(self._node, run)
            return run.escalated
        if not step.ended:
            await after_agent(scope, self._node, run)
        if not self._ended:
            # Its author logged no end; the journal needs one to know where its parent went on.
            scope.end(self._node, run, hidden=True)
        return run.escalated

    async def run_code(self) -> StepLog | None:
        """Run the code to its end; returns its last step, or nothing if the invocation does not go on.

        Raises:
            EffectFailed: As `run`.
        """
        if self._run.begun_after is None:
            self._take_note_of_begin(self._run)
        try:
            step = await self._take_steps()
        except asyncio.CancelledError:
            await _cancel([*self._agents.values(), *self._calls.values()])
            raise
        self._over = True
        # Functions run on: what they do is not to be cut off.
        await self._give_up([*self._agents])
        return step

    async def _take_steps(self) -> StepLog | None:
        scope = self._scope
        while not scope.interrupted:
            step = await self._take_step()
            # The journal tells of all of them before the next step.
            try:
                self._start(step)
            except EffectFailed as failure:
                await self._fail(failure)
            if step.goes_on:
                continue
            await self._give_up_unasked(step)
            if self._agents or self._calls or step.wakes_in is not None:
                await self._wait(step)
                continue
            if step.agents or step.calls:
                # They have ended since that step was scheduled.
                continue
            left = [] if step.ended and self._node.graph is None else self._left_open()
            if not left:
                return step
            await scope.wait_for(left)
            if self._node.tool is None:
                self._begin_again()
        return None

    async def _take_step(self) -> StepLog:
        """Run the code up to something new that it waits for, or to its end."""
        scope, run = self._scope, self._run
        scope.progress.check_stopped()
        which = "run" if self._node.graph is None else "graph" if self._node.tool is None else "tool"
        try:
            step = await run_step(scope, run.agent, which, branch=run.branch, run=run.path)
            await self._log(step)
        except EffectFailed as failed:
            left, failed.left = failed.left, None
            if isinstance(left, StepLog):
                await self._log(left)
            await self._fail(failed)
        else:
            if step.failed is not None:
                await self._fail(_failure(step.failed), step.failed.again)
            return step
        raise AssertionError("it has failed")

    async def _fail(self, failure: EffectFailed, again: Sequence[int] = ()) -> None:
        """Fail by what the code raised, once what it gathered besides has run to its end, or waits."""
        self._over = True
        progress = self._scope.progress
        if self._has_met:
            self._scope.log.append(FailureCaught(again=tuple(again), **self._whose))
        if self._agents:
            progress.fail(failure)
            await asyncio.gather(*self._agents.values(), return_exceptions=True)
            progress.told([failure])
        raise failure

    async def _log(self, step: StepLog) -> None:
        for event in await self._scope.log_step(step, self._run):
            self._run.escalated |= bool(event.actions.escalate)
            self._ended = bool(event.actions.end_of_agent)
            if is_state(event):
                self._forget()
        for path in step.done:
            mark = Event(author=self._node.name, node_info={"path": path})
            await self._scope.log_event(mark, self._run, hidden=True)

    def _forget(self) -> None:
        """Forget what was before a checkpoint: entered again, the code goes on from there."""
        self._past.clear()
        self._has_met = False

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
        scope.log_begin(run, run.node)

    def _left_open(self) -> list[str]:
        """Return the calls that its code made and that the user has still to answer, where the app waits for that.

        Graphs wait in any app, so a node of one does.
        """
        scope, agents = self._scope, self._scope.plan.nodes.keys() - {self._node.name}
        waits = scope.plan.resumable or self._run.node is not None
        return [
            id
            for id, call in scope.projection.calls.items()
            # Its events may have another author; so have those of agents that the code itself runs.
            if waits and call.answer != "logged" and call.pending.agent not in agents
            if call.pending.invocation_id == scope.invocation.id
        ]

    def _begin_again(self) -> None:
        """Let the code begin at its top once more, as ADK does behind an answer: it finds that in the session."""
        # Its sub-agents' runs have other names from here on.
        self._run.checkpoints += 1
        self._forget()
        self._take_note_of_begin(self._run)

    # What the code waits for.

    def _start(self, step: StepLog) -> None:
        """Begin what the code waits for, all at once; code that runs from its top asks again for what is at work."""
        for agent in step.agents:
            key = self._key(agent)
            if key not in self._started:
                self._wanted[key] = Wanted()
                run = self._run_agent(self._next_run(agent), self._wanted[key])
                self._agents[key] = asyncio.create_task(run)
                self._started.add(key)
        for call in step.calls:
            key = self._key(call)
            if key not in self._started:
                self._calls[key] = asyncio.create_task(self._run_call(call))
                self._started.add(key)

    def _key(self, asked: NextAgent | NextCall) -> _Key:
        what = (asked.agent,) if isinstance(asked, NextAgent) else (asked.name, asked.arguments)
        return (*what, asked.nth, self._run.checkpoints)

    async def _give_up_unasked(self, step: StepLog) -> None:
        """End the agents for which the code waits no more, by a timeout of its own."""
        asked = {self._key(agent) for agent in step.agents}
        left = [key for key in self._agents if key not in asked]
        await self._give_up(left)
        if left:
            # Asked for again, as by code that runs from its top, they go on where they were.
            rebuilt = self._scope.runs().runs[self._run.path]
            self._past = {(run.agent, run.nth): run for run in rebuilt.children}
            self._started.difference_update(left)

    async def _give_up(self, keys: Sequence[_Key]) -> None:
        for key in keys:
            # What is under way may end as if it was not cancelled.
            self._wanted[key].given_up = True
        await _cancel([self._agents.pop(key) for key in keys])

    def _next_run(self, asked: NextAgent) -> AgentRun:
        run = self._past.get((asked.agent, asked.nth)) or self._run.begin(asked.agent, asked.branch, asked.nth)
        run.branch = asked.branch
        if run.begun_after is None:
            run.node = asked.node
            self._take_note_of_begin(run)
        return run

    async def _wait(self, step: StepLog) -> None:
        """Wait until something that the code waits for is over, or a timer of its own is due."""
        timers = [asyncio.create_task(asyncio.sleep(step.wakes_in))] if step.wakes_in is not None else []
        waiting: list[asyncio.Task[None]] = [*self._agents.values(), *self._calls.values(), *timers]
        # Where it is due the invocation goes on, so it does not give up its turn, whoever waits beside that.
        with self._scope.progress.own_work() if timers else nullcontext():
            try:
                done, _ = await workflow.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for timer in timers:
                    timer.cancel()
        for task in done:
            task.result()
        self._agents = {key: task for key, task in self._agents.items() if not task.done()}
        self._calls = {key: task for key, task in self._calls.items() if not task.done()}

    async def _run_agent(self, run: AgentRun, wanted: Wanted) -> None:
        """Run a sub-agent to its end; what fails of it the code is told by its next step."""
        wanted.begin()
        scope, node = self._scope, self._scope.plan.nodes[run.agent]
        try:
            self._run.escalated |= await scope.run_agent(scope, node, run)
        except EffectFailed as failure:
            if not wanted.given_up:
                self._met(failure, sub_run=run.path)
            return
        if _logs_nothing(node):
            scope.end(node, run, hidden=True)

    async def _run_call(self, call: NextCall) -> None:
        """Run a function that the code gave to `run_activity`."""
        scope, which = self._scope, {"name": call.name, "index": call.nth - 1, "arguments": call.arguments}
        scope.progress.check_stopped()
        request = CodeInput(
            name=call.name,
            args=call.args,
            kwargs=call.kwargs,
            agent=self._node.name,
            invocation_id=scope.invocation.id,
            branch=self._run.branch,
            run=self._run.path,
            scope=scope.calls,
            index=call.nth - 1,
        )
        if payload_size(request) <= _ROOM_BYTES:
            request = request.model_copy(update={"journal": scope.slice()})
        try:
            with scope.slice_under_way(request.journal) as witness:
                result = await scope.activities.code(self._node.name, request, ToolOptions(), witness)
        except EffectFailed as failure:
            self._met(failure, **which)
        else:
            if not self._over:
                scope.log.append(ActivityKept(**which, result=result, **self._whose))

    def _met(self, failure: EffectFailed, **step: Any) -> None:
        """Journal a failure: the code is given it again wherever it comes to it (decision 017)."""
        if self._over or self._scope.progress.stopping:
            # The code does not wait for it; or it is due to the stop.
            return
        self._has_met = True
        self._scope.log.append(
            FailureCaught(failures=tuple(told(failure)), silent=failure.silent, **step, **self._whose)
        )


def _has_failed(past: AgentRun | ActivityKept | FailureCaught) -> bool:
    return past.failure is not None if isinstance(past, AgentRun) else isinstance(past, FailureCaught)


def _failure(failed: CodeFailure) -> EffectFailed:
    first, *beside = (_of_journal(failure) for failure in failed.failures)
    first.beside, first.silent = beside, failed.silent
    return first


def _of_journal(failure: Failure) -> EffectFailed:
    return EffectFailed(failure.agent, failure.step, failure.cause)


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)


def _logs_nothing(node: Node) -> bool:
    return isinstance(node, SequentialNode | LoopNode | ParallelNode) and not node.sub_agents
