"""The session workflow: handlers, the turns of its invocations, continue-as-new. No agent logic."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.journal.packing import pack_whole
from perdure.logs import get_logger
from perdure.messages import session as messages
from perdure.messages.effects import EffectsPage
from perdure.messages.keys import SessionKey
from perdure.messages.session import (
    EventsPage,
    InvocationResult,
    JournalPage,
    JournalReference,
    PageInput,
    PendingView,
    PlanInput,
    PlanView,
    SessionInput,
    SessionView,
)
from perdure.messages.shared_state import CHANGE_STATE, StateChangeResult
from perdure.rules.intake import check_ids
from perdure.workflows.deadlines import Deadlines
from perdure.workflows.first_journal import Arrival
from perdure.workflows.notices import Notices
from perdure.workflows.queries import SessionQueries
from perdure.workflows.requests import SessionRequests, refusing
from perdure.workflows.run.limits import RunLimits
from perdure.workflows.turns import Turns
from perdure.workflows.visibility import Visibility

INLINE_HISTORY_BYTES = 8_000_000
"""Up to this length of a run's history it is tried to carry the journal over in one payload."""

_CANCELLED = "the session's workflow was cancelled"


@workflow.defn(dynamic=True)
class SessionWorkflow:
    """One session of one app; the workflow's type is the app's name, its id `app/user/session`."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        start = workflow.payload_converter().from_payload(args[0].payload, SessionInput) if args else SessionInput()
        info = workflow.info()
        self._key = SessionKey.parse(info.workflow_id)
        logger = get_logger("perdure.session").bind(**asdict(self._key))
        self._trial = start.trial
        self._arrival = Arrival(start, info.first_execution_run_id)
        self._limits = RunLimits(self._trial)
        self._log = self._arrival.log
        self._visibility = Visibility(self._key, enabled=start.search_attributes)
        self._notices = Notices(self._log, logger, enabled=start.notices)
        self._turns = Turns(
            self._log,
            user_id=self._key.user,
            visibility=self._visibility,
            notices=self._notices,
            limits=self._limits,
            inherited=self._arrival.inherited,
            logger=logger,
            trial=self._trial,
        )
        self._requests = SessionRequests(self._arrival, self._turns, self._limits, logger)
        self._queries = SessionQueries(self._key, self._arrival)
        self._deadlines = Deadlines(self._log, self._requests.accept_answer, logger)
        self._arrival.then = self._arrived
        if self._arrival.complete:
            self._begin()

    def _arrived(self) -> None:
        self._limits.carried()
        self._begin()

    def _begin(self) -> None:
        """Take what was signalled before the journal was there."""
        self._notices.watch()
        self._requests.take_early()

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Work off turns for as long as the session lives."""
        with refusing():
            check_ids(self._key)
        # A cancellation from outside stops the invocations and keeps the session. A run can be cancelled once, so the
        # next one starts.
        cancelled = not self._arrival.complete and await _undisturbed(self._arrival.fetch())
        self._deadlines.start()
        self._turns.keeper.watch()
        try:
            if not cancelled:
                await self._turns.work()
                self._requests.end_waits()
                await workflow.wait_condition(workflow.all_handlers_finished)
        except asyncio.CancelledError:
            cancelled = True
        if await _undisturbed(self._deadlines.close()) or cancelled:
            await self._turns.stop_all(_CANCELLED)
        # What was sent meanwhile has its turn in the next run.
        self._requests.end_waits()
        await workflow.wait_condition(lambda: workflow.all_handlers_finished() and self._notices.handed_on)
        journal, carried = await self._hand_over()
        start = SessionInput(
            journal=journal,
            carried=carried,
            search_attributes=self._visibility.enabled,
            notices=self._notices.enabled,
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
            if await _undisturbed(self._turns.keeper.hand_over()):
                await self._turns.stop_all(_CANCELLED)
        return None, JournalReference(run_id=workflow.info().run_id, length=length)

    # Updates. A validator refuses before anything is written into the history.

    @workflow.update(name=messages.SEND_MESSAGE)
    async def send_message(self, sent: RawValue) -> InvocationResult:
        """Accept a message, which starts an invocation when its turn comes."""
        return await self._requests.send_message(sent)

    @send_message.validator
    def _check_message(self, sent: RawValue) -> None:
        self._requests.check_message(sent)

    @workflow.update(name=messages.RESPOND)
    async def respond(self, sent: RawValue) -> InvocationResult:
        """Accept an answer to open calls."""
        return await self._requests.respond(sent)

    @respond.validator
    def _check_answer(self, sent: RawValue) -> None:
        self._requests.check_answer(sent)

    @workflow.update(name=messages.RESUME)
    async def resume(self, sent: RawValue) -> InvocationResult:
        """Accept a resume; one that is finished, or waits for answers, is only reported."""
        return await self._requests.resume(sent)

    @resume.validator
    def _check_resume(self, sent: RawValue) -> None:
        self._requests.check_resume(sent)

    @workflow.update(name=messages.STOP)
    async def stop(self, sent: RawValue) -> InvocationResult:
        """Stop an invocation; returns when its activities are cancelled and it is settled."""
        return await self._requests.stop(sent)

    @stop.validator
    def _check_stop(self, sent: RawValue) -> None:
        self._requests.check_stop(sent)

    @workflow.update(name=messages.WAIT)
    async def wait(self, sent: RawValue) -> InvocationResult:
        """Return when an invocation has given up the turn; while it has not, if the run hands over to the next one."""
        return await self._requests.wait(sent)

    @wait.validator
    def _check_wait(self, sent: RawValue) -> None:
        self._requests.check_wait(sent)

    @workflow.update(name=CHANGE_STATE)
    async def change_state(self, sent: RawValue) -> StateChangeResult:
        """Write into the session's state, whatever its invocations do."""
        return await self._requests.change_state(sent)

    @change_state.validator
    def _check_change(self, sent: RawValue) -> None:
        self._requests.check_change(sent)

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
        """Accept an answer from whatever can only signal; what does not fit leaves an event that says so."""
        self._requests.signalled(name, args)

    # Queries.

    @workflow.query(name=messages.EVENTS)
    def events(self, request: PageInput) -> EventsPage:
        """Return a page of the event log."""
        return self._queries.events(request)

    @workflow.query(name=messages.JOURNAL)
    def journal(self, request: PageInput) -> JournalPage:
        """Return a page of the journal."""
        return self._queries.journal(request)

    @workflow.query(name=messages.EFFECTS)
    def effects(self, request: PageInput) -> EffectsPage:
        """Return a page of the ledger of tool calls."""
        return self._queries.effects(request)

    @workflow.query(name=messages.SESSION)
    def session(self) -> SessionView:
        """Return the projected session."""
        return self._queries.session()

    @workflow.query(name=messages.PLAN)
    def plan(self, request: PlanInput) -> PlanView:
        """Return a plan by its digest."""
        return self._queries.plan(request)

    @workflow.query(name=messages.PENDING)
    def pending(self) -> PendingView:
        """Return the open calls."""
        return self._queries.pending()


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
