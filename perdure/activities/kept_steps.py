"""Keeps the steps that an activity has done so far in its heartbeats, so that the next attempt goes on behind them.

By the client, with the activity's own token, and awaited: through the SDK a heartbeat may be held back, and come late.
While one step takes long, the SDK sends one from time to time, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.common import RawValue

from perdure.activities.heartbeats import beat_seconds
from perdure.logs import get_logger
from perdure.messages.stretches import Stretch, cut_off

_log = get_logger("perdure.worker")

_SDK_PATIENCE = 3.0
"""Seconds behind the timeout in which the SDK must have sent a heartbeat: it gives the activity up after five. It holds
none back that are so few."""

_SENT_SECONDS = 0.05
"""In which it sends one."""

__all__ = ["KeptSteps", "keeping", "kept_before"]


class KeptSteps:
    """The heartbeats of one activity, each with all that is kept: one detail for each time that there was more."""

    def __init__(self, client: Client) -> None:
        self._activity = client.get_async_activity_handle(task_token=activity.info().task_token)
        self._converter = client.data_converter
        self._kept: tuple[RawValue, ...] = ()
        """What no heartbeat replaces any more."""
        self._details: tuple[RawValue, ...] = ()
        """What the next one has."""
        self._taken = (self._kept, self._details)
        """Both as of the last one that was taken."""
        self._sending = asyncio.Lock()
        self._sdk_sent = time.monotonic()
        self.ends = asyncio.Event()
        """The activity is to hand over what it has: it is to stop, or nothing more can be kept."""

    def _written(self, what: Stretch) -> RawValue:
        # Once: each heartbeat takes it again.
        [payload] = self._converter.payload_converter.to_payloads([what])
        return RawValue(payload)

    async def keep(self, what: Stretch) -> None:
        """Return when this is kept behind all before it, or the activity is to end."""
        self._kept = self._details = (*self._kept, self._written(what))
        await self.beat()

    async def keep_for_now(self, what: Stretch) -> None:
        """The same, but what is kept next replaces it."""
        self._details = (*self._kept, self._written(what))
        await self.beat()

    async def beat(self) -> None:
        """Heartbeat once."""
        # One after the other: what is sent first must not come last.
        async with self._sending:
            sent = (self._kept, self._details)
            try:
                await self._activity.heartbeat(*self._details)
                self._taken = sent
            except AsyncActivityCancelledError:
                self.ends.set()
                # The SDK is to know it, too: it cancels what the activity is at.
                activity.heartbeat(*self._details)
            except Exception as error:
                # The server may be away for long, or the activity not be this worker's any more.
                self._refused(error)

    def _refused(self, error: Exception) -> None:
        _log.warning("a heartbeat was not taken", error=type(error).__name__, why=str(error)[:300])
        self.ends.set()
        # What is at work goes on, and is to be heard of.
        self._kept, self._details = self._taken

    async def go_on(self, timeout: float) -> None:
        """Heartbeat for ever, as often as this timeout needs."""
        pause = beat_seconds(timeout)
        while True:
            await asyncio.sleep(pause)
            if time.monotonic() - self._sdk_sent + pause > timeout + _SDK_PATIENCE:
                await self._beat_by_sdk()
            else:
                await self.beat()

    async def _beat_by_sdk(self) -> None:
        """Have the SDK heartbeat, which else gives the activity up: it knows of no other heartbeat.

        It tells nobody when that is sent. So what is kept next waits for a moment; where it comes behind that all the
        same, as from a server that was away, the next heartbeat has it again.
        """
        async with self._sending:
            try:
                # The SDK would cancel the activity for that.
                await self._converter.encode(self._details)
            except Exception as error:
                self._refused(error)
                return
            activity.heartbeat(*self._details)
            self._sdk_sent = time.monotonic()
            await asyncio.sleep(_SENT_SECONDS)


def kept_before() -> Stretch | None:
    """Return what earlier attempts of the activity have kept, if they have."""
    kept = [Stretch.model_validate(detail) for detail in activity.info().heartbeat_details]
    if not kept:
        return None
    entries = tuple(entry for part in kept for entry in part.entries)
    failed = kept[-1].failed
    if kept[-1].next_answer_id is not None:
        failed = (*failed, cut_off(kept[-1].next_answer_id))
    return Stretch(entries=entries, steps=kept[-1].steps, failed=failed)


@asynccontextmanager
async def keeping(client: Client) -> AsyncGenerator[KeptSteps]:
    """Heartbeat inside of the block, with what is kept, by a client of the server."""
    steps, timeout = KeptSteps(client), activity.info().heartbeat_timeout
    if timeout is None:
        yield steps
        return
    beats = asyncio.create_task(steps.go_on(timeout.total_seconds()))
    try:
        yield steps
    finally:
        beats.cancel()
        with suppress(asyncio.CancelledError):
            await beats
