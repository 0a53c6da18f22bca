"""A worker's cache of journals, and of the plans to which invocations are pinned."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import nullcontext
from itertools import chain, islice, takewhile

from temporalio import activity
from temporalio.client import Client

from perdure.activities.heartbeats import beating
from perdure.errors import LogError
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import Entry
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.packing import pack, pack_part, unpack
from perdure.journal.projection import Projection
from perdure.messages.session import (
    KEEP_JOURNAL,
    LOAD_JOURNAL,
    JournalPage,
    JournalSlice,
    LoadJournalInput,
)
from perdure.recovery.slices import read_archive
from perdure.steps.base import Snapshot
from perdure.steps.prompt import PromptMemo

_READY = 100
"""So many copies are never packed. Most sessions wait for people, most of the time."""

_IDLE_SECONDS = 15.0
"""Others are packed after this: a session at work comes back before, also to a worker that is behind."""

_RESTING_SECONDS = 1.0
"""Those that wait for a person are packed after this, unless their agent goes on all the same."""

_PACKED_AT_ONCE = 5
"""More than a call can add, and few enough not to hold the worker up."""

_MAX_PACKED_BYTES = 200_000
"""A longer journal stays as it is: to pack it would hold the worker up."""

_AGAIN_SECONDS = 0.1
"""Between two readings of a history that does not hold all that a call is to see yet."""

_MOST_SECONDS = 120.0
"""After which a step fails that is to see what its session's history lacks."""

_Key = tuple[str, str]
"""Workflow and run id."""


class _Copy:
    def __init__(self) -> None:
        self.used = 0.0
        """When it was asked for last, by the worker's clock."""
        self.projection = Projection()
        self.memo = PromptMemo()
        self.size = 0
        self.lock = asyncio.Lock()

    @property
    def length(self) -> int:
        return len(self.projection.entries)

    def extend(self, offset: int, entries: tuple[Entry, ...]) -> int:
        """Take in what is new of these entries; returns its bytes."""
        before = self.size
        for entry in entries[max(self.length - offset, 0) :]:
            apply_entry(self.projection, entry)
            self.size += payload_size(entry)
        return self.size - before

    def at(self, length: int) -> Projection:
        if self.length == length:
            return self.projection
        # A parallel branch was quicker: this call is to see the log as it was when it was scheduled.
        return fold_journal(self.projection.entries[:length])


