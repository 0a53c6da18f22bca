"""Runs a session's turns: picks the invocation whose turn it is, works in it, and stops it."""

from __future__ import annotations

import asyncio

from structlog.stdlib import BoundLogger
from temporalio import workflow

from perdure.errors import EffectFailed, LogError
from perdure.journal.entries import (
    Failure,
    InvocationPinned,
    InvocationResumed,
    InvocationStarted,
    PlanLoaded,
    SharedStateRead,
)
from perdure.journal.events import USER
from perdure.journal.projection import Invocation
from perdure.logs import bound
from perdure.messages.session import LoadPlanInput, LoadPlanOutput, Trial
from perdure.messages.step_log import StepLog
from perdure.plan.nodes import Plan
from perdure.trajectories.checks import agent_of_import
from perdure.trajectories.run_names import with_runs
from perdure.workflows.agents.callbacks import begin_turn, end_turn
from perdure.workflows.agents.invocation import LiveInvocation
from perdure.workflows.agents.scope import Scope
from perdure.workflows.notices import Notices
from perdure.workflows.run.activities import Activities
from perdure.workflows.run.limits import RunLimits
from perdure.workflows.run.log import SessionLog
from perdure.workflows.run.slices import Carrier, Keeper
from perdure.workflows.visibility import Visibility


