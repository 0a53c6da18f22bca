"""The custom agent of the scenarios (FORMAT.md)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from perdure.agents.custom import BaseAgent, BaseAgentState, InvocationContext
from perdure.journal.events import Event


class StepsState(BaseAgentState):
    """The checkpoint: which step is next or under way."""

    step: int = 0


class StepsAgent(BaseAgent):
    """Runs sub-agents in order, with a checkpoint before each, as ADK's guide for resumable custom agents tells."""

    steps: list[str]
    """Names of sub-agents; one may stand here more than once."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        saved = self._load_agent_state(ctx, StepsState)
        start = saved.step if saved is not None else 0
        for step in range(start, len(self.steps)):
            if ctx.is_resumable and (saved is None or step != start):
                ctx.set_agent_state(self.name, agent_state=StepsState(step=step))
                yield self._create_agent_state_event(ctx)
            sub_agent = self.find_sub_agent(self.steps[step])
            if sub_agent is None:
                raise LookupError(f"step {step} of {self.name!r} is {self.steps[step]!r}, which is no sub-agent")
            async for event in sub_agent.run_async(ctx):
                yield event
        if ctx.is_resumable:
            ctx.set_agent_state(self.name, end_of_agent=True)
            yield self._create_agent_state_event(ctx)
