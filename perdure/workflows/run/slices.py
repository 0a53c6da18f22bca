"""Cuts the journal into slices, and sees to it that the run's history holds all of them.

A step that is scheduled carries what the journal has gained since the last slice. What no step carries by the end of
a workflow task is written down by itself, so that whoever reads the history reads the whole journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import (
    AnswerAccepted,
    CallExpired,
    Entry,
    InvocationSettled,
    MessageAccepted,
    ResumeAccepted,
    StateChanged,
    take,
)
from perdure.journal.packing import dump_entries, pack_dumped, pack_part
from perdure.journal.projection import Projection
from perdure.messages.session import JOURNAL_MEMO, JournalPage, JournalSlice
from perdure.messages.waiting import WAITING_MEMO, WaitingCalls
from perdure.workflows.run.activities import Activities, Witness
from perdure.workflows.run.log import SessionLog

_INLINE_ENTRIES_BYTES = 256_000
"""Up to here a slice is packed if that saves a quarter of it, beyond in any case."""

_PACKED_ENTRIES_BYTES = 1_400_000
"""Beyond this a slice would not fit into a payload: it is written down by itself, page by page."""

_MEMO_BYTES = 64_000
"""Beyond this a slice, before it is packed, is no memo, which the server holds with a run's state: it is given to an
activity that does nothing. How small a library packs it must not matter, since a replay may have another one."""

_FROM_OUTSIDE = (MessageAccepted, AnswerAccepted, ResumeAccepted, StateChanged, CallExpired, InvocationSettled)
"""What somebody waits to read back, though a local tool may keep the workflow task open for seconds."""

_Range = tuple[int, int]
"""Offsets of the first entry, and of the one behind the last."""


def slice_of(entries: tuple[Entry, ...], offset: int) -> JournalSlice | None:
    """Return a slice of the journal; `None` if it does not fit into a payload."""
    data = dump_entries(entries)
    # What a slice holds stands readable elsewhere in history: in messages and in what models and tools returned.
    packed = pack_dumped(data)
    if len(data) <= _INLINE_ENTRIES_BYTES and len(packed) > len(data) * 0.75:
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
        self.left: Callable[[], None] | None = None
        """Told that a part was taken back."""

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
        # What was too large for the slice before has not been written down yet.
        self.leave(self._held, offset)
        self._held = total
        return part

    def news(self, projection: Projection) -> list[Entry]:
        """Return the entries behind all that history holds; it has the first, as the run's input."""
        return projection.entries[max(self._held, 1) :]

    @property
    def leaves(self) -> bool:
        """Whether history lacks others, that no step carried."""
        return bool(self._unheld)

    @property
    def is_awaited(self) -> bool:
        """Whether a step was given an empty slice, and reads in the history what lies before it."""
        return self._held < self._sent or self.leaves

    @property
    def is_under_way(self) -> bool:
        """Whether a part waits for its activity to be scheduled, and may be taken back."""
        return any(start < end for start, end in self._under_way)

    def leave(self, start: int, end: int) -> None:
        """Take a part back that is yet to be written down."""
        if start < end:
            self._unheld.append((start, end))
            self._tell_left()

    def _tell_left(self) -> None:
        if self.left is not None:
            self.left()

    def waits(self, given: _Range) -> bool:
        """Return whether a part waits for its activity to be scheduled."""
        return given in self._under_way

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
        try:
            yield self.begin(given)
        except (asyncio.CancelledError, ActivityError) as error:
            # What is cancelled in the task that schedules it never comes into the history.
            if not _was_scheduled(error) and given not in self._under_way:
                self._under_way.append(given)
            raise
        finally:
            self.end(given)

    def begin(self, given: _Range) -> Witness:
        """Count a part of the journal as held by the history once the witness is told that an activity has it."""
        self._under_way.append(given)
        return _Scheduled(self._under_way, given)

    def end(self, given: _Range) -> None:
        """Take a part back whose activity was not scheduled in the end."""
        if given not in self._under_way:
            return
        self._under_way.remove(given)
        if given[0] < given[1]:
            self._unheld.append(given)
        # What is behind all that was sent can be sent again.
        while (last := next((part for part in self._unheld if part[1] == self._sent), None)) is not None:
            self._sent = last[0]
        self._tell_left()


def _was_scheduled(error: asyncio.CancelledError | ActivityError) -> bool:
    """Return whether the server knows the activity that ended so."""
    known = error if isinstance(error, ActivityError) else error.__cause__
    return isinstance(known, ActivityError) and known.scheduled_event_id > 0


class _Scheduled:
    def __init__(self, under_way: list[_Range], given: _Range) -> None:
        self._under_way = under_way
        self._given = given

    def starting(self) -> None:
        if self._given in self._under_way:
            self._under_way.remove(self._given)

    def failed(self, error: FailureError) -> None:
        pass


def memo_of(projection: Projection, start: int, end: int) -> JournalSlice | None:
    """Return a slice of the journal that may stand in a memo; `None` if it is too large, which is found out at once."""
    entries = tuple(take(projection.entries[:end], start, _MEMO_BYTES))
    if start + len(entries) < end or payload_size(entries[0]) > _MEMO_BYTES:
        return None
    return slice_of(entries, start)


