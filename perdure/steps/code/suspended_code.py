"""Keeps the code of an app's custom agents, and graphs, suspended between its steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from perdure.steps.base import Place, Snapshot, StepOutput
from perdure.steps.code.past import Past
from perdure.streams.drafts import Drafts

_MOST_KEPT = 200
"""Agents whose code is kept suspended, in one process, beside those whose code is at work."""


class Suspendable(Protocol):
    """A run of an agent's code."""

    @property
    def suspended(self) -> bool:
        """Whether it has still to go on."""
        ...

    def fits(self, past: Past) -> bool:
        """Return whether the journal has what the code has logged, and no more of it."""
        ...

    async def go_on(self, past: Past, drafts: Drafts | None = None) -> StepOutput:
        """Let the code run on; `drafts` get the parts of what it says."""
        ...

    async def close(self) -> None:
        """End the code where it is."""
        ...


class SuspendedCode:
    """Runs the custom agents, and the graphs, of one app."""

    def __init__(self, begin: Callable[[Place, Snapshot, Past], Awaitable[Suspendable]]) -> None:
        """Begin.

        Args:
            begin: Returns a run of an agent's code, which has not begun.
        """
        self._begin = begin
        self._kept: OrderedDict[tuple[Any, ...], Suspendable] = OrderedDict()
        self._at_work: dict[tuple[Any, ...], Suspendable] = {}

    async def run(self, at: Place, session: Snapshot, drafts: Drafts | None = None) -> StepOutput:
        """Run an agent's code up to where it waits for something new, or to its end; `drafts` as in `Steps`.

        Raises:
            CodeFailed: It raised.
            NotRegistered: This process lacks the agent.
            StepRefused: Its place in the tree cannot be named.
        """
        past = Past.of(at, session)
        key = (at.key, at.scope, at.invocation_id, at.run)
        code = self._kept.pop(key, None) or self._at_work.pop(key, None)
        if code is not None and not code.fits(past):
            await code.close()
            code = None
        if code is None:
            code = await self._begin(at, session, past)
        try:
            output = await code.go_on(past, drafts)
        except BaseException:
            await code.close()
            raise
        if code.suspended:
            await self._keep(key, code, at_work=output.goes_on)
        return output

    async def _keep(self, key: tuple[Any, ...], code: Suspendable, *, at_work: bool) -> None:
        if at_work and _MOST_KEPT:
            # Begun anew for want of room, it would do all of its work again.
            self._at_work[key] = code
            return
        self._kept[key] = code
        while len(self._kept) > _MOST_KEPT:
            await self._kept.popitem(last=False)[1].close()

    async def close(self) -> None:
        """End all code that is kept."""
        for kept in (self._kept, self._at_work):
            while kept:
                await kept.popitem()[1].close()
