"""The turns of a session: whose it is, the work in it, and what stops it."""

from __future__ import annotations

import asyncio

from structlog.stdlib import BoundLogger
from temporalio import workflow

from perdure.journal import (
    MAX_PAYLOAD_BYTES,
    InvocationResumed,
    InvocationStarted,
    PlanLoaded,
    SharedStateRead,
    pack,
)
from perdure.messages import LoadPlanInput, Trial
from perdure.plan import Plan
from perdure.projection import Invocation
from perdure.workflows.effects import Effects
from perdure.workflows.invocation import LiveInvocation
from perdure.workflows.log import SessionLog
from perdure.workflows.scope import Carrier, Scope
from perdure.workflows.visibility import Visibility


class Turns:
    """Works off a session's turns, one invocation at a time; those that wait keep their coroutines meanwhile."""

    def __init__(
        self,
        log: SessionLog,
        *,
        user_id: str,
        visibility: Visibility,
        logger: BoundLogger,
        reenter: bool,
        trial: Trial | None = None,
    ) -> None:
        self._log = log
        self._user_id = user_id
        self._visibility = visibility
        self._reenter = reenter
        self._effects = Effects(trial or Trial())
        self._carrier = Carrier(len(log.projection.entries))
        self._live: dict[str, LiveInvocation] = {}
        self._drained: LiveInvocation | None = None
        """Held back for a next run that did not come yet."""
        self._logger = logger
        self._outgrown = False

    async def work(self) -> None:
        """Take turns until the run should continue as new."""
        while True:
            self._visibility.publish(self._log.projection)
            await workflow.wait_condition(lambda: self._next() is not None or self._should_continue_as_new())
            if self._should_continue_as_new():
                return
            invocation = self._next()
            if invocation is not None:
                await self._take_turn(invocation)

    def go_on(self) -> None:
        """Schedule again, after all: the run does not continue as new."""
        self._effects.draining = False
        if self._drained is not None:
            # It is re-entered as in the next run; this one must not wake up beside it.
            self._drained.drop()
            self._drained = None

    def fits_next_run(self) -> bool:
        """Return whether the journal fits into the payload that starts the next run."""
        # A journal only grows: once it does not fit, packing it again would be work for nothing.
        self._outgrown = self._outgrown or len(pack(self._log.projection.entries)) > MAX_PAYLOAD_BYTES
        return not self._outgrown

    def _should_continue_as_new(self) -> bool:
        return self._effects.draining or (workflow.info().is_continue_as_new_suggested() and self.fits_next_run())

    def _next(self) -> Invocation | None:
        """Return whose turn it is: an invocation that an earlier run left at work, else the first that asked."""
        projection = self._log.projection
        for invocation in projection.invocations.values():
            if invocation.status == "running":
                return invocation
        return projection.invocations[projection.turns[0].invocation_id] if projection.turns else None

    async def _take_turn(self, invocation: Invocation) -> None:
        if invocation.agent is None:
            await self._begin(invocation)
        elif invocation.status != "running":
            self._log.append(InvocationResumed(invocation_id=invocation.id))
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
        if self._effects.draining and invocation.status == "running":
            self._drained = live

    async def _watch_history(self) -> None:
        await workflow.wait_condition(self._should_continue_as_new)
        self._effects.draining = True

    def _scope(self, plan: Plan, invocation: Invocation) -> Scope:
        return Scope(
            plan=plan,
            invocation=invocation,
            log=self._log,
            effects=self._effects,
            carrier=self._carrier,
            user_id=self._user_id,
        )

    async def _begin(self, invocation: Invocation) -> None:
        """Pin the plan, take a snapshot of shared state, and log the message."""
        projection = self._log.projection
        loaded = await self._effects.load_plan(LoadPlanInput(user_id=self._user_id, known=projection.newest_plan))
        if loaded.plan is not None:
            self._log.append(PlanLoaded(plan=loaded.plan, digest=loaded.digest))
        if invocation.status != "queued":
            return
        if loaded.shared is not None and loaded.shared != projection.shared_state():
            self._log.append(SharedStateRead(state=loaded.shared))
        self._visibility.enabled = loaded.search_attributes
        plan = projection.plans[loaded.digest]
        agent = projection.agent_for(plan, invocation)
        self._log.append(
            InvocationStarted(invocation_id=invocation.id, agent=agent, plan=loaded.digest, timestamp=workflow.time())
        )
        await self._scope(plan, invocation).share(invocation.message)

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
