"""Custom agents that deal with failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from temporalio.exceptions import ApplicationError

from perdure.agents.custom import BaseAgent, InvocationContext
from perdure.errors import EffectFailed
from perdure.journal.events import Event
from tests.workflows.custom_agents import faltering, said


class Silent(BaseAgent):
    """Ends without a word if its sub-agent fails."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
        except EffectFailed:
            pass


async def late(seconds: float, fails: bool) -> str:
    await asyncio.sleep(seconds)
    if fails:
        raise ApplicationError("too late", non_retryable=True)
    return "late"


class Impatient(BaseAgent):
    """Ends as the first of two calls fails, before the second one comes back."""

    fails: bool = False

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            await asyncio.gather(ctx.run_activity(late, 0.0, True), ctx.run_activity(late, 2.0, self.fails))
        except EffectFailed:
            yield said(self, "Enough.")


class Second(BaseAgent):
    """Falls back on its second sub-agent, and fails by that."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
        except EffectFailed as failure:
            silent = failure.silent
            yield said(self, "No first.")
            async for event in self.sub_agents[1].run_async(ctx):
                yield event
            yield said(self, f"It said {'nothing' if silent else failure.cause}.")


class Gathering(BaseAgent):
    """Falls back on a function and its second sub-agent at once, and fails by the function once both are through."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
        except EffectFailed:
            yield said(self, "No first.")
            both = ctx.run_activity(late, 0.0, True), self._second(ctx)
            for outcome in await asyncio.gather(*both, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome from None

    async def _second(self, ctx: InvocationContext) -> None:
        async for _ in self.sub_agents[1].run_async(ctx):
            pass


class Retry(BaseAgent):
    """Tries a function once, if it is to, and its sub-agent some times."""

    function: bool = False
    times: int = 2

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            if self.function:
                yield said(self, await ctx.run_activity(faltering))
        except EffectFailed:
            yield said(self, "No function.")
        for attempt in range(self.times):
            try:
                async for event in self.sub_agents[0].run_async(ctx):
                    yield event
                break
            except EffectFailed:
                if attempt == self.times - 1:
                    raise ValueError("no attempt is left") from None
                yield said(self, f"Attempt {attempt} failed.")
        if ctx.session.state.get("broken"):
            raise ValueError("broken")
        yield said(self, "Done.")


class Twice(BaseAgent):
    """Has its sub-agent work twice at once."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async def run() -> None:
            async for _ in self.sub_agents[0].run_async(ctx):
                pass

        await asyncio.gather(run(), run())
        yield said(self, "Done.")


class OwnFailure(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
        except EffectFailed as failure:
            yield said(self, "No first.")
            raise EffectFailed(self.name, "work", "no way out") from failure
        yield said(self, "Done.")


async def touchy() -> str:
    """Fails as it is stopped."""
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        raise RuntimeError("cut off") from None
    return "untouched"


class Touchy(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            yield said(self, await ctx.run_activity(touchy))
        except EffectFailed:
            yield said(self, await ctx.run_activity(faltering))


class Deep(BaseAgent):
    """Writes a value of many lists within each other into the state."""

    levels: int = 0

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        value: object = "x"
        for _ in range(self.levels):
            value = [value]
        yield said(self, "Deep.", k=value)
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
