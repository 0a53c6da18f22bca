"""What a session's readers see, by queries without a trace in the history, and the update by which they wait."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.errors import InvocationRunning, RequestRefused
from perdure.journal.entries import MAX_PAYLOAD_BYTES, payload_size
from perdure.journal.projection import Invocation, Projection
from perdure.messages import session as messages
from perdure.messages.session import (
    EffectsPage,
    EventsPage,
    InvocationInput,
    InvocationResult,
    JournalPage,
    PageInput,
    PendingView,
    PlanInput,
    PlanView,
    SessionView,
)
from perdure.rules import intake as requests
from perdure.views.ledger import effects_page
from perdure.views.pages import events_page, invocation_view, journal_page, pending_view, session_view
from perdure.workflows.first_journal import Arrival
from perdure.workflows.run.limits import RunLimits
from perdure.workflows.run.log import SessionLog

_MAX_WAITS = 5
"""Of the ten updates that Temporal takes of a workflow at a time; the others are for messages, answers and stops."""


class TurnWaits:
    """Those who wait until an invocation has given up the turn."""

    def __init__(self) -> None:
        self._number = 0
        self._ended = False

    def check(self) -> None:
        """Raise `InvocationRunning` if the run hands over, and the next one is to be asked, or one more is too many."""
        if self._ended:
            raise InvocationRunning(messages.HANDS_OVER)
        if self._number >= _MAX_WAITS:
            raise InvocationRunning(f"{self._number} wait for invocations of the session already; follow it instead")

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Count one who waits, also for the journal."""
        self._number += 1
        try:
            yield
        finally:
            self._number -= 1

    async def until_settled(self, invocation: Invocation) -> None:
        """Return when an invocation has given up the turn, or nobody is to wait any more."""
        await workflow.wait_condition(lambda: self._ended or invocation.status not in ("queued", "running"))

    def end(self) -> None:
        """Let all of them go, since the run hands over to the next one, which they are to ask."""
        self._ended = True


class refusing:
    """Turns a refusal into the form in which it crosses to the client."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestRefused):
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error


class SessionQueries:
    """The half of the session workflow that only looks. Queries fail while the journal is on its way."""

    _app: str
    _user_id: str
    _session_id: str
    _arrival: Arrival
    _log: SessionLog
    _limits: RunLimits
    _waits: TurnWaits

    async def _ready(self) -> Projection:
        """Return the projection as soon as the journal is complete; each update goes through here."""
        self._limits.updates += 1
        await self._arrival.wait()
        return self._log.projection

    def _result(self, invocation_id: str, offset: int) -> InvocationResult:
        projection = self._log.projection
        view = invocation_view(projection, projection.invocations[invocation_id])
        return InvocationResult(invocation=view, offset=offset)

    @workflow.update(name=messages.WAIT)
    async def wait(self, request: InvocationInput) -> InvocationResult:
        """Return when an invocation has given up the turn; while it has not, if the run hands over to the next one."""
        with self._waits.waiting():
            projection = await self._ready()
            offset = len(projection.events)
            with refusing():
                invocation = requests.find_invocation(projection, request)
            await self._waits.until_settled(invocation)
        return self._result(invocation.id, offset)

    @wait.validator
    def _check_wait(self, request: InvocationInput) -> None:
        with refusing():
            self._waits.check()
            if self._arrival.complete:
                requests.find_invocation(self._log.projection, request)

    @workflow.query(name=messages.EVENTS)
    def events(self, request: PageInput) -> EventsPage:
        """Return a page of the event log."""
        self._arrival.check()
        return events_page(self._log.projection, request)

    @workflow.query(name=messages.JOURNAL)
    def journal(self, request: PageInput) -> JournalPage:
        """Return a page of the journal."""
        elsewhere = self._arrival.pointer()
        if elsewhere is not None:
            return elsewhere
        self._arrival.check()
        return journal_page(self._log.projection, request)

    @workflow.query(name=messages.EFFECTS)
    def effects(self, request: PageInput) -> EffectsPage:
        """Return a page of the ledger of tool calls."""
        self._arrival.check()
        return effects_page(self._log.projection, request)

    @workflow.query(name=messages.SESSION)
    def session(self) -> SessionView:
        """Return the projected session."""
        self._arrival.check()
        view = session_view(self._log.projection, self._app, self._user_id, self._session_id)
        size = payload_size(view)
        if size > MAX_PAYLOAD_BYTES:
            raise ApplicationError(
                f"the session's state is too large to be shown ({size / 1e6:.1f} MB); read its events"
            )
        return view

    @workflow.query(name=messages.PLAN)
    def plan(self, request: PlanInput) -> PlanView:
        """Return a plan by its digest."""
        self._arrival.check()
        return PlanView(plan=self._log.projection.plans.get(request.digest))

    @workflow.query(name=messages.PENDING)
    def pending(self) -> PendingView:
        """Return the open calls."""
        self._arrival.check()
        return pending_view(self._log.projection)