class Turns:
    """Works off a session's turns, one invocation at a time; those that wait keep their coroutines meanwhile."""

    def __init__(
        self,
        log: SessionLog,
        *,
        user_id: str,
        visibility: Visibility,
        notices: Notices,
        limits: RunLimits,
        inherited: int,
        logger: BoundLogger,
        trial: Trial | None = None,
    ) -> None:
        """Make the turns of a session, of whose journal so many entries are from elsewhere."""
        self._log = log
        self._limits = limits
        self._user_id = user_id
        self._visibility = visibility
        self._notices = notices
        self._reenter = trial is not None and trial.reenter
        self._activities = Activities(trial, limits)
        self._carrier = Carrier(inherited)
        self.keeper = Keeper(log, self._carrier, self._activities)
        """Keeps the journal in the run's history."""
        visibility.memo_listener = self.keeper.publish
        self._live: dict[str, LiveInvocation] = {}
        self._logger = logger

    async def work(self) -> None:
        """Take turns until the run should continue as new."""
        while True:
            self._visibility.publish(self._log.projection)
            await workflow.wait_condition(lambda: self._next() is not None or self._should_continue_as_new())
            if self._should_continue_as_new():
                return
            invocation = self._next()
            if invocation is not None:
                with bound(invocation=invocation.id):
                    await self._take_turn(invocation)

    def _should_continue_as_new(self) -> bool:
        return self._activities.progress.draining or self._limits.reached

    def _next(self) -> Invocation | None:
        """Return whose turn it is: an invocation that an earlier run left at work, else the first that asked."""
        projection = self._log.projection
        for invocation in projection.invocations.values():
            if invocation.status == "running":
                return invocation
        return projection.invocations[projection.turns[0].invocation_id] if projection.turns else None

    async def _take_turn(self, invocation: Invocation) -> None:
        self._activities.next_turn()
        if invocation.agent is None:
            await self._begin(invocation)
        elif invocation.plan is None and not await self._pin(invocation):
            return
        elif invocation.status != "running":
            await self._resume(invocation)
        plan = self._log.projection.plan_of(invocation)
        if plan is None or invocation.status != "running":
            return
        live = self._live.get(invocation.id)
        if live is None:
            live = self._live[invocation.id] = LiveInvocation(self._scope(plan, invocation))
        self._publish(invocation)
        watch = asyncio.create_task(self._watch_history())
        try:
            waits = await live.work()
        finally:
            watch.cancel()
        self._tell(invocation)
        if waits and self._reenter:
            await live.cancel()
        if not waits or self._reenter:
            self._live.pop(invocation.id, None)

    async def _watch_history(self) -> None:
        await workflow.wait_condition(self._should_continue_as_new)
        self._activities.progress.drain()

    def _scope(self, plan: Plan, invocation: Invocation) -> Scope:
        return Scope(
            plan=plan,
            invocation=invocation,
            log=self._log,
            activities=self._activities,
            carrier=self._carrier,
            user_id=self._user_id,
        )

    async def _begin(self, invocation: Invocation) -> None:
        """Pin the plan, take a snapshot of shared state, and log the message."""
        loaded = await self._load_plan()
        if invocation.status != "queued":
            return
        projection = self._log.projection
        if loaded.shared is not None:
            shared = projection.imported_shared | loaded.shared
            if shared != projection.shared_state():
                self._log.append(SharedStateRead(state=shared))
        self._take_over(loaded)
        plan = projection.plans[loaded.digest]
        agent = projection.agent_for(plan, invocation)
        scope, step, failed = self._scope(plan, invocation), StepLog(), None
        try:
            step = await begin_turn(scope, agent)
        except EffectFailed as error:
            failed = error
        if invocation.status != "queued":
            return
        self._log.append(
            InvocationStarted(
                invocation_id=invocation.id,
                agent=agent,
                plan=loaded.digest,
                timestamp=workflow.time(),
                content=step.message,
            )
        )
        await self._begun(scope, agent, step, failed, shares=True)

    async def _resume(self, invocation: Invocation) -> None:
        """Let an invocation take the turn again, after an answer or a resume."""
        plan = self._log.projection.plan_of(invocation)
        if plan is None or invocation.agent is None:
            return
        scope, step, failed = self._scope(plan, invocation), StepLog(), None
        try:
            step = await begin_turn(scope, invocation.agent)
        except EffectFailed as error:
            failed = error
        if invocation.status != "queued":
            return
        self._log.append(InvocationResumed(invocation_id=invocation.id))
        await self._begun(scope, invocation.agent, step, failed)

    async def _begun(
        self, scope: Scope, agent: str, step: StepLog, failed: EffectFailed | None, *, shares: bool = False
    ) -> None:
        """Log what plugins left as a turn began. The turn may have failed, or ended, by that."""
        invocation = scope.invocation
        try:
            if failed is not None:
                raise failed
            if shares:
                await scope.share(invocation.message)
            await scope.log_beside(step)
            if not step.ended:
                return
            await end_turn(scope, agent)
            if invocation.status == "running":
                self._log.settle(invocation.id, "finished")
        except EffectFailed as error:
            failure = Failure(agent=agent, step=error.step, cause=error.cause)
            self._log.settle(invocation.id, "failed", failures=(failure,))

    async def _load_plan(self) -> LoadPlanOutput:
        known, plans = self._log.projection.newest_plan, self._log.projection.plans
        request = LoadPlanInput(user_id=self._user_id, known=known)
        shares = known is not None and plans[known].shared_state
        loaded = await self._activities.load_plan(request, shares=shares, slice_=self.keeper.small_slice)
        if loaded.plan is not None:
            self._log.append(PlanLoaded(plan=loaded.plan, digest=loaded.digest))
        return loaded

    def _take_over(self, loaded: LoadPlanOutput) -> None:
        """Take over what the worker that loaded a plan says of its server, and of its settings."""
        self._visibility.enabled = loaded.search_attributes
        self._notices.enabled = loaded.notices

    async def _pin(self, invocation: Invocation) -> bool:
        """Pin an imported invocation to the app's plan; returns whether it goes on. One that does not fit it fails."""
        loaded = await self._load_plan()
        if invocation.status != "queued":
            return False
        self._take_over(loaded)
        projection = self._log.projection
        plan = projection.plans[loaded.digest]
        # A mark without a time is from before deadlines were counted anew.
        now = workflow.time() if projection.imported_at is not None else None
        try:
            agent = agent_of_import(projection, plan, invocation)
            pinned = InvocationPinned(invocation_id=invocation.id, agent=agent, plan=loaded.digest, timestamp=now)
            pinned = with_runs(pinned, projection, plan)
        except LogError as error:
            failure = Failure(agent=invocation.agent or USER, step="import", cause=str(error))
            self._log.append(InvocationResumed(invocation_id=invocation.id))
            self._log.settle(invocation.id, "failed", failures=(failure,))
            self._tell(invocation)
            return False
        self._log.append(pinned)
        self._log.append(InvocationResumed(invocation_id=invocation.id))
        return True

    async def stop_all(self, reason: str) -> None:
        """Stop every invocation that works, waits or is queued."""
        for invocation in list(self._log.projection.invocations.values()):
            if invocation.status in ("running", "waiting", "queued"):
                await self.stop(invocation, reason)

    async def stop(self, invocation: Invocation, reason: str | None) -> None:
        """Stop an invocation; returns when its activities are cancelled and it is settled."""
        live = self._live.get(invocation.id)
        if live is not None:
            await live.stop(reason)
            self._live.pop(invocation.id, None)
        elif invocation.status in ("running", "waiting", "queued", "failed"):
            self._log.stop(invocation.id, reason)
        self._publish(invocation)

    def _publish(self, invocation: Invocation) -> None:
        """Show where an invocation stands, in the Temporal UI and in the worker's log."""
        self._visibility.publish(self._log.projection)
        self._tell(invocation)

    def _tell(self, invocation: Invocation) -> None:
        about = {
            "failed": [f"{failure.agent}: {failure.step}" for failure in invocation.failures],
            "waits_for": [call.name for call in self._log.projection.open_calls(invocation.id)],
        }
        logger = self._logger.bind(invocation=invocation.id, agent=invocation.agent)
        logger.info(f"invocation {invocation.status}", **{key: value for key, value in about.items() if value})
