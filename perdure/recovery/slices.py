"""Reads a run's journal out of its history: nothing is run, no worker is asked.

History holds what the run started with, and what the journal has gained: with each step that was scheduled, and in
memos and activities that do nothing else where no step carried it (`workflows/run/slices.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import DataConverter

from perdure.errors import LogError, PerdureError
from perdure.journal.entries import Entry, SessionCreated
from perdure.journal.packing import unpack
from perdure.messages.callbacks import CALL_BACK
from perdure.messages.session import (
    CALL_MODEL,
    EXTEND_JOURNAL,
    JOURNAL_MEMO,
    KEEP_JOURNAL,
    LOAD_JOURNAL,
    LOAD_PLAN,
    JournalPage,
    JournalSlice,
    SessionInput,
)

_T = TypeVar("_T")

_OR_NONE = cast("type[JournalSlice | None]", JournalSlice | None)

_LONG_BYTES = 50_000
"""A packed part with more is unpacked beside the event loop."""

Part = tuple[int, tuple[Entry, ...]]
"""A part of the journal: the offset of its first entry, and its entries."""


async def read_archive(client: Client, workflow_id: str, run_id: str | None) -> list[Entry]:
    """Return the first entries of a run's journal, up to the first that its history does not hold.

    Raises:
        RPCError: There is no such run, or the server is away.
    """
    reader = SliceReader(client.data_converter)
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(workflow_id, run_id=run_id)
    parts: list[Part] = []
    async for event in handle.fetch_history_events():
        part = await reader.part(event)
        if part is not None:
            parts.append(part)
    entries, _ = in_order(parts)
    carried = reader.start.carried
    if carried is not None and len(entries) < carried.length:
        # The run was closed before it had fetched its journal.
        return await read_archive(client, workflow_id, carried.run_id)
    return entries


def in_order(parts: Iterable[Part], known: int = 0) -> tuple[list[Entry], list[Part]]:
    """Return the entries that follow on so many that are known, and the parts behind a gap."""
    new: list[Entry] = []
    behind: list[Part] = []
    for offset, found in sorted(parts, key=lambda part: part[0]):
        length = known + len(new)
        if offset > length:
            behind.append((offset, found))
        else:
            new.extend(found[length - offset :])
    return new, behind


class _Told(BaseModel):
    """A step's argument: what it told of the journal."""

    journal: JournalSlice | None = None


class SliceReader:
    """Reads the parts of a run's journal out of its history's events, which it is given in their order."""

    def __init__(self, converter: DataConverter) -> None:
        """Begin before the first event; payloads are decoded by this converter."""
        self._converter = converter
        self._loads: set[int] = set()
        self._sent: dict[int, Payloads] = {}
        """Parts that a client sent, by the event that accepted them; some were refused all the same."""
        self._ended: set[int] = set()
        """Those of which is known what became of them."""
        self.start = SessionInput()
        """What the run started with."""

    async def part(self, event: HistoryEvent) -> Part | None:
        """Return the part of the journal that an event holds, if it holds one."""
        if event.HasField("workflow_execution_started_event_attributes"):
            return await self._begun(event.workflow_execution_started_event_attributes.input)
        if event.HasField("activity_task_scheduled_event_attributes"):
            return await self._part_told(event)
        if event.HasField("workflow_properties_modified_event_attributes"):
            memo = event.workflow_properties_modified_event_attributes.upserted_memo.fields
            if JOURNAL_MEMO in memo:
                payloads = Payloads(payloads=[memo[JOURNAL_MEMO]])
                return await _slice(await self._decode(payloads, _OR_NONE))
        elif (payloads := self._page_in(event)) is not None:
            return await _page(await self._decode(payloads, JournalPage))
        return None

    def forget(self) -> None:
        """Keep no part that was given out. Until then events may be given once more: who reads may give up."""
        for event_id in self._ended:
            self._sent.pop(event_id, None)
        self._ended.clear()

    async def _begun(self, given: Payloads) -> Part | None:
        self.start = await self._decode(given, SessionInput) if given.payloads else self.start
        if self.start.journal is not None:
            return 0, await _unpacked(self.start.journal)
        if self.start.carried is not None:
            return self.start.carried.length, self.start.stopped
        return 0, (SessionCreated(state=self.start.state),)

    async def _part_told(self, event: HistoryEvent) -> Part | None:
        """Return the part of the journal that an activity was given, if it was."""
        scheduled = event.activity_task_scheduled_event_attributes
        name = scheduled.activity_type.name
        if name == KEEP_JOURNAL:
            return await _page(await self._decode(scheduled.input, JournalPage))
        if name == LOAD_JOURNAL:
            self._loads.add(event.event_id)
        elif name in (CALL_MODEL, CALL_BACK, LOAD_PLAN) or not name.startswith("perdure:"):
            return await _slice((await self._decode(scheduled.input, _Told)).journal)
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
            part = self._sent.get(done.accepted_event_id)
            self._ended.add(done.accepted_event_id)
            return part if done.outcome.HasField("success") else None
        return None

    async def _decode(self, payloads: Payloads, kind: type[_T]) -> _T:
        try:
            (value,) = await self._converter.decode(payloads.payloads, [kind])
        except (RuntimeError, ValueError) as error:
            if isinstance(error.__cause__, PerdureError):
                raise error.__cause__ from None
            raise LogError(f"a part of the session's history cannot be read: {error}") from error
        return value


async def _slice(part: JournalSlice | None) -> Part | None:
    if part is None:
        return None
    return part.offset, await _unpacked(part.packed) if part.packed is not None else part.entries


async def _page(page: JournalPage) -> Part:
    return page.offset, await _unpacked(page.packed)


async def _unpacked(packed: str) -> tuple[Entry, ...]:
    return unpack(packed) if len(packed) < _LONG_BYTES else await asyncio.to_thread(unpack, packed)
