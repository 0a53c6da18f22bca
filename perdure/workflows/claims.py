"""The small workflow beside a session's that holds its claims of at-most-once calls."""

from __future__ import annotations

import asyncio
import contextlib

from temporalio import workflow

from perdure.messages.claims import CLAIM, CLAIMS_WORKFLOW, ClaimInput, ClaimResult, Claims, ClaimsInput

_CLAIMS_PER_RUN = 500
"""Temporal takes 2,000 updates in one run."""


@workflow.defn(name=CLAIMS_WORKFLOW)
class ClaimsWorkflow:
    """Keeps the claims of one session's at-most-once calls; open as long as the session is."""

    @workflow.init
    def __init__(self, start: ClaimsInput) -> None:
        self._claims = Claims(start)
        self._asked = 0

    @workflow.run
    async def run(self, start: ClaimsInput) -> None:
        """Hold the claims until the session is deleted."""
        with contextlib.suppress(asyncio.CancelledError):
            # A cancellation from outside must not lose them.
            await workflow.wait_condition(
                lambda: self._asked >= _CLAIMS_PER_RUN or workflow.info().is_continue_as_new_suggested()
            )
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._claims.hand_over())

    @workflow.update(name=CLAIM)
    def claim(self, request: ClaimInput) -> ClaimResult:
        """Say whether a start is the first one, and take note of it."""
        self._asked += 1
        return self._claims.claim(request)
