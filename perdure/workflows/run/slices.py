"""Cuts the journal into slices, and sees to it that the run's history holds all of them.

A step that is scheduled carries what the journal has gained since the last slice. What no step carries by the end of
a workflow task is written down by itself, so that whoever reads the history reads the whole journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import FailureError

from perdure.journal.entries import (
    AnswerAccepted,
    CallExpired,
    Entry,
    MessageAccepted,
    ResumeAccepted,
    StateChanged,
)
from perdure.journal.packing import dump_entries, pack_dumped, pack_part
from perdure.journal.projection import Projection
from perdure.messages.session import JOURNAL_MEMO, JournalPage, JournalSlice
from perdure.workflows.run.activities import Activities, Witness
from perdure.workflows.run.log import SessionLog

_SMALL_ENTRIES_BYTES = 2_000
"""Up to here a slice stays readable in the Temporal UI; beyond, it is packed if that saves a quarter of it."""

_INLINE_ENTRIES_BYTES = 256_000
"""Beyond this a slice is packed in any case."""

_PACKED_ENTRIES_BYTES = 1_400_000
"""Beyond this a slice would not fit into a payload: it is written down by itself, page by page."""

_MEMO_BYTES = 32_000
"""Beyond this a slice is no memo, which the server holds with a run's state: it is given to an activity that does
nothing."""

_FROM_OUTSIDE = (MessageAccepted, AnswerAccepted, ResumeAccepted, StateChanged, CallExpired)
"""What somebody waits to read back, though a local tool may keep the workflow task open for seconds."""

_Range = tuple[int, int]
"""Offsets of the first entry, and of the one behind the last."""


def slice_of(entries: tuple[Entry, ...], offset: int) -> JournalSlice | None:
    """Return a slice of the journal; `None` if it does not fit into a payload."""
    data = dump_entries(entries)
    # What they have one by one: without the brackets and what separates them.
    size = len(data) - len(entries) - 1
    if size <= _SMALL_ENTRIES_BYTES:
        return JournalSlice(offset=offset, entries=entries)
    # What a slice holds stands readable elsewhere in history: in messages and in what models and tools returned.
    packed = pack_dumped(data)
    if size <= _INLINE_ENTRIES_BYTES and len(packed) > size * 0.75:
        return JournalSlice(offset=offset, entries=entries)
    if len(packed) > _PACKED_ENTRIES_BYTES:
        return None
    return JournalSlice(offset=offset, packed=packed, count=len(entries))


class Carrier:
    """Keeps count of the journal that steps were given, and of what the history of this run holds."""

    def __init__(self, sent: int) -> None:
        """Start behind the entries that an earlier run left, or that a run begins with."""
        self._sent = sent
        """Where the next slice begins: what a worker's copy has that follows the steps."""
        self._held = sent
        """Where what history does not hold begins, but for the ranges of `_unheld`."""
        self._unheld: list[_Range] = []
        """Slices that no step carried: too large for it, or it was not scheduled in the end."""
        self._under_way: list[_Range] = []
        """Slices whose activity waits for room."""

    def slice(self, projection: Projection) -> JournalSlice:
        """Return what the journal gained since the last slice, and remember that it is on its way.

        What would make a large payload is left to be written down by itself.
        """
        offset, total = self._sent, len(projection.entries)
        self._sent = total
        part = slice_of(tuple(projection.entries[offset:]), offset)
        if part is None:
            return JournalSlice(offset=total)
        self._unheld = [given for given in self._unheld if given[0] < offset]
        self._held = total
        return part

    def behind(self, projection: Projection) -> bool:
        """Return whether history lacks entries that no step carries; it has the first, as the run's input."""
        return bool(self._unheld) or max(self._held, 1) < len(projection.entries)

    def news(self, projection: Projection) -> list[Entry]:
        """Return the entries behind all that history holds."""
        return projection.entries[self._held :]

    def take(self, projection: Projection, *, under_way: bool = False) -> list[_Range]:
        """Return the parts of the journal that no step carries, and take them for held.

        Args:
            projection: The journal.
            under_way: Also those whose activity waits for room, which the run will not see.
        """
        total = len(projection.entries)
        ranges = [*self._unheld, (self._held, total)]
        self._unheld, self._held = [], total
        if under_way:
            ranges += self._under_way
            self._under_way = []
        return [(start, end) for start, end in ranges if start < end]

    @contextmanager
    def under_way(self, part: JournalSlice | None) -> Generator[Witness]:
        """Count a slice as held by the history once its activity is scheduled, as the witness is told."""
        given = (part.offset, part.length) if part is not None else (0, 0)
        with self.waiting(given) as witness:
            yield witness

    @contextmanager
    def waiting(self, given: _Range) -> Generator[Witness]:
        """Count a part of the journal as held by the history once its activity is scheduled."""
        self._under_way.append(given)
        try:
            yield _Scheduled(self._under_way, given)
        finally:
            if given in self._under_way:
                self._under_way.remove(given)
                if given[0] < given[1]:
                    self._unheld.append(given)
                # What is behind all that was sent can be sent again.
                while (last := next((part for part in self._unheld if part[1] == self._sent), None)) is not None:
                    self._sent = last[0]


