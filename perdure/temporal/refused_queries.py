"""Asks again what the query guard refused. Apart from the guard, which needs Temporal's worker: clients ask, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.client import WorkflowQueryFailedError

_R = TypeVar("_R")

_PAUSE = 0.1

BETWEEN_STEPS = "the session is about to take a step"
"""Why a query is refused that would have gone ahead of a workflow task; to be asked again, unless the run is closed."""


async def ask_again(query: Callable[[], Awaitable[_R]], seconds: float) -> _R:
    """Return a query's result, asked for so many seconds while it is refused between two steps.

    Raises:
        WorkflowQueryFailedError: It is still refused, or fails.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return await query()
        except WorkflowQueryFailedError as error:
            if BETWEEN_STEPS not in str(error) or time.monotonic() >= until:
                raise
        await asyncio.sleep(_PAUSE)
