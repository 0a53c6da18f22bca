"""Custom agents of google.adk's classes: that of the scenarios (FORMAT.md), and one that does what a program says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.base_agent import BaseAgent, BaseAgentState
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.genai import types

from perdure.adk.code.adk_code import SubAgentFailed


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


class ProgramAgent(BaseAgent):
    """Runs the statements of its program in order: those of `tests.prove.program_agent`, but for `call`."""

    program: list[dict[str, Any]]

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        saved = self._load_agent_state(ctx, StepsState)
        for step in range(saved.step if saved is not None else 0, len(self.program)):
            if "save" in self.program[step]:
                ctx.set_agent_state(self.name, agent_state=StepsState(step=step + 1))
                yield self._create_agent_state_event(ctx)
            async for event in self._do(ctx, *self.program[step : step + 1]):
                yield event

    async def _do(self, ctx: InvocationContext, *program: dict[str, Any]) -> AsyncGenerator[Event, None]:
        for statement in program:
            if "say" in statement:
                content = types.ModelContent(statement["say"])
                yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)
            elif "try" in statement:
                async for event in self._try(ctx, statement["try"], statement["except"]):
                    yield event
            elif "run" in statement:
                agent = self.find_sub_agent(statement["run"])
                assert agent is not None, "programs name sub-agents"
                async for event in agent.run_async(ctx):
                    yield event
            elif "gather" in statement:
                await self._gather(ctx, statement["gather"])
            elif "break" in statement:
                raise ValueError("broken")

    async def _try(
        self, ctx: InvocationContext, program: list[dict[str, Any]], instead: list[dict[str, Any]]
    ) -> AsyncGenerator[Event, None]:
        try:
            async for event in self._do(ctx, *program):
                yield event
        except SubAgentFailed:
            async for event in self._do(ctx, *instead):
                yield event

    async def _gather(self, ctx: InvocationContext, programs: list[list[dict[str, Any]]]) -> None:
        lists = (self._apart(ctx, program) for program in programs)
        for outcome in await asyncio.gather(*lists, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _apart(self, ctx: InvocationContext, program: list[dict[str, Any]]) -> None:
        async for _ in self._do(ctx, *program):
            pass