class _Scheduled:
    def __init__(self, under_way: list[_Range], given: _Range) -> None:
        self._under_way = under_way
        self._given = given

    def starting(self) -> None:
        if self._given in self._under_way:
            self._under_way.remove(self._given)

    def failed(self, error: FailureError) -> None:
        pass


def pages(projection: Projection, start: int, end: int) -> Iterator[tuple[_Range, JournalPage]]:
    """Yield a part of the journal in pages that a payload takes, each with its range."""
    while start < end:
        packed, count = pack_part(projection.entries[:end], start)
        page = JournalPage(packed=packed, offset=start, total=len(projection.entries))
        yield (start, start + count), page
        start += count


class Keeper:
    """Writes into the history what no step has carried there, before a workflow task ends."""

    def __init__(self, log: SessionLog, carrier: Carrier, activities: Activities) -> None:
        """Keep the journal of a run."""
        self._log = log
        self._carrier = carrier
        self._activities = activities
        self._pages: set[asyncio.Task[None]] = set()

    async def keep(self) -> None:
        """Do so for as long as the run lives."""
        while True:
            await workflow.wait_condition(self._is_due)
            # Whoever waits for the same goes on first: most often with a step that carries it.
            await workflow.wait_condition(self._is_due)
            self._write()

    def _is_due(self) -> bool:
        progress, projection = self._activities.progress, self._log.projection
        if not self._carrier.behind(projection) or progress.loads_plan:
            return False
        # A local tool's workflow task ends with it, at the latest where its step's result is carried on.
        return not progress.runs_local or any(
            isinstance(entry, _FROM_OUTSIDE) for entry in self._carrier.news(projection)
        )

    def _write(self) -> None:
        """Write it into a memo, and take that back at once: history keeps both, and the server nothing else."""
        projection = self._log.projection
        written = False
        for start, end in self._carrier.take(projection):
            part = slice_of(tuple(projection.entries[start:end]), start)
            if part is None or len(part.model_dump_json(exclude_none=True)) > _MEMO_BYTES:
                for given, page in pages(projection, start, end):
                    self._begin(given, page)
                continue
            workflow.upsert_memo({JOURNAL_MEMO: part})
            written = True
        if written:
            workflow.upsert_memo({JOURNAL_MEMO: None})

    def _begin(self, given: _Range, page: JournalPage) -> None:
        task = asyncio.create_task(self._keep_page(given, page))
        self._pages.add(task)
        task.add_done_callback(self._pages.discard)

    async def _keep_page(self, given: _Range, page: JournalPage) -> None:
        with self._carrier.waiting(given) as witness:
            await self._activities.keep_journal(page, witness)

    async def hand_over(self) -> None:
        """Write down all that the history lacks, in pages, for the run that will read it there."""
        projection = self._log.projection
        for start, end in self._carrier.take(projection, under_way=True):
            for _, page in pages(projection, start, end):
                await self._activities.keep_journal(page)
        await workflow.wait_condition(workflow.all_handlers_finished)