def page_of(projection: Projection, start: int, end: int) -> tuple[_Range, JournalPage]:
    """Return as much of a part of the journal as a payload takes, and its range."""
    packed, count = pack_part(projection.entries[:end], start)
    return (start, start + count), JournalPage(packed=packed, offset=start, total=len(projection.entries))


class Keeper:
    """Writes into the history what no step has carried there, before a workflow task ends."""

    def __init__(self, log: SessionLog, carrier: Carrier, activities: Activities) -> None:
        """Keep the journal of a run."""
        self._log = log
        self._carrier = carrier
        self._activities = activities
        self._pages: set[asyncio.Task[None]] = set()
        self._newest_page: _Range = (0, 0)
        self._told = 0
        """The end of what readers know to wait for."""
        self._writing: asyncio.Task[None] | None = None
        """Waits for the end of a workflow task, while history lacks anything: a coroutine that waits takes 3 KB."""
        self._memo: dict[str, WaitingCalls | None] = {}
        """What the memo is to have besides."""

    def watch(self) -> None:
        """Keep it for as long as the run lives; nothing waits while history holds all of it."""
        self._log.entry_listener = self._carrier.left = self._begin
        self._begin()

    def publish(self, waiting: WaitingCalls | None) -> None:
        """Have the memo tell what waits, at the end of this workflow task; in the journal's event, if it has one."""
        self._memo[WAITING_MEMO] = waiting
        self._begin()

    def _begin(self) -> None:
        if self._writing is None and self._lacks():
            self._writing = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        try:
            while self._lacks():
                await workflow.wait_condition(self._may_go_on)
                # Whoever waits for the same goes on first: most often with a step that carries it.
                await workflow.wait_condition(self._may_go_on)
                if self._is_due():
                    self._write()
        finally:
            self._writing = None

    def _lacks(self) -> bool:
        carrier = self._carrier
        return bool(self._memo or carrier.news(self._log.projection)) or carrier.leaves or carrier.is_under_way

    def _may_go_on(self) -> bool:
        return self._is_due() or not self._lacks()

    def _is_due(self) -> bool:
        progress, news = self._activities.progress, self._carrier.news(self._log.projection)
        if self._memo:
            return True
        if progress.loads_plan or not (news or (self._carrier.leaves and not self._is_paging)):
            return False
        # A local tool's workflow task ends with it, at the latest where its step's result is carried on.
        awaited = self._carrier.is_awaited or any(isinstance(entry, _FROM_OUTSIDE) for entry in news)
        return not progress.runs_local or awaited

    @contextmanager
    def small_slice(self) -> Generator[JournalSlice | None]:
        """Give what history lacks to an activity that is scheduled at once; `None` if that is nothing, or large."""
        projection, lacking = self._log.projection, self._carrier.take(self._log.projection)
        part = memo_of(projection, *lacking[0]) if len(lacking) == 1 else None
        if part is None:
            for start, end in lacking:
                self._carrier.leave(start, end)
        with self._carrier.under_way(part) as witness:
            witness.starting()
            yield part

    @property
    def _is_paging(self) -> bool:
        """A page waits for room: the next one is not even packed, which takes a workflow long."""
        return self._carrier.waits(self._newest_page)

    def _write(self) -> None:
        """Write it into a memo, and take that back at once: history keeps both, and the server nothing else."""
        projection = self._log.projection
        written = False
        for start, end in self._carrier.take(projection):
            part = memo_of(projection, start, end)
            if part is None:
                rest = start if self._is_paging else self._begin_page(start, end)
                self._carrier.leave(rest, end)
                if end <= self._told:
                    continue
                # An empty slice: readers wait for what lies before it.
                part, self._told = JournalSlice(offset=end), end
            workflow.upsert_memo({JOURNAL_MEMO: part})
            written = True
        memo, self._memo = self._memo, {}
        if written:
            memo = {JOURNAL_MEMO: None, **memo}
        if memo:
            workflow.upsert_memo(memo)

    def _begin_page(self, start: int, end: int) -> int:
        """Give the first page of a part to an activity; returns where the rest begins."""
        self._newest_page, page = page_of(self._log.projection, start, end)
        # At once: a run that ends before the task begins would leave the page to nobody.
        witness = self._carrier.begin(self._newest_page)
        task = asyncio.create_task(self._keep_page(self._newest_page, page, witness))
        self._pages.add(task)
        task.add_done_callback(self._pages.discard)
        return self._newest_page[1]

    async def _keep_page(self, given: _Range, page: JournalPage, witness: Witness) -> None:
        try:
            await self._activities.keep_journal(page, witness)
        finally:
            self._carrier.end(given)

    async def hand_over(self) -> None:
        """Write down all that the history lacks, in pages, for the run that will read it there."""
        projection = self._log.projection
        for start, end in self._carrier.take(projection, under_way=True):
            while start < end:
                (_, start), page = page_of(projection, start, end)
                await self._activities.keep_journal(page)
        await workflow.wait_condition(workflow.all_handlers_finished)
