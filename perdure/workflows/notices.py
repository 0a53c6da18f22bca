"""Has people told of a session's calls that wait, and of its failures, as soon as they are logged."""

from __future__ import annotations

import asyncio

from structlog.stdlib import BoundLogger
from temporalio.exceptions import FailureError

from perdure.journal.entries import InvocationSettled
from perdure.journal.events import Event
from perdure.messages.notices import NotifyInput
from perdure.workflows.run.activities import notify
from perdure.workflows.run.log import SessionLog


class Notices:
    """Watches the log of one session; what was there before the run is told by an earlier one."""

    def __init__(self, log: SessionLog, logger: BoundLogger, *, enabled: bool) -> None:
        self._log = log
        self._logger = logger
        self.enabled = enabled
        """The worker that loaded the newest plan was given settings of notices."""
        self._begun: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Begin to watch, once the journal that the run starts with is there."""
        self._log.listeners.append(self._logged)
        self._log.settle_listener = self._settled

    def _logged(self, event: Event) -> None:
        if not self.enabled or event.content is None:
            return
        projection = self._log.projection
        for part in event.content.parts or []:
            called = part.function_call
            call = projection.calls.get(called.id) if called is not None and called.id else None
            if call is not None and call.answer == "open":
                self._tell(
                    NotifyInput(
                        happened="call.waiting",
                        invocation_id=call.pending.invocation_id,
                        call_id=call.pending.id,
                        entry=len(projection.entries),
                    )
                )

    def _settled(self, entry: InvocationSettled) -> None:
        if self.enabled and entry.status == "failed":
            length = len(self._log.projection.entries)
            self._tell(NotifyInput(happened="invocation.failed", invocation_id=entry.invocation_id, entry=length))

    def _tell(self, request: NotifyInput) -> None:
        task = asyncio.create_task(self._notify(request))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def _notify(self, request: NotifyInput) -> None:
        try:
            await notify(request)
        except FailureError as error:
            self._logger.warning(
                "nobody is told", happened=request.happened, invocation=request.invocation_id, reason=str(error)
            )

    @property
    def handed_on(self) -> bool:
        """Each notice has a workflow of its own, so the run may end."""
        return not self._begun
