"""The queries of a session's workflow: what readers see, without a trace in the history."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure import messages
from perdure.journal import MAX_PAYLOAD_BYTES, payload_size
from perdure.messages import (
    EffectsPage,
    EventsPage,
    JournalPage,
    PageInput,
    PendingView,
    PlanInput,
    PlanView,
    SessionView,
)
from perdure.tool_effects import effects_page
from perdure.views import events_page, journal_page, pending_view, session_view
from perdure.workflows.arrival import Arrival
from perdure.workflows.log import SessionLog


class SessionQueries:
    """The half of the session workflow that only looks. All of it fails while the journal is on its way."""

    _app: str
    _user_id: str
    _session_id: str
    _arrival: Arrival
    _log: SessionLog

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
