"""Finds a session's whole journal: by query, in a closed run's history, or put together from what history tells."""

from __future__ import annotations

from functools import partial
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError

from perdure.errors import LogError, SessionUnreadable
from perdure.journal.entries import MAX_PART_BYTES, Entry, SessionCreated
from perdure.journal.packing import pack, unpack
from perdure.messages.session import JOURNAL, LOADING, JournalPage, PageInput, SessionInput
from perdure.recovery.slices import read_archive
from perdure.recovery.stuck import check_readable, read_from_history
from perdure.temporal.refused_queries import BETWEEN_STEPS, ask_again

_Handle = WorkflowHandle[Any, Any]

_LONG_HISTORY_BYTES = 2_000_000
"""Beyond this a closed run is not asked page by page for its journal: each answer takes a replay."""

_BETWEEN_SECONDS = 20.0
"""For how long a run is asked again that is between two steps: one that is open takes the next."""

_NEVER_RAN = "closed before WorkflowTaskStarted"
"""How the server says that a run was closed before any worker had it, and so answers no query."""


class JournalReader:
    """Reads the journals of one app's sessions."""

    def __init__(self, app: str, client: Client) -> None:
        self._app = app
        self._client = client

    async def read(self, id: str, *, closed: bool) -> list[Entry]:
        """Return the whole journal of a session's workflow, open or known to be closed.

        Raises:
            SessionUnreadable: No worker answers for it.
        """
        try:
            return (await self._find(id, None, [], patience=0.0 if closed else _BETWEEN_SECONDS))[1]
        except SessionUnreadable as error:
            return await self._salvage_between(id, None, error)

    async def read_ended(self, description: WorkflowExecutionDescription) -> list[Entry]:
        """Return the journal of a closed run, wherever it is found."""
        try:
            return (await self.read_closed(description))[1]
        except SessionUnreadable as error:
            return await self._salvage_between(description.id, description.run_id, error)

    async def _salvage_between(self, id: str, run_id: str | None, error: SessionUnreadable) -> list[Entry]:
        """Return the journal as its history tells it if the run is closed between two steps; else raise the error."""
        if BETWEEN_STEPS not in str(error):
            raise error
        run: _Handle = self._client.get_workflow_handle(id, run_id=run_id)
        if (await run.describe()).status == WorkflowExecutionStatus.RUNNING:
            raise error
        return (await self.salvage(id, run_id, error))[0]

    async def read_closed(self, description: WorkflowExecutionDescription) -> tuple[str, list[Entry]]:
        """Return the journal of a closed run, and the run in which it was found."""
        long = description.raw_description.workflow_execution_info.history_size_bytes > _LONG_HISTORY_BYTES
        known = await read_archive(self._client, description.id, description.run_id) if long else []
        return await self._find(description.id, description.run_id, known, patience=0.0)

    async def _find(
        self, id: str, run_id: str | None, known: list[Entry], *, patience: float
    ) -> tuple[str, list[Entry]]:
        """Return the journal of a run, and the run in which it was found: one that never had it whole names another."""
        entries = list(known)
        try:
            while True:
                page = await ask_again(partial(self._read_page, id, run_id, len(entries)), patience)
                if page.carried is not None:
                    run_id = page.carried.run_id
                    continue
                entries.extend(page.entries)
                if len(entries) >= page.total:
                    return run_id or "", entries
        except (WorkflowQueryFailedError, RPCError) as error:
            await check_readable(self._client, id)
            raise SessionUnreadable(
                f"the journal of the workflow {id!r} cannot be read: {error};"
                f" is a worker for app {self._app!r} running?"
            ) from error

    async def _read_page(self, id: str, run_id: str | None, since: int) -> JournalPage:
        handle: _Handle = self._client.get_workflow_handle(id, run_id=run_id)
        try:
            return await handle.query(
                JOURNAL, PageInput(since=since, max_bytes=MAX_PART_BYTES), result_type=JournalPage
            )
        except RPCError as error:
            if _NEVER_RAN not in error.message:
                raise
        # The run has nothing but what it was started with.
        start = await self._start_of(handle)
        journal: str = start.journal or pack([] if start.carried else [SessionCreated(state=start.state)])
        if start.length is not None and start.length > len(unpack(journal)):
            raise SessionUnreadable(f"the workflow {id!r} was closed while {LOADING}: the rest of it was never sent")
        return JournalPage(packed=journal, total=len(unpack(journal)), carried=start.carried)

    async def _start_of(self, handle: _Handle) -> SessionInput:
        started = await anext(handle.fetch_history_events(page_size=1))
        payloads = started.workflow_execution_started_event_attributes.input.payloads
        return (await self._client.data_converter.decode(payloads, [SessionInput]))[0] if payloads else SessionInput()

    async def is_arriving(self, id: str, run_id: str | None) -> bool:
        """Return whether a run has not got all of the journal that it is sent part by part. No worker is asked."""
        length = (await self._start_of(self._client.get_workflow_handle(id, run_id=run_id))).length
        return length is not None and len(await read_archive(self._client, id, run_id)) < length

    async def salvage(
        self, workflow_id: str, run_id: str | None, error: Exception | None = None
    ) -> tuple[list[Entry], set[str]]:
        """Return the journal as a run's history tells it, without running any code; `error` is why it was not asked.

        With it come the ids of events whose `user:` and `app:` keys are known to be shared.

        Raises:
            SessionUnreadable: History does not hold all of it.
        """
        try:
            run = self._client.get_workflow_handle(workflow_id, run_id=run_id)
            return await read_from_history(self._client, run, goes_on=error is None)
        except LogError as unreadable:
            raise SessionUnreadable(
                f"the journal of the workflow {workflow_id!r} cannot be read from its history: {unreadable}"
                + (f" ({error})" if error is not None else "")
            ) from unreadable
