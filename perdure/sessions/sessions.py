"""Creates, updates, queries, lists and deletes sessions, from the client's side."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Collection
from typing import Any

from pydantic import BaseModel, ConfigDict
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryRejectedError,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import (
    InvocationFailed,
    InvocationNotFound,
    SessionExists,
    SessionUnreadable,
)
from perdure.journal.events import Event
from perdure.journal.fold import fold_journal
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.journal.projection import Projection, shared_part, split_state_delta, stored_part
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import APP, PENDING_TOOLS, STATUS
from perdure.messages.session import (
    EFFECTS,
    EVENTS,
    JOURNAL,
    PENDING,
    PLAN,
    SESSION,
    Effect,
    EffectsPage,
    EventsPage,
    InvocationView,
    JournalPage,
    PageInput,
    PendingView,
    PlanInput,
    PlanView,
    SessionInput,
    SessionView,
)
from perdure.messages.shared_state import (
    CHANGE_STATE,
    ShareStateInput,
    StateChangeInput,
    StateChangeResult,
    with_delta,
)
from perdure.plan.nodes import Plan
from perdure.rules.intake import check_ids
from perdure.sessions.calls import SessionCalls, check_sendable
from perdure.sessions.lifecycle import DELETED, missing
from perdure.sessions.shared_state import share_state

_Handle = WorkflowHandle[Any, Any]

_PATIENCE = 10.0
"""Seconds for which a session is asked what it waits for."""

_CLOSED_PRECEDENCE: tuple[SessionStatus, ...] = ("failed", "waiting", "stopped")


class ListedSession(BaseModel):
    """A session in a listing."""

    model_config = ConfigDict(frozen=True)

    app_name: str
    user_id: str
    id: str
    workflow_id: str
    status: SessionStatus | None = None
    """As of the last change; `None` where the server has no search attributes."""
    closed: bool = False
    """Its workflow was terminated, timed out or failed; the next message, answer or resume brings it back."""
    started: float
    """Seconds since the epoch at which the workflow's newest run started."""
    pending_tools: tuple[str, ...] | None = None
    """Names of the tools that wait for an answer; `None` where the server has no search attributes."""

    @property
    def key(self) -> SessionKey:
        """Names the session."""
        return SessionKey(self.app_name, self.user_id, self.id)


