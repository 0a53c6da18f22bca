"""The small workflow that tells people of one call, or one failure, and of a call once more when it is due."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from perdure.messages.notices import (
    NOTICE_WORKFLOW,
    SEND_NOTICE,
    Happening,
    NoticeInput,
    SendNoticeInput,
    SendNoticeResult,
)

_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=2), maximum_interval=timedelta(minutes=10))
_PATIENCE = timedelta(days=1)
"""For which a receiver may be away."""


@workflow.defn(name=NOTICE_WORKFLOW)
class NoticeWorkflow:
    """Tells by each channel by itself: one that is away holds no other up."""

    @workflow.run
    async def run(self, notice: NoticeInput) -> None:
        """Tell, and if it is a call that waits, tell once more when it is due.

        Raises:
            ActivityError: A channel did not take it. The others have told it nevertheless.
        """
        due, failed = await self._tell(notice, notice.happened)
        if due is not None:
            pause = due - workflow.time()
            if pause > 0:
                await workflow.sleep(pause)
            failed += (await self._tell(notice, "call.due"))[1]
        if failed:
            raise failed[0]

    async def _tell(self, notice: NoticeInput, happened: Happening) -> tuple[float | None, list[BaseException]]:
        """Tell by all channels; returns when to tell of it once more, and what went wrong."""
        told = await asyncio.gather(
            *(self._send(SendNoticeInput(notice=notice, happened=happened, channel=one)) for one in notice.channels),
            return_exceptions=True,
        )
        dues = [one.due for one in told if isinstance(one, SendNoticeResult) and one.due is not None]
        return min(dues, default=None), [one for one in told if isinstance(one, BaseException)]

    async def _send(self, request: SendNoticeInput) -> SendNoticeResult:
        return await workflow.execute_activity(
            SEND_NOTICE,
            request,
            result_type=SendNoticeResult,
            start_to_close_timeout=timedelta(minutes=2),
            schedule_to_close_timeout=_PATIENCE,
            retry_policy=_RETRIES,
            summary=f"{request.channel}: {request.happened}",
        )
