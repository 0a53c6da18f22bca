"""Copies of sessions' journals, read from their histories: no workflow is asked, and no worker has to be there.

A copy grows by what its history has gained. So a session that was read before costs one description, and what is new.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import LogError, PerdureError, SessionUnreadable
from perdure.journal.compact_json import payload_size
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Projection
from perdure.logs import get_logger
from perdure.messages.session import LOADING
from perdure.recovery.slices import Part, SliceReader, in_order, read_archive
from perdure.recovery.stuck import read_from_history

_MAX_BYTES = 30_000_000
"""What the copies of one client hold of journals, as they stand in a history; in memory that is five times as much."""

_LEAST_BYTES = 3_000
"""What a copy counts at the least: one of a few entries takes 14 kB of memory."""

_GAP_SECONDS = 10.0
_GAP_PAUSE = 0.05
"""For how long, and how often, a history is read again that lacks a part: what carries it waits for room."""

_SIGNAL_SECONDS = 2.0
"""For how long a history is read again whose last signal no workflow task has taken in: who signals reads at once."""

_SIGNAL_AGE = 10.0
"""Seconds after which a signal is no news: no worker is there to take it in."""

_LISTED_SECONDS = 10.0
"""After which a listing tells of what a session was sent."""

_LOADING_PAUSE = 0.2
"""Seconds between two looks at a session whose journal is sent part by part."""

_NEWEST = 20
"""History events that are asked for at the end of a history that was read before."""

_PAGE = 200
"""History events that are taken in together."""

_TASK_OPENS = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED})

_CLOSED = frozenset(WorkflowExecutionStatus) - {
    WorkflowExecutionStatus.RUNNING,
    WorkflowExecutionStatus.CONTINUED_AS_NEW,
}
"""How a run may stand behind which no other one goes on by itself."""

_LONG_PART = 50
"""Entries after which others may go on that share the event loop."""

_logger = get_logger("perdure.client")


class JournalRead(NamedTuple):
    """The journal of a session's newest run, as it was read."""

    projection: Projection
    """For reading before anything else is awaited: it grows with the session."""
    described: WorkflowExecutionDescription
    """What the server says of the run."""
    is_of_then: bool
    """It holds nothing that came after the description."""


