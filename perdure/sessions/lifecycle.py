"""Starts a session's workflow, brings it back after it was closed, and deletes it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import SessionNotFound, SessionUnreadable
from perdure.journal.entries import Entry, InvocationSettled, ModelCalled, TempStateSet, innermost
from perdure.journal.fold import fold_journal
from perdure.journal.packing import pack_part, pack_whole
from perdure.messages.claims import claims_id
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import STATUS
from perdure.messages.session import (
    EXTEND_JOURNAL,
    LOADING,
    JournalPage,
    JournalReference,
    SessionInput,
    Trial,
)
from perdure.sessions.journal_reader import JournalReader
from perdure.sessions.shared_state import share_again
from perdure.temporal.task_timeouts import SHORT

_Handle = WorkflowHandle[Any, Any]

DELETED = "the session was deleted"
"""The reason with which a session's workflow is terminated to be deleted."""

REPLACED = "the session's log is replaced"
"""The reason with which a session's workflow is terminated so that another log takes its place."""


KEPT_OF = "perdure:kept-of"
"""Name of a memo: the run whose journal a session keeps that was replaced."""

TAKEN_FROM = "perdure:taken-from"
"""Name of a memo: the journal of another run that a session is sent part by part, should its sender be gone."""

_NEXT_RUN_SECONDS = 0.1


def missing(key: SessionKey) -> SessionNotFound:
    """Return the refusal that says that there is no such session."""
    return SessionNotFound(
        f"app {key.app!r} has no session {key.session!r} of user {key.user!r};"
        " create it first (create_session, or `perdure run`)"
    )