class JournalCache:
    """Copies of journals, by workflow run; bounded in bytes, the one that was used longest ago goes first.

    A run's journal only grows, so a copy is never wrong, only short. A miss costs a reading of the run's history.
    """

    def __init__(self, client: Client, max_bytes: int) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._copies: OrderedDict[_Key, _Copy] = OrderedDict()
        self._packed: OrderedDict[_Key, str] = OrderedDict()
        """Copies that were not used for a while, in a tenth of the memory."""
        self._resting: dict[_Key, float] = {}
        """Copies of sessions that wait for a person, and since when, by the worker's clock."""
        self._at_most = 0
        """Bytes that the copies have at most, so that not every call has to count them."""

    @property
    def ready(self) -> list[_Key]:
        """Workflow and run ids of the copies that are not packed, the one that was used longest ago first."""
        return list(self._copies)

    @property
    def size(self) -> int:
        """Bytes of all copies, packed or not, as they stand in a history."""
        return sum(copy.size for copy in self._copies.values()) + sum(map(len, self._packed.values()))

    async def at(self, workflow_id: str, run_id: str, part: JournalSlice, *, beats: bool = True) -> Snapshot:
        """Return a session as it was when `part` was sent; heartbeat while that takes time, unless the caller does.

        Raises:
            LogError: The history lacks what lies before the part.
        """
        copy = self._use((workflow_id, run_id))
        waits = copy.length < part.offset or copy.lock.locked()
        with beating() if waits and beats else nullcontext():
            async with copy.lock:
                await self._fill(copy, workflow_id, run_id, part.offset)
                self._at_most += copy.extend(part.offset, part.unpacked())
                projection = copy.at(part.length)
        self._evict()
        return Snapshot(projection, copy.memo)

    async def _fill(self, copy: _Copy, workflow_id: str, run_id: str, length: int) -> None:
        """Read what a copy lacks up to a length."""
        until = time.monotonic() + _MOST_SECONDS
        while copy.length < length:
            self._at_most += copy.extend(0, tuple(await read_archive(self._client, workflow_id, run_id)))
            if copy.length >= length:
                return
            if time.monotonic() > until:
                raise LogError(
                    f"the history of {workflow_id!r} holds {copy.length} of the {length} journal entries that this "
                    f"step is to see, after {_MOST_SECONDS:.0f} s"
                )
            # What is too large for one workflow task is written down in the next.
            await asyncio.sleep(_AGAIN_SECONDS)

    def offer(self, workflow_id: str, run_id: str, part: JournalSlice) -> None:
        """Take entries in that travelled with something else, if they go on where the copy ends."""
        # Without the lock: to wait for it would let the copy be evicted, and whoever reads it looks how far it is.
        copy = self._known((workflow_id, run_id))
        if copy.length >= part.offset:
            self._use((workflow_id, run_id), copy)
            self._at_most += copy.extend(part.offset, part.unpacked())
        self._evict()

    async def closed(self, workflow_id: str, run_id: str, length: int) -> Snapshot:
        """Return the session as a run left it that is closed; what is not here is read from its history."""
        copy = self._use((workflow_id, run_id))
        async with copy.lock:
            if copy.length < length:
                entries = tuple(await read_archive(self._client, workflow_id, run_id))
                self._at_most += copy.extend(0, entries)
        return await self.at(workflow_id, run_id, JournalSlice(offset=length))

    def rest(self, workflow_id: str, run_id: str) -> None:
        """Take note that a session waits for a person, most likely for longer than a copy is kept ready."""
        key = (workflow_id, run_id)
        copy = self._copies.get(key)
        if copy is not None and copy.size <= _MAX_PACKED_BYTES:
            self._resting.setdefault(key, time.monotonic())

    def hand_over(self, workflow_id: str, old_run: str, new_run: str, length: int) -> None:
        """Keep a run's copy, if it is of this length, for the run that goes on from it."""
        copy = self._copies.get((workflow_id, old_run))
        if copy is not None and copy.length == length and not self._known((workflow_id, new_run)).length:
            self._copies[workflow_id, new_run] = self._drop((workflow_id, old_run))

    def _known(self, key: _Key) -> _Copy:
        """Return a run's copy, or an empty one."""
        if (packed := self._packed.pop(key, None)) is not None:
            copy = self._use(key, _Copy())
            self._at_most += copy.extend(0, unpack(packed)) - len(packed)
        return self._copies.get(key) or _Copy()

    def _use(self, key: _Key, copy: _Copy | None = None) -> _Copy:
        copy = self._copies[key] = copy or self._known(key)
        self._copies.move_to_end(key)
        self._resting.pop(key, None)
        copy.used = time.monotonic()
        return copy

    def _drop(self, key: _Key) -> _Copy:
        self._resting.pop(key, None)
        return self._copies.pop(key)

    def _pack(self) -> None:
        now = time.monotonic()
        resting = takewhile(lambda key: self._resting[key] < now - _RESTING_SECONDS, self._resting)
        idle = takewhile(lambda key: self._copies[key].used < now - _IDLE_SECONDS, self._copies)
        packable = (key for key in chain(resting, idle) if self._is_packable(self._copies[key]))
        at_once = min(_PACKED_AT_ONCE, len(self._copies) - _READY)
        for key in dict.fromkeys(islice(packable, max(at_once, 0))):
            copy = self._drop(key)
            self._packed[key] = pack(copy.projection.entries)
            self._at_most += len(self._packed[key]) - copy.size

    @staticmethod
    def _is_packable(copy: _Copy) -> bool:
        return copy.size <= _MAX_PACKED_BYTES and not copy.lock.locked()

    def _evict(self) -> None:
        self._pack()
        if self._at_most > self._max_bytes:
            self._at_most = self.size
        while self._packed and self._at_most > self._max_bytes:
            self._at_most -= len(self._packed.popitem(last=False)[1])
        while len(self._copies) > 1 and self._at_most > self._max_bytes:
            self._at_most -= self._drop(next(iter(self._copies))).size


class JournalActivity:
    """Carries a journal that is too large for one payload from one run to the next."""

    def __init__(self, journals: JournalCache) -> None:
        self._journals = journals

    @activity.defn(name=KEEP_JOURNAL)
    async def keep_journal(self, page: JournalPage) -> None:
        """Do nothing: the activity's argument stands in the run's history from now on."""

    @activity.defn(name=LOAD_JOURNAL)
    async def load_journal(self, request: LoadJournalInput) -> JournalPage:
        """Return as much of the journal as one payload takes: of this worker's copy, or from the closed run."""
        info = activity.info()
        workflow_id, old_run, length = info.workflow_id or "", request.journal.run_id, request.journal.length
        with beating():
            snapshot = await self._journals.closed(workflow_id, old_run, length)
        packed, count = pack_part(snapshot.projection.entries, request.since)
        if request.since + count >= length:
            self._journals.hand_over(workflow_id, old_run, info.workflow_run_id or "", length)
        return JournalPage(packed=packed, offset=request.since, total=length)
