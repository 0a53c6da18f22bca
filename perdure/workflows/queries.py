"""Answers the queries of a session's workflow, which leave no trace in its history."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import MAX_PAYLOAD_BYTES
from perdure.journal.projection import Projection
from perdure.messages.effects import EffectsPage
from perdure.messages.keys import SessionKey
from perdure.messages.session import (
    EventsPage,
    JournalPage,
    PageInput,
    PendingView,
    PlanInput,
    PlanView,
    SessionView,
)
from perdure.views.ledger import effects_page
from perdure.views.pages import events_page, journal_page, pending_view, session_view
from perdure.workflows.first_journal import Arrival


class SessionQueries:
    """Answers a session's queries; all of them fail while the journal is on its way."""

    def __init__(self, key: SessionKey, arrival: Arrival) -> None:
        """Answer for a session, once its journal has arrived."""
        self._key = key
        self._arrival = arrival

    def events(self, request: PageInput) -> EventsPage:
        """Return a page of the event log."""
        return events_page(self._projection(), request)

    def journal(self, request: PageInput) -> JournalPage:
        """Return a page of the journal, or where it is while it is on its way."""
        elsewhere = self._arrival.pointer()
        return elsewhere if elsewhere is not None else journal_page(self._projection(), request)

    def effects(self, request: PageInput) -> EffectsPage:
        """Return a page of the ledger of tool calls."""
        return effects_page(self._projection(), request)

    def session(self) -> SessionView:
        """Return the projected session."""
        view = session_view(self._projection(), self._key)
        size = payload_size(view)
        if size > MAX_PAYLOAD_BYTES:
            raise ApplicationError(
                f"the session's state is too large to be shown ({size / 1e6:.1f} MB); read its events"
            )
        return view

    def plan(self, request: PlanInput) -> PlanView:
        """Return a plan by its digest."""
        return PlanView(plan=self._projection().plans.get(request.digest))

    def pending(self) -> PendingView:
        """Return the open calls."""
        return pending_view(self._projection())

    def _projection(self) -> Projection:
        self._arrival.check()
        return self._arrival.log.projection
