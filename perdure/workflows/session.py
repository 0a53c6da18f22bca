"""The session workflow: handlers, the turns of its invocations, continue-as-new. No agent logic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure import messages, requests
from perdure.errors import InvalidMessage, PerdureError, RequestRefused
from perdure.events import EventActions
from perdure.journal import (
    AnswerAccepted,
    MessageAccepted,
    ResumeAccepted,
    SessionCreated,
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
    MessageInput,
    PageInput,
    PendingView,
    SessionInput,
    SessionView,
)
from perdure.projection import split_state_delta
from perdure.views import events_page, invocation_view, journal_page, pending_view, session_view
from perdure.workflows.log import SessionLog, new_invocation_id, user_event
from perdure.workflows.turns import Turns
from perdure.workflows.visibility import Visibility


@workflow.defn(dynamic=True)
class SessionWorkflow:
    """One session of one app; the workflow's type is the app's name, its id `app/user/session`."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        start = workflow.payload_converter().from_payload(args[0].payload, SessionInput) if args else SessionInput()
        self._app, self._user_id, self._session_id = messages.split_workflow_id(workflow.info().workflow_id)
        self._logger = get_logger("perdure.session").bind(app=self._app, user=self._user_id, session=self._session_id)
        self._reenter = start.reenter
        self._trial = start.trial
        self._log = SessionLog(unpack(start.journal) if start.journal else ())
        self._visibility = Visibility(self._app, self._user_id, enabled=start.search_attributes)
        self._turns = Turns(
            self._log,
            user_id=self._user_id,
            visibility=self._visibility,
            logger=self._logger,
            reenter=start.reenter,
            trial=start.trial,
        )
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
        cancelled = False
        while not cancelled or not self._turns.fits_next_run():
            try:
                await self._turns.work()
                await workflow.wait_condition(workflow.all_handlers_finished)
                if self._turns.fits_next_run():
                    break
                # What was at work has outgrown the payload that would carry it over.
                self._turns.go_on()
            except asyncio.CancelledError:
                # A cancellation from outside stops the invocations and keeps the session. A run can be cancelled once,
                # so the next one starts.
                await self._turns.stop_all("the session's workflow was cancelled")
                cancelled = True
        await workflow.wait_condition(workflow.all_handlers_finished)
        start = SessionInput(
            journal=pack(self._log.projection.entries),
            search_attributes=self._visibility.enabled,
            reenter=self._reenter,
            trial=self._trial,
        )
        workflow.continue_as_new(start)

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
        known = projection.requests.get(message.request_id) if message.request_id else None
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
        known = self._log.projection.requests.get(answer.request_id) if answer.request_id else None
        return self._result(known or self._accept_answer(answer), offset)

    @respond.validator
    def _check_answer(self, answer: AnswerInput) -> None:
        if answer.request_id and answer.request_id in self._log.projection.requests:
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
        await self._turns.stop(requests.check_stop(self._log.projection, request), request.reason)
        return self._result(request.invocation_id, offset)

    @stop.validator
    def _check_stop(self, request: InvocationInput) -> None:
        with _refusing():
            requests.check_stop(self._log.projection, request)

    # Dynamic, since one handler of that name would fail the workflow task for a signal with too few or many arguments.
    @workflow.signal(dynamic=True)
    def signalled(self, name: str, args: Sequence[RawValue]) -> None:
        """Accept an answer from whatever can only signal; what does not fit is dropped with a log line."""
        try:
            if name != messages.FUNCTION_RESPONSE or len(args) != 1:
                raise InvalidMessage(f"the session takes the signal {messages.FUNCTION_RESPONSE} with one argument")
            self._accept_answer(requests.parse_signal(workflow.payload_converter().from_payload(args[0].payload)))
        except (PerdureError, ValueError, TypeError, RuntimeError, KeyError) as error:
            # The reason's text could quote the value.
            self._logger.warning("signal dropped", signal=name, reason=type(error).__name__)

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
        return pending_view(self._log.projection)


class _refusing:
    """Turns a refusal into the form in which it crosses to the client."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestRefused):
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
