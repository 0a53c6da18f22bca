"""The session workflow: handlers, the turns of its invocations, continue-as-new. No agent logic."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.errors import InvalidMessage, PerdureError, SessionFull
from perdure.journal.entries import AnswerAccepted, MessageAccepted, ResumeAccepted, StateChanged, TempStateSet
from perdure.journal.events import EventActions
from perdure.journal.packing import pack_whole
from perdure.journal.projection import split_state_delta
from perdure.logs import get_logger
from perdure.messages import session as messages
from perdure.messages.large_requests import SEND_AHEAD
from perdure.messages.session import (
    AnswerInput,
    InvocationInput,
    InvocationResult,
    JournalPage,
    JournalReference,
    MessageInput,
    SessionInput,
)
from perdure.messages.shared_state import CHANGE_STATE, StateChangeInput, StateChangeResult, with_delta
from perdure.rules import intake as requests
from perdure.rules.model_calls import is_at_limit
from perdure.rules.repeats import find_repeated
from perdure.workflows.deadlines import Deadlines
from perdure.workflows.first_journal import Arrival
from perdure.workflows.queries import SessionQueries, TurnWaits, refusing
from perdure.workflows.requests_ahead import Ahead
from perdure.workflows.run.limits import RunLimits
from perdure.workflows.run.log import new_invocation_id, user_event
from perdure.workflows.turns import Turns
from perdure.workflows.visibility import Visibility

INLINE_HISTORY_BYTES = 8_000_000
"""Up to this length of a run's history it is tried to carry the journal over in one payload."""

_CANCELLED = "the session's workflow was cancelled"

_FULL = (
    "the session's log has outgrown what Temporal holds in one run; export it and go on in a new session, or give the"
    " workers an external payload storage"
)