class _Copy:
    """The journal of one run, as far as it was read."""

    def __init__(self, client: Client, workflow_id: str, run_id: str, before: _Copy | None) -> None:
        self.run_id = run_id
        self.lock = asyncio.Lock()
        self.projection = Projection()
        self.size = _LEAST_BYTES
        self.counted = 0
        """What of its size the bound of all copies counts."""
        self._client = client
        self._handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(workflow_id, run_id=run_id)
        self._before = before
        self._reader = SliceReader(client.data_converter)
        self._last = 0
        """The last event that was read, by id."""
        self._behind: list[Part] = []
        """Parts behind a gap."""
        self._ended = False
        self._signalled: float | None = None
        """When the newest signal came, if no workflow task has taken it in."""

    @property
    def awaits_signal(self) -> bool:
        """A signal has just come, and its workflow task has not."""
        return self._signalled is not None and time.time() - self._signalled < _SIGNAL_AGE

    @property
    def length(self) -> int:
        return len(self.projection.entries)

    def is_of(self, described: WorkflowExecutionDescription) -> bool:
        """Return whether it holds nothing that came after a description of the run."""
        return self._last <= described.history_length

    @property
    def gap(self) -> bool:
        """History holds what comes later, and not yet what lies before it."""
        return bool(self._behind)

    @property
    def complete(self) -> bool:
        """The run has all of the journal that it starts with."""
        start = self._reader.start
        return self.length >= (start.carried.length if start.carried is not None else start.length or 1)

    async def read(self, length: int) -> None:
        """Read what the history has gained, if it has, as the server says, so many events."""
        if length > self._last:
            if self._last:
                await self._take(await self._newest())
            else:
                unread: list[HistoryEvent] = []
                async for event in self._handle.fetch_history_events(skip_archival=True):
                    unread.append(event)
                    if len(unread) >= _PAGE:
                        await self._take(unread)
                        unread.clear()
                await self._take(unread)
        if self._behind:
            # Whoever took them in may have given up before he had read them.
            await self._apply([])
        carried = self._reader.start.carried
        if carried is not None and self.length < carried.length:
            await self._apply([(0, tuple(await read_archive(self._client, self._handle.id, carried.run_id)))])

    async def end(self) -> None:
        """Take in what a closed run was sent or returned and never logged, as whoever brings the session back does."""
        if self._ended:
            return
        try:
            entries, _ = await read_from_history(self._client, self._handle, goes_on=False)
        except LogError as error:
            _logger.warning("what a closed run did not log is not shown", workflow=self._handle.id, reason=str(error))
        else:
            await self._apply([(0, tuple(entries))])
        self._ended = True

    async def _newest(self) -> list[HistoryEvent]:
        """Return the events behind the last that was read: from the end, since nothing else leads there at once."""
        try:
            return await self._from_the_end()
        except RPCError as error:
            if error.status != RPCStatusCode.UNIMPLEMENTED:
                raise
            # The server that skips time knows no other way.
            events = self._handle.fetch_history_events(skip_archival=True)
            return [event async for event in events if event.event_id > self._last]

    async def _from_the_end(self) -> list[HistoryEvent]:
        found: list[HistoryEvent] = []
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=self._handle.id, run_id=self.run_id),
            maximum_page_size=_NEWEST,
        )
        while True:
            answer = await self._client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
            for event in answer.history.events:
                if event.event_id <= self._last:
                    return found[::-1]
                found.append(event)
            if not answer.next_page_token:
                return found[::-1]
            request.next_page_token = answer.next_page_token
            request.maximum_page_size = _PAGE

    async def _take(self, events: Sequence[HistoryEvent]) -> None:
        """Take events in. Whoever reads may give up meanwhile: who comes next goes on, or takes the same again."""
        parts: list[Part] = []
        last, signalled = self._last, self._signalled
        for event in events:
            if event.HasField("workflow_execution_started_event_attributes"):
                self._take_over(event.workflow_execution_started_event_attributes.continued_execution_run_id)
            part = await self._reader.part(event)
            if part is not None:
                parts.append(part)
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signalled = event.event_time.ToNanoseconds() / 1e9
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                signalled = None
            if event.event_type not in _TASK_OPENS:
                # A task that is under way the server may take back.
                last = event.event_id
        self._behind += parts
        self._last, self._signalled = last, signalled
        self._reader.forget()
        await self._apply([])

    def _take_over(self, continued: str) -> None:
        """Go on with the copy of the run before, if this run does."""
        before, self._before = self._before, None
        # Whoever still reads that one would go on with it beside this one.
        if before is not None and before.run_id == continued and not before.gap and not before.lock.locked():
            self.projection, self.size = before.projection, before.size

    async def _apply(self, parts: Sequence[Part]) -> None:
        self._behind += parts
        new, behind = in_order(self._behind, self.length)
        for count, entry in enumerate(new, 1):
            apply_entry(self.projection, entry)
            self.size += payload_size(entry)
            if not count % _LONG_PART:
                await asyncio.sleep(0)
        self._behind = behind


