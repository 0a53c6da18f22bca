"""The small workflow that holds a user's, or an app's, shared state."""

from __future__ import annotations

import asyncio
import contextlib

from temporalio import workflow

from perdure.messages.shared_state import SET_STATE, STATE, STATE_WORKFLOW, StateInput, StateView, StateWrite

_REMEMBERED = 1000
"""Writes whose ids are kept, so that a repeated one does nothing."""


@workflow.defn(name=STATE_WORKFLOW)
class SharedStateWorkflow:
    """Keeps the `user:` keys of one user of an app, or the `app:` keys of an app; the last writer wins."""

    @workflow.init
    def __init__(self, start: StateInput) -> None:
        self._state = dict(start.state)
        self._written = dict.fromkeys(start.written)

    @workflow.run
    async def run(self, start: StateInput) -> None:
        """Hold the state for as long as the app lives."""
        with contextlib.suppress(asyncio.CancelledError):
            # A cancellation from outside must not lose what others wrote.
            await workflow.wait_condition(lambda: workflow.info().is_continue_as_new_suggested())
        written = tuple(self._written)[-_REMEMBERED:]
        workflow.continue_as_new(StateInput(state=self._state, written=written))

    @workflow.signal(name=SET_STATE)
    def set_state(self, write: StateWrite) -> None:
        """Write keys; a second write of one id does nothing."""
        if write.write_id not in self._written:
            self._written[write.write_id] = None
            self._state.update(write.delta)

    @workflow.query(name=STATE)
    def state(self) -> StateView:
        """Return the keys."""
        return StateView(state=self._state)
