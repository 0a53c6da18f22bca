"""A custom agent that does what a random program says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from google.genai import types
from temporalio.exceptions import ApplicationError

from perdure.agents.custom import BaseAgent, BaseAgentState, InvocationContext
from perdure.errors import EffectFailed
from perdure.journal.events import Event


async def succeed(word: str) -> str:
    """Return what it got."""
    return word


async def fail(word: str) -> str:
    """Fail for good."""
    raise ApplicationError(f"no {word}", non_retryable=True)


class ProgramState(BaseAgentState):
    """The checkpoint: which statement is next."""

    step: int = 0


class ProgramAgent(BaseAgent):
    """Runs the statements of its program in order.

    `{"run": NAME}` runs a sub-agent, `{"call": WORD, "fails": BOOL}` a function, `{"say": TEXT}` logs an event,
    `{"save": true}` a checkpoint (of the outermost statements only), `{"try": […], "except": […]}` falls back,
    `{"gather": [[…], …]}` does lists at once and then fails by the first of them that failed, and `{"break": true}`
    fails of its own.
    """

    program: list[dict[str, Any]]

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        saved = self._load_agent_state(ctx, ProgramState)
        for step in range(saved.step if saved is not None else 0, len(self.program)):
            if "save" in self.program[step]:
                ctx.set_agent_state(self.name, agent_state=ProgramState(step=step + 1))
                yield self._create_agent_state_event(ctx)
            async for event in self._do(ctx, self.program[step]):
                yield event

    async def _do(self, ctx: InvocationContext, *program: dict[str, Any]) -> AsyncGenerator[Event, None]:
        for statement in program:
            if "say" in statement:
                yield Event(author=self.name, content=types.ModelContent(statement["say"]))
            elif "try" in statement:
                try:
                    async for event in self._do(ctx, *statement["try"]):
                        yield event
                except EffectFailed:
                    async for event in self._do(ctx, *statement["except"]):
                        yield event
            elif "run" in statement:
                async for event in self.sub_agent(statement["run"]).run_async(ctx):
                    yield event
            else:
                await self._silently(ctx, statement)

    async def _silently(self, ctx: InvocationContext, statement: dict[str, Any]) -> None:
        if "call" in statement:
            await ctx.run_activity(fail if statement["fails"] else succeed, statement["call"])
        elif "gather" in statement:
            lists = (self._apart(ctx, program) for program in statement["gather"])
            for outcome in await asyncio.gather(*lists, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        elif "break" in statement:
            raise ValueError("broken")

    async def _apart(self, ctx: InvocationContext, program: list[dict[str, Any]]) -> None:
        async for _ in self._do(ctx, *program):
            pass

    def sub_agent(self, name: str) -> BaseAgent:
        """Return the sub-agent of a name."""
        return next(agent for agent in self.sub_agents if agent.name == name)
