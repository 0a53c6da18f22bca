"""The session workflow: handlers, the turns of its invocations, continue-as-new. No agent logic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure import messages, requests
from perdure.errors import PerdureError, RequestRefused
from perdure.events import EventActions
from perdure.journal import (
    AnswerAccepted,
    InvocationResumed,
    InvocationStarted,
    MessageAccepted,
    PlanLoaded,
    ResumeAccepted,
    SessionCreated,
    SharedStateRead,
    TempStateSet,
    pack,
    unpack,
)
from perdure.logs import get_logger
from perdure.messages import (
    AnswerInput,
    EventsPage,
    InvocationInput,
    InvocationResult,
    JournalPage,
    LoadPlanInput,
    MessageInput,
    PageInput,
    PendingView,
    SessionInput,
    SessionView,
)
from perdure.plan import Plan
from perdure.projection import Invocation, split_state_delta
from perdure.views import events_page, invocation_view, journal_page, session_view
from perdure.workflows.effects import Effects
from perdure.workflows.invocation import LiveInvocation
from perdure.workflows.log import SessionLog, new_invocation_id, user_event
from perdure.workflows.scope import Carrier, Scope
from perdure.workflows.visibility import Visibility

_MAX_CARRIED = 1_900_000
"""Bytes of a packed journal that a continued run can be started with; Temporal refuses payloads over 2 MB."""


@workflow.defn(dynamic=True)
class SessionWorkflow:
    """One session of one app; the workflow's type is the app's name, its id `app/user/session`."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        start = workflow.payload_converter().from_payload(args[0].payload, SessionInput) if args else SessionInput()
        self._app, self._user_id, self._session_id = messages.split_workflow_id(workflow.info().workflow_id)
        self._logger = get_logger("perdure.session").bind(app=self._app, user=self._user_id, session=self._session_id)
        self._reenter = start.reenter
        self._log = SessionLog(unpack(start.journal) if start.journal else ())
        self._effects = Effects()
        self._carrier = Carrier(len(self._log.projection.entries))
        self._visibility = Visibility(self._app, self._user_id, enabled=start.search_attributes)
        self._live: dict[str, LiveInvocation] = {}
        if start.journal is None:
            self._log.append(SessionCreated(state=start.state))
        if start.interrupted is not None:
            self._stop_interrupted(start.interrupted)

    def _stop_interrupted(self, how: str) -> None:
        for invocation in list(self._log.projection.invocations.values()):
            if invocation.status == "running":
                self._log.stop(invocation.id, f"the session's workflow was {how}")

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Work off turns for as long as the session lives."""
        while True:
            try:
                await self._work()
                break
            except asyncio.CancelledError:
                # A cancellation from outside stops the invocations and keeps the session.
                await self._stop_all("the session's workflow was cancelled")
        await workflow.wait_condition(workflow.all_handlers_finished)
        start = SessionInput(
            journal=pack(self._log.projection.entries),
            search_attributes=self._visibility.enabled,
            reenter=self._reenter,
        )
        workflow.continue_as_new(start)

    async def _work(self) -> None:
        """Take turns until the run should continue as new."""
        while True:
            self._visibility.publish(self._log.projection)
            await workflow.wait_condition(lambda: self._next() is not None or self._should_continue_as_new())
            if self._should_continue_as_new():
                return
            invocation = self._next()
            if invocation is not None:
                await self._take_turn(invocation)

    def _should_continue_as_new(self) -> bool:
        return self._effects.draining or (
            workflow.info().is_continue_as_new_suggested() and self._log.projection.packed_size() < _MAX_CARRIED
        )

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
        if invocation.status != "queued":
            return
        if loaded.plan is not None:
            self._log.append(PlanLoaded(plan=loaded.plan))
        if loaded.shared is not None and loaded.shared != projection.shared_state():
            self._log.append(SharedStateRead(state=loaded.shared))
        self._visibility.enabled = loaded.search_attributes
        plan = projection.plans[loaded.digest]
        agent = projection.agent_for(plan, invocation)
        self._log.append(
            InvocationStarted(invocation_id=invocation.id, agent=agent, plan=plan.digest, timestamp=workflow.time())
        )
        await self._scope(plan, invocation).share(invocation.message)

    async def _stop_all(self, reason: str) -> None:
        for invocation in list(self._log.projection.invocations.values()):
            if invocation.status in ("running", "waiting", "queued"):
                await self._stop(invocation, reason)

    async def _stop(self, invocation: Invocation, reason: str | None) -> None:
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
        failed = [f"{failure.agent}: {failure.step}" for failure in invocation.failures]
        waits = [call.name for call in self._log.projection.open_calls(invocation.id)]
        logger = self._logger.bind(invocation=invocation.id, agent=invocation.agent)
        logger.info(f"invocation {invocation.status}", **({"failed": failed} if failed else {}), waits_for=waits)

    def _result(self, invocation_id: str, offset: int) -> InvocationResult:
        projection = self._log.projection
        view = invocation_view(projection, projection.invocations[invocation_id])
        return InvocationResult(invocation=view, offset=offset)

    # Updates. A validator refuses before anything is written into the history.

    @workflow.update(name=messages.SEND_MESSAGE)
    def send_message(self, message: MessageInput) -> InvocationResult:
        """Accept a message, which starts an invocation when its turn comes."""
        projection = self._log.projection
        offset = len(projection.events)
        known = projection.requests.get(message.request_id or "")
        if known is None:
            known = new_invocation_id()
            delta, temp = split_state_delta(message.state_delta)
            event = user_event(known, message.content, EventActions(state_delta=delta), None)
            self._log.append(MessageAccepted(event=event, request_id=message.request_id))
            if temp:
                self._log.append(TempStateSet(invocation_id=known, delta=temp))
        return self._result(known, offset)

    @send_message.validator
    def _check_message(self, message: MessageInput) -> None:
        with _refusing():
            requests.check_message(message)

    @workflow.update(name=messages.RESPOND)
    def respond(self, answer: AnswerInput) -> InvocationResult:
        """Accept an answer to open calls."""
        offset = len(self._log.projection.events)
        known = self._log.projection.requests.get(answer.request_id or "")
        return self._result(known or self._accept_answer(answer), offset)

    @respond.validator
    def _check_answer(self, answer: AnswerInput) -> None:
        if answer.request_id is not None and answer.request_id in self._log.projection.requests:
            return
        with _refusing():
            requests.check_answer(self._log.projection, answer)

    def _accept_answer(self, answer: AnswerInput) -> str:
        projection = self._log.projection
        calls = requests.check_answer(projection, answer)
        content = requests.named(answer.content, calls)
        invocation = projection.invocations.get(calls[0].pending.invocation_id)
        if invocation is None or not projection.is_resumable(invocation):
            event = user_event(new_invocation_id(), content, EventActions(), None)
            event = event.model_copy(update={"custom_metadata": answer.metadata})
            self._log.append(MessageAccepted(event=event, request_id=answer.request_id))
            return event.invocation_id
        for branch, part_of in requests.by_branch(content, calls):
            event = user_event(invocation.id, part_of, EventActions(), branch)
            event = event.model_copy(update={"custom_metadata": answer.metadata})
            self._log.append(AnswerAccepted(event=event, request_id=answer.request_id))
        return invocation.id

    @workflow.update(name=messages.RESUME)
    def resume(self, request: InvocationInput) -> InvocationResult:
        """Accept a resume; a finished or waiting invocation is only reported."""
        projection = self._log.projection
        invocation = requests.check_resume(projection, request)
        offset = len(projection.events)
        if invocation.status in ("failed", "stopped"):
            self._log.append(ResumeAccepted(invocation_id=invocation.id))
        return self._result(invocation.id, offset)

    @resume.validator
    def _check_resume(self, request: InvocationInput) -> None:
        with _refusing():
            requests.check_resume(self._log.projection, request)

    @workflow.update(name=messages.STOP)
    async def stop(self, request: InvocationInput) -> InvocationResult:
        """Stop an invocation; returns when its activities are cancelled and it is settled."""
        offset = len(self._log.projection.events)
        await self._stop(requests.check_stop(self._log.projection, request), request.reason)
        return self._result(request.invocation_id, offset)

    @stop.validator
    def _check_stop(self, request: InvocationInput) -> None:
        with _refusing():
            requests.check_stop(self._log.projection, request)

    @workflow.signal(name=messages.FUNCTION_RESPONSE)
    def function_response(self, value: RawValue) -> None:
        """Accept an answer from whatever can only signal; what does not fit is dropped with a log line."""
        try:
            raw: Any = workflow.payload_converter().from_payload(value.payload)
            self._accept_answer(requests.parse_signal(raw))
        except (PerdureError, ValueError, TypeError) as error:
            # The reason's text could quote the value.
            self._logger.warning("function_response signal dropped", reason=type(error).__name__)

    # Queries.

    @workflow.query(name=messages.EVENTS)
    def events(self, request: PageInput) -> EventsPage:
        """Return a page of the event log."""
        return events_page(self._log.projection, request)

    @workflow.query(name=messages.JOURNAL)
    def journal(self, request: PageInput) -> JournalPage:
        """Return a page of the journal."""
        return journal_page(self._log.projection, request)

    @workflow.query(name=messages.SESSION)
    def session(self) -> SessionView:
        """Return the projected session."""
        return session_view(self._log.projection, self._app, self._user_id, self._session_id)

    @workflow.query(name=messages.PENDING)
    def pending(self) -> PendingView:
        """Return the open calls."""
        return PendingView(calls=tuple(self._log.projection.open_calls()))


class _refusing:
    """Turns a refusal into the form in which it crosses to the client."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestRefused):
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
