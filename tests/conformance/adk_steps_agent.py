"""The custom agent of the scenarios (FORMAT.md), of google.adk's classes."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from google.adk.agents.base_agent import BaseAgent, BaseAgentState
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event


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
            assert sub_agent is not None, f"{self.steps[step]!r} is a sub-agent of {self.name!r}"
            async for event in sub_agent.run_async(ctx):
                yield event
        if ctx.is_resumable:
            ctx.set_agent_state(self.name, end_of_agent=True)
            yield self._create_agent_state_event(ctx)
