"""A session's workflow from outside: started, brought back after it was closed, deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import SessionNotFound, SessionUnreadable
from perdure.journal import MAX_PAYLOAD_BYTES, Entry, ModelCalled, TempStateSet, pack
from perdure.messages import JOURNAL, JournalPage, PageInput, SessionInput, Trial, workflow_id
from perdure.search import STATUS

_Handle = WorkflowHandle[Any, Any]

DELETED = "the session was deleted"
"""The reason with which a session's workflow is terminated to be deleted."""


def missing(app: str, user_id: str, session_id: str) -> SessionNotFound:
    """Return the refusal that says that there is no such session."""
    return SessionNotFound(
        f"app {app!r} has no session {session_id!r} of user {user_id!r};"
        " create it first (create_session, or `perdure run`)"
    )


def whole_steps(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Leave out a model call at the journal's end that is counted while its answer was cut off: it is made again."""
    end = len(entries)
    if end > 1 and isinstance(entries[-1], TempStateSet) and isinstance(entries[-2], ModelCalled):
        end -= 1
    if end and isinstance(entries[end - 1], ModelCalled):
        end -= 1
        return entries[:end]
    return entries


class Lifecycle:
    """Starts and ends the workflows of one app's sessions."""

    def __init__(self, app: str, client: Client, *, reenter: bool, trial: Trial | None = None) -> None:
        self._app = app
        self._client = client
        self._reenter = reenter
        self._trial = trial

    def _handle(self, user_id: str, session_id: str) -> _Handle:
        return self._client.get_workflow_handle(workflow_id(self._app, user_id, session_id))

    async def create(self, user_id: str, session_id: str, state: dict[str, Any]) -> None:
        """Start a new session.

        Raises:
            WorkflowAlreadyStartedError: There is one of this id.
        """
        start = SessionInput(state=state, reenter=self._reenter, trial=self._trial)
        try:
            await self.start(user_id, session_id, start, again=False)
        except WorkflowAlreadyStartedError:
            if await self.status(user_id, session_id) != DELETED:
                raise
            await self.start(user_id, session_id, start, again=True)

    async def start(self, user_id: str, session_id: str, start: SessionInput, *, again: bool) -> None:
        """Start a workflow; `again` after one that is closed."""
        dead_after = self._trial.dead_after if self._trial is not None else None
        policy = WorkflowIDReusePolicy.ALLOW_DUPLICATE if again else WorkflowIDReusePolicy.REJECT_DUPLICATE
        await self._client.start_workflow(
            self._app,
            start,
            id=workflow_id(self._app, user_id, session_id),
            task_queue=self._app,
            id_reuse_policy=policy,
            task_timeout=timedelta(seconds=dead_after) if dead_after is not None else None,
            static_summary=f"session {session_id} of {user_id}",
        )

    async def bring_back(self, user_id: str, session_id: str) -> None:
        """Start a session's workflow anew with the journal of the run that is closed."""
        handle = self._handle(user_id, session_id)
        ended = await self.status(user_id, session_id)
        if ended in (None, DELETED):
            raise missing(self._app, user_id, session_id)
        if ended in ("running", "continued as new"):
            return
        description = await handle.describe()
        entries = await self.read_journal(user_id, session_id, description.run_id)
        known = description.typed_search_attributes.get(STATUS) is not None
        try:
            await self.restore(user_id, session_id, entries, interrupted=ended, search_attributes=known, again=True)
        except WorkflowAlreadyStartedError:
            # Somebody else brought it back.
            return

    async def restore(
        self,
        user_id: str,
        session_id: str,
        entries: Sequence[Entry],
        *,
        interrupted: str | None = None,
        search_attributes: bool = False,
        again: bool = False,
    ) -> None:
        """Start a session's workflow with a journal.

        Args:
            user_id: Whose session.
            session_id: Which session.
            entries: The journal, which goes on from here.
            interrupted: Why the journal ends, if it may end in the middle of a turn; what was running is then stopped.
            search_attributes: Perdure's search attributes exist in this namespace.
            again: After a workflow of this id that is closed.

        Raises:
            WorkflowAlreadyStartedError: There is one of this id; with `again`, an open one.
            SessionUnreadable: The journal is too large to be carried over.
        """
        journal = pack(entries if interrupted is None else whole_steps(entries))
        if len(journal) > MAX_PAYLOAD_BYTES:
            raise SessionUnreadable(
                f"the journal of session {session_id!r} is too large to be carried over"
                f" ({len(journal) / 1e6:.1f} MB packed, at most {MAX_PAYLOAD_BYTES / 1e6:.1f} MB)"
            )
        start = SessionInput(
            journal=journal,
            interrupted=interrupted,
            search_attributes=search_attributes,
            reenter=self._reenter,
            trial=self._trial,
        )
        await self.start(user_id, session_id, start, again=again)

    async def read_journal(self, user_id: str, session_id: str, run_id: str | None = None) -> list[Entry]:
        """Return the whole journal of a session, open or closed.

        Raises:
            SessionUnreadable: No worker answers for it.
        """
        handle = self._client.get_workflow_handle(workflow_id(self._app, user_id, session_id), run_id=run_id)
        entries: list[Entry] = []
        try:
            while True:
                page = await handle.query(JOURNAL, PageInput(since=len(entries)), result_type=JournalPage)
                entries.extend(page.entries)
                if len(entries) >= page.total:
                    return entries
        except (WorkflowQueryFailedError, RPCError) as error:
            raise SessionUnreadable(
                f"the journal of the workflow {handle.id!r} cannot be read: {error};"
                f" is a worker for app {self._app!r} running?"
            ) from error

    async def delete(self, user_id: str, session_id: str) -> None:
        """Delete every run of a session's workflow.

        The server deletes in its own time, some ten seconds; the reason of the termination tells meanwhile.
        """
        handle = self._handle(user_id, session_id)
        if not await self._terminate(handle):
            if (await self.status(user_id, session_id)) in (None, DELETED):
                return
            # A workflow that is closed already takes no mark, but a last run of it does.
            with contextlib.suppress(WorkflowAlreadyStartedError):
                await self.start(user_id, session_id, SessionInput(), again=True)
            await self._terminate(handle)
        quoted = handle.id.replace("'", "''")
        runs = [run.run_id async for run in self._client.list_workflows(f"WorkflowId = '{quoted}'")]
        # Listings may be behind, but a description is not.
        runs.append((await handle.describe()).run_id)
        for run_id in dict.fromkeys(runs):
            await self._delete_run(handle.id, run_id)

    async def _terminate(self, handle: _Handle) -> bool:
        try:
            await handle.terminate(reason=DELETED)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def status(self, user_id: str, session_id: str) -> str | None:
        """Return how a session's workflow ended, `DELETED`, `running`, or `None` if there is none."""
        handle = self._handle(user_id, session_id)
        try:
            description = await handle.describe()
            if description.status != WorkflowExecutionStatus.TERMINATED:
                return (description.status or WorkflowExecutionStatus.RUNNING).name.lower().replace("_", " ")
            closing = self._client.get_workflow_handle(handle.id, run_id=description.run_id)
            filter_type = WorkflowHistoryEventFilterType.CLOSE_EVENT
            async for event in closing.fetch_history_events(event_filter_type=filter_type):
                if event.workflow_execution_terminated_event_attributes.reason == DELETED:
                    return DELETED
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None
        return "terminated"

    async def _delete_run(self, id: str, run_id: str) -> None:
        request = DeleteWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=id, run_id=run_id),
        )
        try:
            await self._client.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
