"""`StoryFlowAgent`, the custom agent.

ADK: https://google.github.io/adk-docs/agents/custom-agents/ and https://google.github.io/adk-docs/runtime/resume/
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from enum import IntEnum

from perdure import BaseAgent, BaseAgentState, Event, InvocationContext, LlmAgent, LoopAgent, SequentialAgent


class Step(IntEnum):
    """What is to be done next."""

    WRITE = 1
    REVISE = 2
    CHECK = 3
    REWRITE = 4


class StoryFlowState(BaseAgentState):
    """The agent's checkpoint."""

    step: Step = Step.WRITE


class StoryFlowAgent(BaseAgent):
    """Has a story written, revised and checked, and written once more if its tone is negative."""

    story_generator: LlmAgent
    revision: LoopAgent
    checks: SequentialAgent

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        step = (self._load_agent_state(ctx, StoryFlowState) or StoryFlowState()).step

        if step == Step.WRITE:
            async for event in self.story_generator.run_async(ctx):
                yield event
            yield self._checkpoint(ctx, step := Step.REVISE)

        if step == Step.REVISE:
            async for event in self.revision.run_async(ctx):
                yield event
            yield self._checkpoint(ctx, step := Step.CHECK)

        if step == Step.CHECK:
            async for event in self.checks.run_async(ctx):
                yield event
            yield self._checkpoint(ctx, step := Step.REWRITE)

        tone = str(ctx.session.state.get("tone", ""))
        if step == Step.REWRITE and "negative" in tone.lower():
            async for event in self.story_generator.run_async(ctx):
                yield event

        ctx.set_agent_state(self.name, end_of_agent=True)
        yield self._create_agent_state_event(ctx)

    def _checkpoint(self, ctx: InvocationContext, step: Step) -> Event:
        """Return the event that says which step comes next; a run that is entered again starts there."""
        ctx.set_agent_state(self.name, agent_state=StoryFlowState(step=step))
        return self._create_agent_state_event(ctx)
