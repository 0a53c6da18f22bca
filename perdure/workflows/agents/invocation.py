"""Runs one invocation over its plan: picks the runner of each kind of agent, and works within a turn."""

from __future__ import annotations

import asyncio
from typing import assert_never

from temporalio import workflow

from perdure.errors import EffectFailed
from perdure.journal.runs import AgentRun
from perdure.plan.nodes import CustomNode, LlmNode, LoopNode, Node, ParallelNode, RefusedNode, SequentialNode
from perdure.workflows.agents.callbacks import before_agent, end_turn, ends_turns
from perdure.workflows.agents.code_steps import CodeSteps
from perdure.workflows.agents.composite import run_in_turn, run_parallel
from perdure.workflows.agents.llm_agent import run_llm_agent
from perdure.workflows.agents.scope import Scope


async def run_agent(scope: Scope, node: Node, run: AgentRun) -> bool:
    """Run an agent from where its agent run stopped; returns whether an event of it, or underneath it, escalated."""
    if run.ended:
        return run.escalated
    if not await before_agent(scope, node, run):
        return run.escalated
    match node:
        case LlmNode():
            return await run_llm_agent(scope, node, run)
        case SequentialNode() | LoopNode():
            return await run_in_turn(scope, node, run)
        case ParallelNode():
            return await run_parallel(scope, node, run)
        case CustomNode():
            return await CodeSteps(scope, node, run).run()
        case RefusedNode():
            raise EffectFailed(node.name, node.step, node.reason)
        case _:
            assert_never(node)


class LiveInvocation:
    """An invocation whose agents are coroutines: at work, or waiting for answers between its turns."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        scope.run_agent = run_agent
        invocation = scope.invocation
        root = scope.plan.nodes[invocation.agent or scope.plan.root.name]
        run = scope.runs().root
        self._reason: str | None = None
        self._root = root.name
        self._task = asyncio.create_task(run_agent(scope, root, run))
        self._ending: asyncio.Task[None] | None = None

    async def work(self) -> bool:
        """Work until the invocation ends, fails, is stopped or waits, and settle it; returns whether it only waits.

        Raises:
            Exception: A defect, which fails the workflow task and is retried after a deployment that mends it.
        """
        scope = self.scope
        scope.progress.begin_turn()
        while not self._settled():
            scope.log.log_answers(scope.invocation.id)
            await workflow.wait_condition(lambda: self._settled() or self._answerable())
        if not self._task.done() and scope.progress.hands_over:
            scope.keep_unlogged()
            return False
        if not self._task.done():
            if not scope.progress.has_failed and await self._end_turn():
                at_limit = scope.budget.reason is not None
                reason = scope.budget.reason or self._listening()
                # The run may hand over before the answer comes, or the session be taken elsewhere.
                scope.keep_unlogged()
                scope.log.settle(scope.invocation.id, "waiting", reason=reason, at_limit=at_limit)
                return True
            await self.cancel()
        elif not self._task.cancelled() and self._task.exception() is None:
            await self._end_turn()
        self._conclude()
        return False

    def _listening(self) -> str | None:
        """Return who waits for the user's next message, if an agent does a task in talk with the user."""
        task = self.scope.projection.open_task()
        listens = task is not None and task.invocation_id == self.scope.invocation.id
        return f"agent {task.agent!r} waits for the user's next message" if task is not None and listens else None

    async def _end_turn(self) -> bool:
        """Run what runs behind a turn that did not fail; returns whether that was neither stopped nor failed."""
        if not ends_turns(self.scope.plan):
            return True
        self._ending = asyncio.create_task(end_turn(self.scope, self._root))
        try:
            await self._ending
        except EffectFailed as error:
            self.scope.progress.fail(error)
        except asyncio.CancelledError:
            if not self.scope.progress.stopping:
                raise
        return not self.scope.progress.stopping and not self.scope.progress.has_failed

    def _settled(self) -> bool:
        progress = self.scope.progress
        if self._task.done():
            return True
        if progress.hands_over:
            return progress.idle
        return progress.at_rest and self.scope.waits.all_open and not self._answerable()

    def _answerable(self) -> bool:
        return self.scope.projection.loggable_answer(self.scope.invocation) is not None

    def _conclude(self) -> None:
        scope = self.scope
        if scope.progress.stopping:
            self._settle_stopped()
            return
        error = None if self._task.cancelled() else self._task.exception()
        if isinstance(error, EffectFailed):
            scope.progress.fail(error)
        elif error is not None:
            raise error
        status = "failed" if scope.progress.has_failed else "finished"
        scope.log.settle(scope.invocation.id, status, failures=tuple(scope.failures))

    async def cancel(self) -> None:
        """Cancel the agents' coroutines and wait until they are gone; activities that finish meanwhile are kept."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)

    async def stop(self, reason: str | None) -> None:
        """Cancel, start nothing new meanwhile, and settle the invocation as stopped."""
        self.scope.progress.stop()
        self._reason = reason
        await self.cancel()
        self._settle_stopped()

    def _settle_stopped(self) -> None:
        if self.scope.invocation.status in ("running", "waiting", "queued"):
            self.scope.log.stop(self.scope.invocation.id, self._reason)
