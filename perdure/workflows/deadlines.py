"""Watches deadlines of open calls: a durable timer, what happens when it fires, and the reminders before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from structlog.stdlib import BoundLogger
from temporalio import workflow

from perdure.errors import EffectFailed
from perdure.journal.entries import CallExpired, CallReminded
from perdure.journal.projection import Call
from perdure.messages.session import DEADLINE_SUMMARY, AnswerInput, ToolInput
from perdure.plan.nodes import LlmNode, Plan, ToolPlan
from perdure.rules.intake import expired_answer
from perdure.workflows.agents.tool_runs import state_for
from perdure.workflows.run.activities import Activities
from perdure.workflows.run.log import SessionLog


class Deadlines:
    """Watches the deadlines of one session, from the projection alone.

    A session without any has no timer, and one whose plans have none has no watch: most wait for a person with neither,
    and a coroutine that waits takes 3 KB of a worker's memory. Before its first plan a session is watched, so that its
    timers come in the order in which histories from before have them.
    """

    def __init__(self, log: SessionLog, accept: Callable[[AnswerInput], str], logger: BoundLogger) -> None:
        """Make it; `accept` takes an answer as it takes a person's."""
        self._log = log
        self._accept = accept
        self._logger = logger
        self._activities: Activities | None = None
        self._reminders: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch, until a plan comes that leaves nothing to watch."""
        self._log.plan_listener = self._start_or_end
        self._start_or_end()

    def _start_or_end(self) -> None:
        projection = self._log.projection
        needed = not projection.plans or projection.timed or any(map(_is_timed, projection.plans.values()))
        if needed and self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        elif not needed and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def close(self) -> None:
        """Stop watching: the next run does; reminders at work are awaited."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*self._reminders)

    async def _watch(self) -> None:
        while True:
            due = self._next()
            if due is None:
                await workflow.wait_condition(lambda: self._next() is not None)
            elif due > workflow.time():
                await self._until(due)
            else:
                self._act(workflow.time())

    async def _until(self, due: float) -> None:
        """Wait for a time, or until something else is due.

        Not by a time-out of `wait_condition`, which is asyncio's `wait_for`: that takes other steps of the loop in
        Python 3.11 than from 3.12 on, so that neither would replay the other's histories.
        """
        timer = asyncio.create_task(workflow.sleep(due - workflow.time(), summary=DEADLINE_SUMMARY))
        try:
            await workflow.wait_condition(lambda: timer.done() or self._next() != due)
        finally:
            timer.cancel()

    def _open(self) -> Iterator[Call]:
        projection = self._log.projection
        for call in projection.timed.values():
            if call.answer == "open" and projection.takes_answers(call.pending.invocation_id):
                yield call

    def _next(self) -> float | None:
        """Return when something is to be done next, in seconds since the epoch."""
        times = [time for call in self._open() for time in (call.pending.deadline, call.remind_at) if time is not None]
        return min(times, default=None)

    def _act(self, now: float) -> None:
        for call in list(self._open()):
            if call.pending.deadline is not None and call.pending.deadline <= now:
                self._expire(call)
            elif call.remind_at is not None and call.remind_at <= now:
                # Before it is started, so that it is not started twice.
                self._log.append(CallReminded(call_id=call.pending.id))
                task = asyncio.create_task(self._remind(call))
                self._reminders.add(task)
                task.add_done_callback(self._reminders.discard)

    def _expire(self, call: Call) -> None:
        pending, answer = call.pending, expired_answer(call)
        if answer is None:
            self._log.append(CallExpired(call_id=pending.id))
        else:
            self._accept(answer)
        self._logger.info("deadline passed", invocation=pending.invocation_id, agent=pending.agent, tool=pending.name)

    async def _remind(self, call: Call) -> None:
        pending, tool = call.pending, self._tool(call)
        if tool is None:
            return
        state, length = state_for(self._log.projection, pending.invocation_id, tool)
        given = ToolInput(
            kind="reminder",
            agent=pending.agent,
            tool=pending.name,
            args=pending.args,
            function_call_id=pending.id,
            invocation_id=pending.invocation_id,
            branch=pending.branch,
            state=state,
            length=length,
            key_salt=self._log.projection.key_salt,
        )
        # Not the agents' own: a reminder must not make an invocation look at work.
        activities = self._activities = self._activities or Activities()
        try:
            await activities.tool(given, tool.options)
        except EffectFailed as failure:
            # What it says may quote an argument.
            self._logger.warning(
                "reminder failed", invocation=pending.invocation_id, agent=failure.agent, tool=failure.step
            )

    def _tool(self, call: Call) -> ToolPlan | None:
        projection = self._log.projection
        plan = projection.plan_of(projection.invocations[call.pending.invocation_id])
        node = plan.find(call.pending.agent) if plan is not None else None
        return node.tool(call.pending.name) if isinstance(node, LlmNode) else None


def _is_timed(plan: Plan) -> bool:
    tools = (tool for node in plan.every_node if isinstance(node, LlmNode) for tool in node.tools)
    return any(tool.expiry is not None or tool.remind_in is not None for tool in tools)