@workflow.defn(dynamic=True)
class SessionWorkflow(SessionQueries):
    """One session of one app; the workflow's type is the app's name, its id `app/user/session`."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        start = workflow.payload_converter().from_payload(args[0].payload, SessionInput) if args else SessionInput()
        self._app, self._user_id, self._session_id = messages.split_workflow_id(workflow.info().workflow_id)
        self._logger = get_logger("perdure.session").bind(app=self._app, user=self._user_id, session=self._session_id)
        self._trial = start.trial
        self._interrupted = start.interrupted
        self._arrival = Arrival(start, workflow.info().first_execution_run_id)
        self._early: list[tuple[str, Sequence[RawValue]]] = []
        self._ahead = Ahead()
        self._limits = RunLimits(self._trial)
        self._waits = TurnWaits()
        self._log = self._arrival.log
        self._visibility = Visibility(self._app, self._user_id, enabled=start.search_attributes)
        self._turns = Turns(
            self._log,
            user_id=self._user_id,
            visibility=self._visibility,
            limits=self._limits,
            inherited=self._arrival.inherited,
            logger=self._logger,
            trial=self._trial,
        )
        self._deadlines = Deadlines(self._log, self._accept_answer, self._logger)
        self._arrival.then = self._arrived
        if self._arrival.complete:
            self._begin()

    def _arrived(self) -> None:
        self._limits.carried()
        self._begin()

    def _begin(self) -> None:
        """Settle what an earlier run left at work, and take what was signalled before the journal was there."""
        if self._interrupted is not None:
            for invocation in list(self._log.projection.invocations.values()):
                if invocation.status == "running":
                    self._log.stop(invocation.id, f"the session's workflow was {self._interrupted}")
        early, self._early = self._early, []
        for name, args in early:
            self.signalled(name, args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Work off turns for as long as the session lives."""
        with refusing():
            requests.check_ids(self._user_id, self._session_id)
        # A cancellation from outside stops the invocations and keeps the session. A run can be cancelled once, so the
        # next one starts.
        cancelled = not self._arrival.complete and await _undisturbed(self._arrival.fetch())
        self._deadlines.start()
        try:
            if not cancelled:
                await self._turns.work()
                self._waits.end()
                await workflow.wait_condition(workflow.all_handlers_finished)
        except asyncio.CancelledError:
            cancelled = True
        if await _undisturbed(self._deadlines.close()) or cancelled:
            await self._turns.stop_all(_CANCELLED)
        # What was sent meanwhile has its turn in the next run.
        self._waits.end()
        await workflow.wait_condition(workflow.all_handlers_finished)
        journal, carried = await self._hand_over()
        start = SessionInput(
            journal=journal,
            carried=carried,
            search_attributes=self._visibility.enabled,
            trial=self._trial,
        )
        projection = self._log.projection
        self._limits.hand_over(start, projection.plans[projection.newest_plan] if projection.newest_plan else None)

    async def _hand_over(self) -> tuple[str | None, JournalReference | None]:
        """Return the journal for the next run: packed, or as a reference to this run, whose history then holds it."""
        # A long history holds more than a payload takes, so nothing is packed in vain.
        if workflow.info().get_current_history_size() < INLINE_HISTORY_BYTES:
            journal = pack_whole(self._log.projection.entries)
            if journal is not None:
                return journal, None
        length = 0
        while length < len(self._log.projection.entries):
            # What comes in meanwhile is kept too.
            length = len(self._log.projection.entries)
            if await _undisturbed(self._turns.keep_journal()):
                await self._turns.stop_all(_CANCELLED)
        return None, JournalReference(run_id=workflow.info().run_id, length=length)

    # Updates. A validator refuses before anything is written into the history.

    @workflow.update(name=messages.SEND_MESSAGE)
    async def send_message(self, sent: RawValue) -> InvocationResult:
        """Accept a message, which starts an invocation when its turn comes."""
        message, _ = self._ahead.take(sent, MessageInput)
        projection = await self._ready()
        offset = len(projection.events)
        with refusing():
            repeated = find_repeated(projection, message)
            if repeated is not None:
                return self._result(*repeated)
            self._check_room()
            requests.check_queue(projection, message)
        invocation_id = new_invocation_id()
        delta, temp = split_state_delta(message.state_delta)
        event = user_event(invocation_id, message.content, EventActions(state_delta=delta), None)
        event = event.model_copy(update={"custom_metadata": message.metadata})
        accepted = MessageAccepted(event=event, request_id=message.request_id, max_llm_calls=message.max_llm_calls)
        self._log.append(accepted)
        if temp:
            self._log.append(TempStateSet(invocation_id=invocation_id, delta=temp))
        return self._result(invocation_id, offset)

    @send_message.validator
    def _check_message(self, sent: RawValue) -> None:
        message = self._ahead.read(sent, MessageInput)
        with refusing():
            requests.check_message(message)
            if not self._arrival.complete or find_repeated(self._log.projection, message) is None:
                self._check_room()
                requests.check_queue(self._log.projection, message)

    def _check_room(self) -> None:
        if self._limits.full:
            raise SessionFull(_FULL)

    @workflow.update(name=messages.RESPOND)
    async def respond(self, sent: RawValue) -> InvocationResult:
        """Accept an answer to open calls."""
        answer, _ = self._ahead.take(sent, AnswerInput)
        projection = await self._ready()
        offset = len(projection.events)
        with refusing():
            repeated = find_repeated(projection, answer)
            return self._result(*(repeated or (self._accept_answer(answer), offset)))

    @respond.validator
    def _check_answer(self, sent: RawValue) -> None:
        answer = self._ahead.read(sent, AnswerInput)
        with refusing():
            requests.check_parts(answer.content)
            if self._arrival.complete and find_repeated(self._log.projection, answer) is None:
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
    async def resume(self, request: InvocationInput) -> InvocationResult:
        """Accept a resume; one that is finished, or waits for answers, is only reported."""
        projection = await self._ready()
        with refusing():
            repeated = find_repeated(projection, request)
            if repeated is not None:
                return self._result(*repeated)
            invocation = requests.check_resume(projection, request)
        offset = len(projection.events)
        if invocation.status in ("failed", "stopped") or is_at_limit(invocation):
            allowed = request.max_llm_calls
            self._log.append(
                ResumeAccepted(invocation_id=invocation.id, request_id=request.request_id, max_llm_calls=allowed)
            )
        return self._result(invocation.id, offset)

    @resume.validator
    def _check_resume(self, request: InvocationInput) -> None:
        if self._arrival.complete:
            with refusing():
                if find_repeated(self._log.projection, request) is None:
                    requests.check_resume(self._log.projection, request)

    @workflow.update(name=messages.STOP)
    async def stop(self, request: InvocationInput) -> InvocationResult:
        """Stop an invocation; returns when its activities are cancelled and it is settled."""
        projection = await self._ready()
        offset = len(projection.events)
        with refusing():
            invocation = requests.check_stop(projection, request)
        await self._turns.stop(invocation, request.reason)
        return self._result(request.invocation_id, offset)

    @stop.validator
    def _check_stop(self, request: InvocationInput) -> None:
        if self._arrival.complete:
            with refusing():
                requests.check_stop(self._log.projection, request)

    @workflow.update(name=CHANGE_STATE)
    async def change_state(self, sent: RawValue) -> StateChangeResult:
        """Write into the session's state, whatever its invocations do."""
        change, was_ahead = self._ahead.take(sent, StateChangeInput)
        projection = await self._ready()
        event = next((event for event in reversed(projection.events) if event.id == change.request_id), None)
        if event is None:
            with refusing():
                self._check_room()
                requests.check_state(projection, change.state_delta)
            event = requests.state_event(change, workflow.time())
            self._log.append(StateChanged(event=event))
        return StateChangeResult(event=with_delta(event, {}) if was_ahead else event)

    @change_state.validator
    def _check_change(self, sent: RawValue) -> None:
        change = self._ahead.read(sent, StateChangeInput)
        with refusing():
            self._check_room()
            requests.check_state(self._log.projection, change.state_delta)

    @workflow.update(name=messages.EXTEND_JOURNAL)
    def extend_journal(self, page: JournalPage) -> int:
        """Take a further part of the journal that the run starts with; returns how many entries there are."""
        return self._arrival.extend(page)

    @extend_journal.validator
    def _check_part(self, page: JournalPage) -> None:
        if self._arrival.complete:
            raise ApplicationError("the session's journal is complete", type="InvalidMessage", non_retryable=True)

    # Dynamic, since one handler of that name would fail the workflow task for a signal with too few or many arguments.
    @workflow.signal(dynamic=True)
    def signalled(self, name: str, args: Sequence[RawValue]) -> None:
        """Accept an answer from whatever can only signal; what does not fit is dropped with a log line."""
        if not self._arrival.complete and name != SEND_AHEAD:
            self._early.append((name, args))
            return
        try:
            if name == SEND_AHEAD:
                self._ahead.bring(args)
                return
            if name != messages.FUNCTION_RESPONSE or len(args) != 1:
                raise InvalidMessage(f"the session takes the signal {messages.FUNCTION_RESPONSE} with one argument")
            requests.check_sent(args[0].payload.data)
            self._accept_answer(requests.parse_signal(workflow.payload_converter().from_payload(args[0].payload)))
        except (PerdureError, ValueError, TypeError, RuntimeError, KeyError) as error:
            # The reason's text could quote the value.
            self._logger.warning("signal dropped", signal=name, reason=type(error).__name__)


async def _undisturbed(work: Coroutine[Any, Any, None]) -> bool:
    """Await work to its end, also if the run is cancelled meanwhile; returns whether it was."""
    task, cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    return cancelled