class Sessions(SessionCalls):
    """The sessions of one app, from the client's side."""

    async def create(self, key: SessionKey, state: dict[str, Any]) -> SessionView:
        """Create a session."""
        check_ids(key)
        check_sendable(SessionInput(state=state), "state")
        try:
            await self._lifecycle.create(key, state)
        except WorkflowAlreadyStartedError as error:
            raise SessionExists(
                f"app {key.app!r} has a session {key.session!r} of user {key.user!r} already"
            ) from error
        shared = shared_part(state)
        if shared:
            request = ShareStateInput(user_id=key.user, write_id=str(uuid.uuid4()), delta=shared)
            await share_state(self._client, key.app, request)
        return SessionView(app_name=key.app, user_id=key.user, id=key.session, state=stored_part(state), status="idle")

    async def change_state(self, key: SessionKey, delta: dict[str, Any]) -> Event:
        """Write into a session's state; returns the event that says so."""
        request = StateChangeInput(state_delta=delta, request_id=str(uuid.uuid4()))
        event = (await self.execute(key, CHANGE_STATE, request, StateChangeResult)).event
        if not event.actions.state_delta:
            # A large one does not come back.
            event = with_delta(event, split_state_delta(delta)[0])
        shared = shared_part(delta)
        if shared:
            write = ShareStateInput(user_id=key.user, write_id=event.id, delta=shared)
            await share_state(self._client, key.app, write)
        return event

    async def ensure(self, key: SessionKey) -> None:
        """Create a session unless it exists."""
        try:
            await self.create(key, {})
        except SessionExists:
            return

    async def view(self, key: SessionKey) -> SessionView:
        """Return the projected session."""
        try:
            return await self.query(key, SESSION, result_type=SessionView, closed=False)
        except WorkflowQueryRejectedError as error:
            view: SessionView = await self.query(key, SESSION, result_type=SessionView, closed=True)
            return _interrupted(view, f"the session's workflow is {_name(error)}")

    async def events(self, key: SessionKey, request: PageInput, *, closed: bool = False) -> EventsPage:
        """Return a page of the log.

        Raises:
            InvocationFailed: The workflow is closed, and `closed` is false.
        """
        try:
            return await self.query(key, EVENTS, request, result_type=EventsPage, closed=closed)
        except WorkflowQueryRejectedError as error:
            raise InvocationFailed(
                request.invocation_id or "?",
                agent="?",
                step="workflow",
                cause=f"the session's workflow was {_name(error)}",
                resumable=True,
            ) from error

    async def journal_length(self, key: SessionKey, *, closed: bool) -> int:
        """Return the number of entries in a session's journal.

        Raises:
            WorkflowQueryRejectedError: The workflow is closed, and `closed` is false.
        """
        # Of the journal nothing is wanted: a page from beyond its end.
        request = PageInput(since=sys.maxsize)
        page: JournalPage = await self.query(key, JOURNAL, request, result_type=JournalPage, closed=closed)
        return page.total

    async def effects(self, key: SessionKey) -> tuple[Effect, ...]:
        """Return the whole ledger, page by page; calls may come in between, but none goes away."""
        effects: list[Effect] = []
        while True:
            page = await self.effects_page(key, len(effects))
            effects.extend(page.effects)
            if len(effects) >= page.total:
                return tuple(effects)

    async def effects_page(self, key: SessionKey, since: int) -> EffectsPage:
        """Return a page of the ledger."""
        request = PageInput(since=since)
        return await self.query(key, EFFECTS, request, result_type=EffectsPage, closed=True)

    async def invocation(self, key: SessionKey, invocation_id: str) -> InvocationView:
        """Return one invocation."""
        # Of the log nothing is wanted: a page from beyond its end.
        request = PageInput(since=sys.maxsize, invocation_id=invocation_id)
        try:
            view = (await self.events(key, request)).invocation
        except InvocationFailed:
            views = (await self.view(key)).invocations
            view = next((view for view in views if view.id == invocation_id), None)
        if view is not None:
            return view
        raise InvocationNotFound(f"session {key.session!r} has no invocation {invocation_id!r}")

    async def take_over(self, key: SessionKey) -> int:
        """Bring a session into a run with the code of today; returns the number of events in its log then."""
        await self._lifecycle.take_over(key)
        return (await self.view(key)).event_count

    async def plan(self, key: SessionKey, digest: str) -> Plan | None:
        """Return a plan that invocations of a session are pinned to."""
        view: PlanView = await self.query(key, PLAN, PlanInput(digest=digest), result_type=PlanView, closed=True)
        return view.plan

    async def projection(self, key: SessionKey) -> tuple[Projection, str | None]:
        """Return a session's whole projection, and how its workflow ended if it is closed.

        Raises:
            SessionUnreadable: No worker answers for it.
        """
        status = await self._lifecycle.status(key)
        if status in (None, DELETED):
            raise missing(key)
        projection = fold_journal(await self._lifecycle.read_journal(key))
        return projection, None if status in ("running", "continued as new") else status

    async def list(self, user_id: str | None, status: Collection[SessionStatus] = ()) -> list[ListedSession]:
        """Return the sessions, newest first; with `status` only those of one of these."""
        found: dict[str, ListedSession] = {}
        async for session in self._listed(user_id):
            known = found.get(session.workflow_id)
            if known is None or session.started > known.started:
                found[session.workflow_id] = session
        left = [session for session in found.values() if not session.closed or await self.is_left(session)]
        sessions = [session for session in left if not status or await self._status(session) in status]
        return sorted(sessions, key=lambda session: -session.started)

    async def _status(self, session: ListedSession) -> SessionStatus:
        """Return a session's status, as listed, or as it says itself where listings tell none."""
        return session.status or (await self.view(session.key)).status

    async def is_left(self, session: ListedSession) -> bool:
        """Return whether a session whose workflow is closed is still there, and was not deleted."""
        return await self._lifecycle.status(session.key) not in (None, DELETED)

    async def _described(self, key: SessionKey) -> ListedSession:
        try:
            return listed(await self._handle(key).describe())
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise missing(key) from error
            raise

    async def _listed(self, user_id: str | None) -> AsyncIterator[ListedSession]:
        query = f"WorkflowType = '{self._app}' AND ExecutionStatus != 'ContinuedAsNew'"
        if user_id is not None:
            # Encoded, so there is no quote in it.
            query += f" AND WorkflowId STARTS_WITH '{SessionKey(self._app, user_id, '').workflow_id}'"
        async for execution in self._client.list_workflows(query):
            if execution.id.count("/") != 2:
                # Somebody started a workflow of the app's type by hand; it is no session.
                continue
            session = listed(execution)
            if user_id is None or session.user_id == user_id:
                yield session

    async def delete(self, key: SessionKey) -> None:
        """Delete a session."""
        await self._lifecycle.delete(key)

    async def pending(self, key: SessionKey) -> list[tuple[ListedSession, PendingCall]]:
        """Return a session's open calls, oldest first.

        Raises:
            SessionUnreadable: No worker answers for it.
        """
        session = await self._described(key)
        try:
            async with asyncio.timeout(_PATIENCE):
                view: PendingView = await self.query(key, PENDING, result_type=PendingView, closed=True)
        except TimeoutError as error:
            raise SessionUnreadable(
                f"session {key.session!r} does not answer, so what it waits for cannot be told; start a worker of app"
                f" {self._app!r} and ask again"
            ) from error
        return [(session, call) for call in sorted(view.calls, key=lambda call: call.since)]


async def list_apps(client: Client) -> list[str]:
    """Return the names of the apps that have sessions in the namespace.

    Raises:
        RPCError: The namespace lacks Perdure's search attributes.
    """
    found = {SessionKey.parse(run.id).app async for run in client.list_workflows(f"{APP.name} IS NOT NULL")}
    return sorted(found)


def listed(execution: WorkflowExecution) -> ListedSession:
    """Return the session whose workflow a listing tells of."""
    key = SessionKey.parse(execution.id)
    status: Any = execution.typed_search_attributes.get(STATUS)
    tools = execution.typed_search_attributes.get(PENDING_TOOLS)
    return ListedSession(
        app_name=key.app,
        user_id=key.user,
        id=key.session,
        workflow_id=execution.id,
        status=status,
        closed=execution.status != WorkflowExecutionStatus.RUNNING,
        started=execution.start_time.timestamp(),
        pending_tools=None if status is None else tuple(tools or ()),
    )


def _name(error: WorkflowQueryRejectedError) -> str:
    return error.status.name.lower().replace("_", " ") if error.status else "closed"


def _interrupted(view: SessionView, reason: str) -> SessionView:
    """Return a closed session as it will be when it is brought back: what ran is stopped."""
    invocations = tuple(
        invocation.model_copy(update={"status": "stopped", "reason": reason})
        if invocation.status == "running"
        else invocation
        for invocation in view.invocations
    )
    statuses = {invocation.status for invocation in invocations}
    status: SessionStatus = "idle"
    for candidate in _CLOSED_PRECEDENCE:
        if candidate in statuses:
            status = candidate
            break
    return view.model_copy(update={"invocations": invocations, "status": status})
