"""Follows a session without writing history: long-polls of its history say when to look again.

An update or a signal writes history, a query or a history long-poll does not. The log grows in workflow tasks only, so
a follower asks again after each completed one.
"""

from __future__ import annotations

import asyncio
import math
import time

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from perdure.logs import get_logger
from perdure.recovery.stuck import why_stuck

_logger = get_logger("perdure.client")

_SHORT_HISTORY = 400
"""History events that are cheap enough to read through once, to stand at the end."""

_FIRST_SPACING = 0.02
_LAST_SPACING = 0.15
"""Seconds between two polls at least: the longer a run is at work without a pause, the fewer it costs."""

_LAST_WAIT = 0.5
"""Seconds, at the most, for which what a run has logged is not asked for while it is at work on more."""

_LOOK_SHARE = 3
_BUSY_WAIT = 5.0
_BUSY_SPACING = 1.0
"""After a look, as many times as long as it took, this at the most, until the next one and between two polls: a worker
that answers late has more to do."""

_LAST_KEPT_PAUSE = 2.0
_KEPT_SHARE = 0.1
"""Seconds until a look at what an activity of several steps keeps: this part of how long it has kept none."""

_ENDED = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
    }
)

_TASK_OPENS = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED})
_TASK_ENDS = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    }
)
_TASK_EVENTS = _TASK_OPENS | _TASK_ENDS

_FIRST_PAUSE = 0.02
_LAST_PAUSE = 1.0

_SUSPECT_SECONDS = 3.0
"""Seconds between two looks at whether a run is stuck whose workflow task has failed; history tells the first only."""


class Follower:
    """Waits for news of one workflow; it can be kept, and then knows where it stood.

    A history too long to read through is followed by asking with a growing pause instead.
    """

    def __init__(self, client: Client, workflow_id: str) -> None:
        self._client = client
        self._workflow_id = workflow_id
        self._token: bytes | None = None
        self._pause = _FIRST_PAUSE
        self._looked = 0.0
        self._spacing = _FIRST_SPACING
        self._wait = _FIRST_SPACING
        self._grown = False
        """A workflow task was completed since the last look."""
        self._failed = False
        """The last workflow task has failed, so that it may be that no worker can go on."""
        self._found = 0.0
        """When a look found something new."""
        self._checked = 0.0
        """When it was looked at whether the run is stuck."""
        self._at_work = 0
        """Activities that are scheduled and have not ended."""
        self._in_task = False
        """A workflow task is scheduled or being done, which may schedule more."""

    async def news(self, *, found: bool, took: float = 0.0, more_within: float | None = None) -> None:
        """Return when the log may have grown.

        Args:
            found: The last look found something new, so the next change may be near.
            took: Seconds that the last look took.
            more_within: Seconds, about, in which an activity may keep more steps, without a word in history.

        Raises:
            SessionStuck: It does not, since its workflow task fails again and again.
        """
        now = time.monotonic()
        begins = now - self._looked > 2 * _LAST_KEPT_PAUSE
        self._found = now if found or begins else self._found
        kept_pause = math.inf
        if more_within is not None:
            kept_pause = min(max((now - self._found) * _KEPT_SHARE, more_within), _LAST_KEPT_PAUSE)
        if self._token is None and not await self._stand_at_start():
            self._pause = _FIRST_PAUSE if found else min(self._pause * 1.5, _LAST_PAUSE)
            await asyncio.sleep(min(self._pause, kept_pause))
            self._looked = time.monotonic()
            if self._pause == _LAST_PAUSE:
                await self._check_goes_on()
            return
        # Many changes in a row cost one look, since a look costs the worker more than a step does.
        since = time.monotonic() - self._looked
        busy = took * _LOOK_SHARE
        self._spacing = _FIRST_SPACING if since > 1 else min(self._spacing * 1.2, _LAST_SPACING)
        self._wait = _FIRST_SPACING if since > 1 else min(self._wait * 1.4, _LAST_WAIT)
        due = self._looked + max(self._wait, min(busy, _BUSY_WAIT))
        kept = now + max(kept_pause, min(busy, _BUSY_WAIT))
        await self._until(due, max(self._spacing, min(busy, _BUSY_SPACING)), kept)
        self._grown = False
        self._looked = time.monotonic()

    @property
    def _is_at_work(self) -> bool:
        return self._at_work > 0 or self._in_task

    async def _until(self, due: float, spacing: float, kept: float) -> None:
        """Poll until there is something to look at: at once where the run stands still, else when a look is due.

        Args:
            due: When a look is due at what the run has logged.
            spacing: Seconds between two polls.
            kept: When one is due, as long as the run is at work, at what its activities keep.
        """
        polled = self._looked
        while True:
            now = time.monotonic()
            if self._grown and (now >= due or not self._is_at_work):
                return
            looks = kept if self._is_at_work else math.inf
            await asyncio.sleep(max(min(polled + spacing, due, looks) - now, 0))
            polled = time.monotonic()
            if polled >= looks:
                return
            until = due if self._grown else polled + _SUSPECT_SECONDS if self._failed else math.inf
            until = min(until, looks)
            try:
                async with asyncio.timeout(max(until - polled, 0) if until < math.inf else None):
                    await self._poll()
            except TimeoutError:
                if self._grown:
                    return
            if self._failed:
                await self._check_goes_on()
            if self._token is None:
                return

    async def _check_goes_on(self) -> None:
        now = time.monotonic()
        if now - self._checked < _SUSPECT_SECONDS:
            return
        self._checked = now
        stuck = await why_stuck(self._client, self._workflow_id)
        if stuck is not None:
            raise stuck

    async def _stand_at_start(self) -> bool:
        handle: WorkflowHandle[object, object] = self._client.get_workflow_handle(self._workflow_id)
        try:
            if (await handle.describe()).history_length > _SHORT_HISTORY:
                return False
        except RPCError:
            return False
        self._token, self._at_work, self._in_task = b"", 0, False
        return True

    async def _poll(self) -> None:
        """Read one page of history, waiting for it if need be."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=self._workflow_id),
            wait_new_event=True,
            next_page_token=self._token or b"",
            skip_archival=True,
        )
        try:
            answer = await self._client.workflow_service.get_workflow_execution_history(request)
        except RPCError as error:
            # The server is away, or forgot the token: the next look says more, and it waits for the server.
            _logger.debug("history poll failed", reason=error.status.name.lower())
            self._token = None
            return
        # Without a token the run is closed; another may have taken over.
        self._token = answer.next_page_token or None
        for event in answer.history.events:
            self._grown |= event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
            if event.event_type in _TASK_ENDS:
                self._failed = event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
            self._at_work += event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
            self._at_work -= event.event_type in _ENDED
            if event.event_type in _TASK_EVENTS:
                self._in_task = event.event_type in _TASK_OPENS
