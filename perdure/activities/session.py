"""What a worker knows of a session: a copy of its journal, and the plan that an invocation is pinned to."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from temporalio.client import Client

from perdure.activities.prompt import PromptMemo
from perdure.journal import Entry, payload_size
from perdure.messages import JOURNAL, JournalPage, JournalSlice, PageInput
from perdure.projection import Projection


class _Copy:
    def __init__(self) -> None:
        self.projection = Projection()
        self.memo = PromptMemo()
        self.size = 0
        self.lock = asyncio.Lock()

    @property
    def length(self) -> int:
        return len(self.projection.entries)

    def extend(self, offset: int, entries: tuple[Entry, ...]) -> None:
        for entry in entries[max(self.length - offset, 0) :]:
            self.projection.apply(entry)
            self.size += payload_size(entry)

    def at(self, length: int) -> Projection:
        if self.length == length:
            return self.projection
        # A parallel branch was quicker: this call is to see the log as it was when it was scheduled.
        return Projection.fold(self.projection.entries[:length])


@dataclass(frozen=True)
class Snapshot:
    """A session at one length of its journal."""

    projection: Projection
    memo: PromptMemo
    """For prompts of this session."""


class JournalCache:
    """Copies of journals, by workflow run; bounded in bytes, the one that was used longest ago goes first.

    A run's journal only grows, so a copy is never wrong, only short. A miss costs one query for each megabyte.
    """

    def __init__(self, client: Client, max_bytes: int) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._copies: OrderedDict[tuple[str, str], _Copy] = OrderedDict()

    async def at(self, workflow_id: str, run_id: str, part: JournalSlice) -> Snapshot:
        """Return a session as it was when `part` was sent."""
        copy = self._copies.setdefault((workflow_id, run_id), _Copy())
        self._copies.move_to_end((workflow_id, run_id))
        async with copy.lock:
            while copy.length < part.offset:
                page = await self._fetch(workflow_id, run_id, copy.length)
                copy.extend(copy.length, page.entries)
            copy.extend(part.offset, part.unpacked())
            projection = copy.at(part.length)
        self._evict()
        return Snapshot(projection, copy.memo)

    async def offer(self, workflow_id: str, run_id: str, part: JournalSlice) -> None:
        """Take entries in that travelled with something else, if they go on where the copy ends."""
        copy = self._copies.get((workflow_id, run_id)) or _Copy()
        async with copy.lock:
            if copy.length >= part.offset:
                self._copies[(workflow_id, run_id)] = copy
                copy.extend(part.offset, part.unpacked())
        self._evict()

    async def _fetch(self, workflow_id: str, run_id: str, since: int) -> JournalPage:
        handle = self._client.get_workflow_handle(workflow_id, run_id=run_id)
        return await handle.query(JOURNAL, PageInput(since=since), result_type=JournalPage)

    def _evict(self) -> None:
        while len(self._copies) > 1 and sum(copy.size for copy in self._copies.values()) > self._max_bytes:
            self._copies.popitem(last=False)