def whole_steps(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Leave out a model call at the journal's end that is counted while its answer was cut off: it is made again."""
    end = len(entries)
    if end > 1 and isinstance(innermost(entries[-1]), TempStateSet) and isinstance(innermost(entries[-2]), ModelCalled):
        end -= 1
    last = innermost(entries[end - 1]) if end else None
    # One that is asked again leaves nothing else.
    return entries[: end - 1] if isinstance(last, ModelCalled) and last.again is None else entries


def _stopped(entries: Sequence[Entry], how: str) -> tuple[InvocationSettled, ...]:
    """Return the entries that stop what a run, which ended so, left at work."""
    reason, now = f"the session's workflow was {how}", time.time()
    return tuple(
        InvocationSettled(invocation_id=invocation.id, status="stopped", reason=reason, timestamp=now)
        for invocation in fold_journal(entries).invocations.values()
        if invocation.status == "running"
    )


def _task_timeout(start: SessionInput, *, local_tools: bool) -> timedelta | None:
    if start.trial is not None and start.trial.dead_after is not None:
        return timedelta(seconds=start.trial.dead_after)
    return SHORT if local_tools and start.carried is None and start.length is None else None


async def _send_part(handle: _Handle, page: JournalPage) -> bool:
    """Send a part of a journal to a run; returns whether it takes more of them.

    Raises:
        SessionUnreadable: The run was ended meanwhile.
    """
    try:
        await handle.execute_update(EXTEND_JOURNAL, page, result_type=int)  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
    except WorkflowUpdateFailedError as error:
        # All of it is there: another client sends the same parts.
        if isinstance(error.cause, ApplicationError) and error.cause.type == "InvalidMessage":
            return False
        raise
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        raise SessionUnreadable(
            f"the workflow {handle.id!r} was ended by another client while its log was sent, so the log is not there;"
            " send it again, if it is to stand"
        ) from error
    return True


async def _send_parts(handle: _Handle, entries: Sequence[Entry], sent: int) -> bool:
    """Send a journal from its entry `sent` on; returns whether the run had not got all of it.

    Raises:
        SessionUnreadable: The run was ended meanwhile.
    """
    while sent < len(entries):
        packed, count = pack_part(entries, sent)
        if not await _send_part(handle, JournalPage(packed=packed, offset=sent, total=len(entries))):
            return False
        sent += count
    return True


async def end_run(handle: _Handle, reason: str = DELETED) -> bool:
    """Terminate a run or a workflow; returns whether it was open."""
    try:
        await handle.terminate(reason=reason)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def _end_newest(client: Client, handle: _Handle) -> WorkflowExecutionDescription:
    """Terminate a session's newest run, if it is open; returns the run that is closed now."""
    while True:
        description = await handle.describe()
        if description.status == WorkflowExecutionStatus.RUNNING:
            # That run, and no other that has taken its place meanwhile: nobody else may know of it.
            run = client.get_workflow_handle(handle.id, run_id=description.run_id)
            await end_run(run, REPLACED)
            description = await run.describe()
        if description.status != WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return description
        await asyncio.sleep(_NEXT_RUN_SECONDS)


async def _claims_of(client: Client, handle: _Handle) -> _Handle | None:
    """Return the open claims of a session as they are now, and none that begin later; `None` if there are none."""
    try:
        description = await client.get_workflow_handle(claims_id(handle.id)).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None
    first = description.raw_description.workflow_execution_info.first_run_id
    return client.get_workflow_handle(claims_id(handle.id), first_execution_run_id=first or None)


async def _delete_runs(client: Client, handle: _Handle) -> None:
    """Delete every run of a workflow that is closed."""
    quoted = handle.id.replace("'", "''")
    runs = [run.run_id async for run in client.list_workflows(f"WorkflowId = '{quoted}'")]
    # Listings may be behind, but a description is not.
    runs.append((await handle.describe()).run_id)
    for run_id in dict.fromkeys(runs):
        run = WorkflowExecution(workflow_id=handle.id, run_id=run_id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
        try:
            await client.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise


class Lifecycle:
    """Starts, brings back and ends the workflows of one app's sessions."""

    def __init__(self, client: Client, *, trial: Trial | None = None, local_tools: bool = False) -> None:
        self._client = client
        self._trial = trial
        self._local_tools = local_tools
        self._journals = JournalReader(client)

    def _handle(self, key: SessionKey) -> _Handle:
        return self._client.get_workflow_handle(key.workflow_id)

    def _input(self, **given: Any) -> SessionInput:
        """Return what every new run of a session starts with, beside what this one is given."""
        return SessionInput(trial=self._trial, **given)

    async def create(self, key: SessionKey, state: dict[str, Any]) -> None:
        """Start a new session.

        Raises:
            WorkflowAlreadyStartedError: There is one of this id.
        """
        start = self._input(state=state)
        try:
            await self.start(key, start, again=False)
        except WorkflowAlreadyStartedError:
            if await self.status(key) != DELETED:
                raise
            await self.start(key, start, again=True)

    def beginning(self, key: SessionKey) -> WithStartWorkflowOperation[Any, Any]:
        """Return the start of a new session, for the request that begins it; none of this id may be closed."""
        start = self._input(state={})
        return WithStartWorkflowOperation(
            key.app,
            start,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            **self._options(key, start),
        )

    def _options(self, key: SessionKey, start: SessionInput) -> dict[str, Any]:
        return {
            "id": key.workflow_id,
            "task_queue": key.app,
            "task_timeout": _task_timeout(start, local_tools=self._local_tools),
            "static_summary": f"session {key.session} of {key.user}",
        }

    async def start(
        self, key: SessionKey, start: SessionInput, *, again: bool, memo: dict[str, Any] | None = None
    ) -> _Handle:
        """Start a workflow; `again` after one that is closed. Returns a handle of this very run."""
        policy = WorkflowIDReusePolicy.ALLOW_DUPLICATE if again else WorkflowIDReusePolicy.REJECT_DUPLICATE
        options = self._options(key, start)
        started = await self._client.start_workflow(key.app, start, memo=memo, id_reuse_policy=policy, **options)
        return self._client.get_workflow_handle(started.id, run_id=started.result_run_id)

    async def bring_back(self, key: SessionKey) -> None:
        """Start a session's workflow anew with the journal of the run that is closed."""
        handle = self._handle(key)
        ended = await self.status(key)
        if ended in (None, DELETED):
            raise missing(key)
        if ended in ("running", "continued as new"):
            return
        description = await handle.describe()
        entries, shared = await self._journals.read_closed(description)
        await share_again(self._client, key, entries, shared)
        known = description.typed_search_attributes.get(STATUS) is not None
        # Where somebody else has brought it back meanwhile, all is well.
        with contextlib.suppress(WorkflowAlreadyStartedError):
            if pack_whole(entries) is None and await self._journals.holds(description, len(entries)):
                carried = JournalReference(run_id=description.run_id, length=len(entries))
                start = self._input(carried=carried, stopped=_stopped(entries, ended), search_attributes=known)
                await self.start(key, start, again=True)
            else:
                await self.restore(key, entries, interrupted=ended, search_attributes=known, again=True)

    async def take_over(self, key: SessionKey) -> None:
        """End a session's workflow and start it anew with its journal, read from history: none of its code runs again.

        Raises:
            SessionNotFound: There is no such session.
            SessionUnreadable: History does not hold the whole journal; nothing was ended.
        """
        handle = self._handle(key)
        if await self.status(key) not in ("running", "continued as new"):
            await self.bring_back(key)
            return
        description = await handle.describe()
        run = self._client.get_workflow_handle(handle.id, run_id=description.run_id)
        try:
            # Once before anything is ended, to be sure that it can be read.
            await self._journals.salvage(handle.id, description.run_id)
        except SessionUnreadable:
            if not await self._send_rest(run, description):
                raise
            return
        with contextlib.suppress(RPCError):
            await run.terminate(reason="taken over by a run with the code of today")
        entries, shared = await self._journals.salvage(handle.id, description.run_id)
        await share_again(self._client, key, entries, shared)
        known = description.typed_search_attributes.get(STATUS) is not None
        with contextlib.suppress(WorkflowAlreadyStartedError):
            source = description.run_id
            await self.restore(key, entries, search_attributes=known, again=True, taken_from=source)

    async def _send_rest(self, run: _Handle, description: WorkflowExecutionDescription) -> bool:
        """Send a run what it lacks of the journal of the run before, since whoever began with that is gone."""
        source = await description.memo_value(TAKEN_FROM, None, type_hint=JournalReference)
        if source is None or not await self._journals.is_arriving(run.id, description.run_id):
            return False
        entries, _ = await self._journals.salvage(run.id, source.run_id)
        return await _send_parts(run, entries[: source.length], 0)

    async def restore(
        self,
        key: SessionKey,
        entries: Sequence[Entry],
        *,
        interrupted: str | None = None,
        search_attributes: bool = False,
        again: bool = False,
        kept_of: str | None = None,
        taken_from: str | None = None,
    ) -> None:
        """Start a session's workflow with a journal of any size, which is sent part by part.

        Args:
            key: Which session.
            entries: The journal, which goes on from here.
            interrupted: Why the journal ends, if it may end in the middle of a turn; what was running is then stopped.
            search_attributes: Perdure's search attributes exist in this namespace.
            again: After a workflow of this id that is closed.
            kept_of: The run whose journal is kept here. Another client may be about the same.
            taken_from: The run before, from whose history the journal is: what is not sent now can be sent later.

        Raises:
            WorkflowAlreadyStartedError: There is one of this id; with `again`, an open one.
            WorkflowUpdateFailedError: A part is malformed; the session is to be deleted.
            SessionUnreadable: Somebody has ended the new workflow before all parts were there.
        """
        if interrupted is not None:
            entries = whole_steps(entries)
            entries = [*entries, *_stopped(entries, interrupted)]
        journal, sent = pack_part(entries, 0)
        start = self._input(journal=journal, length=len(entries), search_attributes=search_attributes)
        source = JournalReference(run_id=taken_from, length=len(entries)) if taken_from is not None else None
        memo = {name: value for name, value in ((KEPT_OF, kept_of), (TAKEN_FROM, source)) if value is not None}
        try:
            handle = await self.start(key, start, again=again, memo=memo)
        except WorkflowAlreadyStartedError:
            # Whoever keeps the same journal here may be gone, so its parts are sent all the same.
            handle = self._handle(key)
            if kept_of is None or await (await handle.describe()).memo_value(KEPT_OF, None) != kept_of:
                raise
        await _send_parts(handle, entries, sent)

    async def read_journal(self, key: SessionKey) -> list[Entry]:
        """Return the whole journal of a session, open or closed.

        Raises:
            SessionUnreadable: History does not hold all of it, or the server is away.
        """
        return await self._journals.read(key.workflow_id)

    async def set_aside(self, key: SessionKey) -> str | None:
        """End a session's workflow and keep its whole journal under a session id of its own, as if it was closed there.

        Whatever happens on the way, the old session is not lost: closed, it is brought back by what it is sent next.

        Clients that do this at the same time keep one copy of it.

        Returns:
            The new session id, `SESSION~replaced-N`; `None` if there is no such session, or its log has not arrived.

        Raises:
            SessionUnreadable: History does not hold all of it.
        """
        if not await self.exists(key):
            return None
        handle = self._handle(key)
        description = await _end_newest(self._client, handle)
        # Another client may go on with its own log meanwhile, whose claims are to stay.
        claims = await _claims_of(self._client, handle)
        kept = await self._keep(key, description)
        # Not before: until then the session may be brought back.
        if claims is not None:
            await end_run(claims, REPLACED)
        return kept

    async def _keep(self, key: SessionKey, description: WorkflowExecutionDescription) -> str | None:
        """Keep the journal of a session's run that was ended under another session id, as `set_aside` does."""
        try:
            entries = await self._journals.read_ended(description)
        except SessionUnreadable as error:
            if LOADING not in str(error):
                raise
            # Its log had not arrived yet; whoever was sending it is told.
            return None
        known = description.typed_search_attributes.get(STATUS) is not None
        for number in count(1):
            kept = replace(key, session=f"{key.session}~replaced-{number}")
            with contextlib.suppress(WorkflowAlreadyStartedError):
                await self.restore(
                    kept,
                    entries,
                    interrupted="replaced",
                    search_attributes=known,
                    kept_of=description.run_id,
                )
                return kept.session
        return None

    async def delete(self, key: SessionKey) -> None:
        """Delete every run of a session's workflow.

        The server deletes in its own time, some ten seconds; the reason of the termination tells meanwhile.
        """
        handle = self._handle(key)
        if not await end_run(handle):
            if not await self.exists(key):
                # Whoever deleted it may have got no further, or the server has forgotten it by itself.
                await self._delete_claims(handle)
                return
            # A workflow that is closed already takes no mark, but a last run of it does.
            with contextlib.suppress(WorkflowAlreadyStartedError):
                await self.start(key, SessionInput(), again=True)
            await end_run(handle)
        await _delete_runs(self._client, handle)
        await self._delete_claims(handle)

    async def _delete_claims(self, handle: _Handle) -> None:
        claims = self._client.get_workflow_handle(claims_id(handle.id))
        if await end_run(claims):
            await _delete_runs(self._client, claims)

    async def exists(self, key: SessionKey) -> bool:
        """Return whether there is such a session, open or closed."""
        return await self.status(key) not in (None, DELETED)

    async def status(self, key: SessionKey) -> str | None:
        """Return how a session's workflow ended, `DELETED`, `running`, or `None` if there is none."""
        handle = self._handle(key)
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
