"""Finds a session's whole journal in the history of its run: as it stands there, and what was returned since."""

from __future__ import annotations

from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowHandle,
)
from temporalio.service import RPCError

from perdure.errors import LogError, SessionUnreadable
from perdure.journal.entries import Entry
from perdure.messages.session import LOADING, SessionInput
from perdure.recovery.slices import read_archive
from perdure.recovery.stuck import read_from_history
from perdure.sessions.journal_copies import JournalRead, journal_copies
from perdure.sessions.kept_entries import kept_entries

_Handle = WorkflowHandle[Any, Any]


class JournalReader:
    """Reads the journals of one app's sessions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._copies = journal_copies(client)

    async def read(self, id: str) -> list[Entry]:
        """Return the whole journal of a session's workflow.

        Raises:
            SessionUnreadable: History does not hold all of it, or the server is away.
        """
        projection, described, _ = await self._read(id)
        return list(projection.entries) if described.close_time is None else await self.read_ended(described)

    async def read_kept(self, id: str) -> tuple[list[Entry], tuple[Entry, ...]]:
        """Return the same, and what activities keep that are at work; nothing of that, if the run has just gone on."""
        read = await self._read(id)
        entries, described = list(read.projection.entries), read.described
        if described.close_time is not None:
            return await self.read_ended(described), ()
        return entries, await kept_entries(described, self._client.data_converter) if read.is_of_then else ()

    async def _read(self, id: str) -> JournalRead:
        try:
            return await self._copies.read(id)
        except RPCError as error:
            raise SessionUnreadable(f"the journal of the workflow {id!r} cannot be read: {error}") from error

    async def read_ended(self, description: WorkflowExecutionDescription) -> list[Entry]:
        """Return the journal of a closed run.

        Raises:
            SessionUnreadable: History does not hold all of it; it says so if it was on its way.
        """
        return (await self.read_closed(description))[0]

    async def read_closed(self, description: WorkflowExecutionDescription) -> tuple[list[Entry], set[str]]:
        """Return the same, with the ids of events whose `user:` and `app:` keys are known to be shared."""
        id, run_id = description.id, description.run_id
        if await self.is_arriving(id, run_id):
            raise SessionUnreadable(f"the workflow {id!r} was closed while {LOADING}: the rest of it was never sent")
        return await self.salvage(id, run_id, goes_on=False)

    async def holds(self, description: WorkflowExecutionDescription, length: int) -> bool:
        """Return whether a run's history holds so many entries as they were."""
        return len(await read_archive(self._client, description.id, description.run_id)) >= length

    async def _start_of(self, handle: _Handle) -> SessionInput:
        started = await anext(handle.fetch_history_events(page_size=1))
        payloads = started.workflow_execution_started_event_attributes.input.payloads
        return (await self._client.data_converter.decode(payloads, [SessionInput]))[0] if payloads else SessionInput()

    async def is_arriving(self, id: str, run_id: str | None) -> bool:
        """Return whether a run has not got all of the journal that it is sent part by part. No worker is asked."""
        length = (await self._start_of(self._client.get_workflow_handle(id, run_id=run_id))).length
        return length is not None and len(await read_archive(self._client, id, run_id)) < length

    async def salvage(
        self, workflow_id: str, run_id: str | None, *, goes_on: bool = True
    ) -> tuple[list[Entry], set[str]]:
        """Return the journal as a run's history tells it, without running any code; what is at work goes on, or stops.

        With it come the ids of events whose `user:` and `app:` keys are known to be shared.

        Raises:
            SessionUnreadable: History does not hold all of it.
        """
        try:
            run = self._client.get_workflow_handle(workflow_id, run_id=run_id)
            return await read_from_history(self._client, run, goes_on=goes_on)
        except LogError as unreadable:
            raise SessionUnreadable(
                f"the journal of the workflow {workflow_id!r} cannot be read from its history: {unreadable}"
            ) from unreadable
