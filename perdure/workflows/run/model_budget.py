"""Limits the model calls of one invocation: its agents wait for a resume beyond that."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from temporalio import workflow

from perdure.errors import EffectFailed
from perdure.journal.invocations import Invocation
from perdure.plan.nodes import LlmNode, Plan
from perdure.rules.model_calls import may_reserve, why_no_call
from perdure.workflows.agents.waits import Waits


class CallBudget:
    """Counts the calls that are under way; those that came back stand in the journal."""

    def __init__(
        self,
        plan: Plan,
        invocation: Invocation,
        waits: Waits,
        check_stopped: Callable[[], None],
        *,
        may_wait: bool,
    ) -> None:
        """Begin with none under way; `may_wait`: agents that may make no more wait for a resume."""
        self._plan = plan
        self._invocation = invocation
        self._waits = waits
        self._check_stopped = check_stopped
        self._may_wait = may_wait
        self._under_way: Counter[str] = Counter()
        self._waiting: list[LlmNode] = []

    @asynccontextmanager
    async def calling(self, node: LlmNode, most: int = 1) -> AsyncGenerator[int]:
        """Count as model calls inside of the block; wait first until the agent may make one: for days, if need be.

        Args:
            node: The agent.
            most: How many it would make; the block is told how many it may: all of them, or near a limit one.

        Raises:
            EffectFailed: It may make none, and nothing waits: the app is not resumable, or a tool runs the agent.
        """
        await self._room(node)
        count = most if may_reserve(self._plan, node, self._invocation, self._under_way, most) else 1
        self._under_way[node.name] += count
        try:
            yield count
        finally:
            self._under_way[node.name] -= count

    async def _room(self, node: LlmNode) -> None:
        # Several may wait for the same room, which the first one takes.
        while (why := self._why_not(node)) is not None:
            if not self._may_wait:
                raise EffectFailed(node.name, "model", why)
            self._waiting.append(node)
            try:
                with self._waits.until(lambda: self._why_not(node) is None) as is_over:
                    await workflow.wait_condition(is_over)
            finally:
                self._waiting.remove(node)
            self._check_stopped()

    def _why_not(self, node: LlmNode) -> str | None:
        return why_no_call(self._plan, node, self._invocation, self._under_way)

    @property
    def reason(self) -> str | None:
        """Why agents wait for a resume; `None` if none does."""
        reasons = [self._why_not(node) for node in self._waiting]
        return "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None
