"""A custom agent of google.adk's."""

from collections.abc import AsyncGenerator

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event


class Triage(BaseAgent):
    """Runs one of its agents."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        chosen = self.sub_agents[0 if ctx.session.state.get("fire") else 1]
        async for event in chosen.run_async(ctx):
            yield event


root_agent = Triage(
    name="triage",
    sub_agents=[
        LlmAgent(name="firefighter", model="gemini-2.5-flash"),
        LlmAgent(name="clerk", model="gemini-2.5-flash"),
    ],
)
