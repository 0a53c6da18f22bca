"""Brings in the journal with which a run starts: from its input, or, if it is too large for that, part by part."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.errors import LogError, error_text
from perdure.journal.entries import SessionCreated
from perdure.journal.fold import fold_journal
from perdure.journal.packing import pack, unpack
from perdure.messages.session import LOADING, JournalPage, LoadJournalInput, SessionInput
from perdure.workflows.run.activities import load_journal
from perdure.workflows.run.log import SessionLog


class Arrival:
    """The journal on its way in; until it is complete, a session takes nothing and tells nothing."""

    def __init__(self, start: SessionInput, seed: str) -> None:
        """Begin with what the run was started with; ids of function calls are derived from `seed`."""
        self._carried = start.carried
        self._length = start.carried.length if start.carried else start.length or 0
        self.log = SessionLog(unpack(start.journal) if start.journal else (), seed=seed)
        self._stopped = start.stopped
        self.inherited = max(self._length, len(self.log.projection.entries)) + len(self._stopped)
        """Entries that are from elsewhere."""
        self.then: Callable[[], None] = lambda: None
        """Called once, as the last part comes in."""
        if start.journal is None and start.carried is None:
            self.log.append(SessionCreated(state=start.state))

    @property
    def complete(self) -> bool:
        """The whole journal is there."""
        return len(self.log.projection.entries) >= self._length

    async def wait(self) -> None:
        """Return when the journal is complete."""
        if not self.complete:
            await workflow.wait_condition(lambda: self.complete)

    def check(self) -> None:
        """Check that the journal is complete, for a query.

        Raises:
            ApplicationError: It is not; to be asked again.
        """
        if not self.complete:
            raise ApplicationError(LOADING, type="Loading")

    async def fetch(self) -> None:
        """Fetch the journal of the run before; whatever a client brings in comes by itself."""
        if self._carried is None:
            await self.wait()
            return
        while not self.complete:
            have = len(self.log.projection.entries)
            self.extend(await load_journal(LoadJournalInput(journal=self._carried, since=have)))

    def extend(self, page: JournalPage) -> int:
        """Append a part of the journal, unless it is there already; returns how many entries there are now.

        Raises:
            ApplicationError: The part does not follow on what is there, or is malformed.
        """
        have, was_complete = len(self.log.projection.entries), self.complete
        try:
            if page.offset > have:
                raise LogError(f"the part starts at entry {page.offset}, but the journal ends at {have}")
            for entry in page.entries[have - page.offset :]:
                self.log.append(entry)
        except (LogError, KeyError, ValueError) as error:
            # A part is taken whole or not at all.
            self.log.projection = fold_journal(self.log.projection.entries[:have])
            raise ApplicationError(error_text(error), type="LogError", non_retryable=True) from error
        if self.complete and not was_complete:
            for entry in self._stopped:
                self.log.append(entry)
            self.then()
        return len(self.log.projection.entries)

    def pointer(self) -> JournalPage | None:
        """Return where the journal is to be found while it is not here; `None` if it is, or nobody else has it."""
        if self.complete or self._carried is None:
            return None
        return JournalPage(packed=pack(()), total=self._length, carried=self._carried)