class JournalCopies:
    """Copies of the journals of sessions, by workflow id; bounded in bytes, the one that was read longest ago goes."""

    def __init__(self, client: Client, max_bytes: int = _MAX_BYTES) -> None:
        """Begin without any."""
        self._client = client
        self._max_bytes = max_bytes
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._size = 0
        """Of all copies."""
        self._sent: OrderedDict[str, float] = OrderedDict()
        """When sessions were sent something."""

    async def read(self, workflow_id: str, *, closed: bool = False) -> JournalRead:
        """Return the journal of a session's newest run, folded, and what the server says of that run.

        Args:
            workflow_id: The session's workflow.
            closed: Of a closed run, read what it did not log, too.

        Raises:
            RPCError: There is no such session, or the server is away.
            LogError: The history is malformed.
            SessionUnreadable: Its run was closed before it had its whole journal, or what it holds is no journal.
        """
        handle = self._client.get_workflow_handle(workflow_id)
        waited = 0.0
        while True:
            described = await handle.describe()
            copy = self._copy(workflow_id, described.run_id)
            if not await self._extend(copy, described, closed=closed):
                continue
            self._evict()
            is_open = described.close_time is None
            lacks = (copy.gap and waited < _GAP_SECONDS) or (copy.awaits_signal and waited < _SIGNAL_SECONDS)
            if copy.complete and not (lacks and is_open):
                if copy.gap:
                    _logger.warning(
                        "the history lacks a part of the journal; what comes behind it is not shown",
                        workflow=workflow_id,
                        entries=copy.length,
                    )
                return JournalRead(copy.projection, described, copy.is_of(described))
            if not copy.complete and not is_open:
                raise SessionUnreadable(
                    f"the workflow {workflow_id!r} was closed while {LOADING}: the rest of it was never sent"
                )
            pause = _GAP_PAUSE if copy.complete else _LOADING_PAUSE
            await asyncio.sleep(pause)
            waited += pause

    def sent(self, workflow_id: str) -> None:
        """Take note that a session was sent something, of which listings do not tell at once."""
        now = time.monotonic()
        self._sent[workflow_id] = now
        self._sent.move_to_end(workflow_id)
        while now - next(iter(self._sent.values())) > _LISTED_SECONDS:
            self._sent.popitem(last=False)

    def may_be_listed_late(self, workflow_id: str) -> bool:
        """Return whether a session was sent something by this client so lately that its listing may be of before."""
        return time.monotonic() - self._sent.get(workflow_id, -math.inf) < _LISTED_SECONDS

    def _copy(self, workflow_id: str, run_id: str) -> _Copy:
        copy = self._copies.get(workflow_id)
        if copy is None or copy.run_id != run_id:
            before = self._drop(workflow_id)
            copy = self._copies[workflow_id] = _Copy(self._client, workflow_id, run_id, before)
            self._count(copy)
        self._copies.move_to_end(workflow_id)
        return copy

    def _count(self, copy: _Copy) -> None:
        self._size += copy.size - copy.counted
        copy.counted = copy.size

    def _drop(self, workflow_id: str) -> _Copy | None:
        copy = self._copies.pop(workflow_id, None)
        if copy is not None:
            self._size -= copy.counted
            copy.counted = 0
        return copy

    async def _extend(self, copy: _Copy, described: WorkflowExecutionDescription, *, closed: bool) -> bool:
        """Read what a history has gained; returns false where that has to begin anew."""
        async with copy.lock:
            if self._copies.get(described.id) is not copy:
                return False
            try:
                await copy.read(described.history_length)
                if closed and described.status in _CLOSED and copy.complete:
                    await copy.end()
            except Exception as error:
                # Where it stands is not known.
                if self._copies.get(described.id) is copy:
                    self._drop(described.id)
                if isinstance(error, (PerdureError, RPCError, TimeoutError)):
                    raise
                # Of a history from elsewhere, or of another version: who reads many sessions reads the others.
                raise SessionUnreadable(
                    f"the history of workflow {described.id!r} cannot be read: {type(error).__name__}: {error}"
                ) from error
            finally:
                if self._copies.get(described.id) is copy:
                    self._count(copy)
        return True

    def _evict(self) -> None:
        while self._size > self._max_bytes and len(self._copies) > 1:
            self._drop(next(iter(self._copies)))


_copies: WeakKeyDictionary[Client, JournalCopies] = WeakKeyDictionary()


def journal_copies(client: Client) -> JournalCopies:
    """Return the copies that whoever reads by a client has in common."""
    found = _copies.get(client)
    if found is None:
        found = _copies[client] = JournalCopies(client)
    return found
