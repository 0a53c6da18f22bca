"""Reads a run's journal out of its history, as far as it stands there as it was: nothing is run, no worker is asked.

History holds what the run started with, and what the journal had gained each time a model, or a custom agent's
function, was called. A run that leaves a large journal to the next one writes down what is missing before it ends
(decision 006).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle

from perdure.journal.entries import Entry, SessionCreated
from perdure.journal.packing import unpack
from perdure.messages.callbacks import CALL_BACK
from perdure.messages.session import (
    CALL_MODEL,
    EXTEND_JOURNAL,
    KEEP_JOURNAL,
    LOAD_JOURNAL,
    JournalPage,
    JournalSlice,
    SessionInput,
)

_T = TypeVar("_T")


async def read_archive(client: Client, workflow_id: str, run_id: str | None) -> list[Entry]:
    """Return the first entries of a run's journal, up to the first that its history does not hold.

    Raises:
        RPCError: There is no such run, or the server is away.
    """
    reader = _Reader(client, client.get_workflow_handle(workflow_id, run_id=run_id))
    parts = [part async for part in reader.parts()]
    entries: list[Entry] = []
    for offset, found in sorted(parts, key=lambda part: part[0]):
        if offset > len(entries):
            break
        entries.extend(found[len(entries) - offset :])
    if reader.start.carried is not None and len(entries) < reader.start.carried.length:
        # The run was closed before it had fetched its journal.
        return await read_archive(client, workflow_id, reader.start.carried.run_id)
    return entries


class _Told(BaseModel):
    """A model call, or a function of a custom agent: what it told of the journal. Tools are told nothing."""

    journal: JournalSlice | None = None


class _Reader:
    def __init__(self, client: Client, handle: WorkflowHandle[Any, Any]) -> None:
        self._converter = client.data_converter
        self._handle = handle
        self._loads: set[int] = set()
        self._sent: dict[int, Payloads] = {}
        """Parts that a client sent, by the event that accepted them; some were refused all the same."""
        self.start = SessionInput()

    async def parts(self) -> AsyncIterator[tuple[int, tuple[Entry, ...]]]:
        """Yield the parts of the journal that stand in the history, each with its offset."""
        async for event in self._handle.fetch_history_events():
            if event.HasField("workflow_execution_started_event_attributes"):
                given = event.workflow_execution_started_event_attributes.input
                self.start = await self._decode(given, SessionInput) if given.payloads else self.start
                if self.start.journal is not None:
                    yield 0, unpack(self.start.journal)
                elif self.start.carried is None:
                    yield 0, (SessionCreated(state=self.start.state),)
            elif event.HasField("activity_task_scheduled_event_attributes"):
                part = await self._part_told(event)
                if part is not None:
                    yield part
            elif (payloads := self._page_in(event)) is not None:
                page = await self._decode(payloads, JournalPage)
                yield page.offset, page.entries

    async def _part_told(self, event: HistoryEvent) -> tuple[int, tuple[Entry, ...]] | None:
        """Return the part of the journal that an activity was given, if it was."""
        scheduled = event.activity_task_scheduled_event_attributes
        name = scheduled.activity_type.name
        if name == KEEP_JOURNAL:
            page = await self._decode(scheduled.input, JournalPage)
            return page.offset, page.entries
        if name == LOAD_JOURNAL:
            self._loads.add(event.event_id)
        elif name in (CALL_MODEL, CALL_BACK) or not name.startswith("perdure:"):
            part = (await self._decode(scheduled.input, _Told)).journal
            return (part.offset, part.unpacked()) if part is not None else None
        return None

    def _page_in(self, event: HistoryEvent) -> Payloads | None:
        """Return a part of the journal that came in, if the event holds one."""
        if event.HasField("activity_task_completed_event_attributes"):
            completed = event.activity_task_completed_event_attributes
            return completed.result if completed.scheduled_event_id in self._loads else None
        if event.HasField("workflow_execution_update_accepted_event_attributes"):
            request = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
            if request.name == EXTEND_JOURNAL:
                self._sent[event.event_id] = request.args
        elif event.HasField("workflow_execution_update_completed_event_attributes"):
            done = event.workflow_execution_update_completed_event_attributes
            part = self._sent.pop(done.accepted_event_id, None)
            return part if done.outcome.HasField("success") else None
        return None

    async def _decode(self, payloads: Payloads, kind: type[_T]) -> _T:
        (value,) = await self._converter.decode(payloads.payloads, [kind])
        return value
