"""The code of google.adk's custom agents and graphs, as a run of it takes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event as AdkEvent

from perdure.adk import graph_internals, internals
from perdure.adk.artifacts import StepArtifacts
from perdure.adk.code.code_sessions import CodeSession
from perdure.adk.events import from_adk, to_adk
from perdure.adk.registry import AdkRegistry
from perdure.adk.step_contexts import StepContexts
from perdure.adk.supported import runs_itself
from perdure.errors import EffectFailed
from perdure.journal.entries import FailureCaught
from perdure.journal.events import Event
from perdure.journal.node_runs import ends_node
from perdure.journal.projection import Projection
from perdure.steps.base import Place, Snapshot, StepOutput
from perdure.steps.code.agent_code import Code
from perdure.steps.code.code_runs import CodeRun, running
from perdure.steps.code.past import Past
from perdure.steps.code.played_log import PlayedLog


class SubAgentFailed(RuntimeError):
    """A sub-agent of a custom agent, or an agent in a graph, failed, and its retries did not help."""

    def __init__(self, failure: FailureCaught) -> None:
        """Tell of the first of its failures."""
        first = failure.failures[0]
        super().__init__(str(EffectFailed(first.agent, first.step, first.cause)))


class AdkCode(Code):
    """An agent's code with what it works with."""

    def __init__(
        self,
        at: Place,
        contexts: StepContexts,
        agent: BaseAgent,
        context: InvocationContext,
        session: CodeSession,
        registry: AdkRegistry,
    ) -> None:
        self.agent = agent
        self.context = context
        self._has_output = False
        """Of a node of a graph: it has given what it gives."""
        self.session = session
        self._at = at
        self._contexts = contexts
        self._registry = registry
        session.is_known = lambda event: self.is_known(event)

    @classmethod
    async def begin(
        cls, at: Place, session: Snapshot, past: Past, contexts: StepContexts, *, whole: bool, of: Place | None = None
    ) -> Self:
        """Return an agent's code, which has not begun.

        Args:
            at: The agent.
            session: The session.
            past: What the journal tells of its run.
            contexts: Make what it works with.
            whole: It sees the session as it is, rather than as it was when the run began.
            of: The agent whose tool it is, if it is a tool's.
        """
        owner = of or at
        registry = contexts.agents(owner, session)
        agent = registry.agent(owner.agent)
        begin = past.length if whole else past.places.begin
        key = f"{at.invocation_id}:{at.run}:code"
        early = replace(session, projection=past.seen_with(begin, at, session))
        streams = session.projection.invocations[at.invocation_id].streaming
        step, context = await contexts.begin(owner, early, agent, key, streams=streams, sessions=CodeSession)
        if whole:
            await contexts.show_credentials(at, session, step)
        if past.run.state is not None:
            context.agent_states[at.agent] = past.run.state

        async def state(projection: Projection) -> dict[str, Any]:
            return await contexts.state(at, replace(session, projection=projection))

        code = cls(owner, contexts, agent, context, step, registry)
        code._has_output = any(map(ends_node, past.run.own))
        code.log = PlayedLog(at, step, begin, state)
        return code

    def runs(self, agent: BaseAgent, context: InvocationContext) -> bool:
        """Return whether the workflow runs an agent that the code wants to run in a context."""
        return context.session is self.session.session and self._registry.runs_below(self.agent.name, agent)

    async def events(self) -> AsyncGenerator[object, None]:
        """Run the code."""
        run: Any = self.agent.run_async if runs_itself(self.agent) else getattr(self.agent, "_run_async_impl")  # noqa: B009
        async with aclosing(run(self.context)) as events:
            async for event in events:
                yield event

    def checked(self, event: object) -> AdkEvent:
        """Return what the code yielded, if it is an event."""
        if not isinstance(event, AdkEvent):
            raise TypeError(
                f"the code of agent {self.agent.name!r} yielded {type(event).__name__!r}, where google.adk takes an"
                " Event"
            )
        event.author = event.author or self.agent.name
        return event

    async def part(self, event: AdkEvent) -> Event:
        """Return a part of an event, as plugins want it."""
        return from_adk(await self._contexts.said(self._at, self.session, self.context, event))

    async def keep(self, event: AdkEvent, id: str) -> None:
        """Log an event, as plugins want it."""
        began = self.session.began
        if began is not None and began.node is not None and self.session.node is self.agent and not self._has_output:
            self._has_output = graph_internals.promote(self.agent, event, began.node)
        await self.session.log(await self._contexts.said(self._at, self.session, self.context, event), id)

    @property
    def held(self) -> int:
        """How many events it has logged that no step has returned yet."""
        return len(self.session.logged)

    @property
    def holds(self) -> int:
        """Bytes of what it has logged and no step has returned yet."""
        return self.session.held_bytes

    async def output(self) -> StepOutput:
        """Return what it has logged since the last step."""
        taken, self.session.held_bytes = len(self.session.logged), 0
        output = await self._contexts.output(self._at, self.session, self.context)
        del self.session.logged[:taken]
        return output

    async def left(self, error: Exception) -> StepOutput:
        """Tell plugins that it failed; returns what it leaves in the log."""
        await internals.tell_failure(self.agent, self.context, error)
        return await self._contexts.left(self._at, self.agent, self.session, error)

    def as_given(self, event: Event) -> AdkEvent:
        """Return a sub-agent's event as google.adk's."""
        return to_adk(event)

    def failed(self, failure: FailureCaught) -> SubAgentFailed:
        """Return what it is given of a sub-agent that failed."""
        return SubAgentFailed(failure)

    def told(self, error: Exception) -> str:
        """Return what an error of its own says, as ADK tells it."""
        return str(error)


class AdkRun(CodeRun[AdkCode]):
    """One run of such code."""

    def __init__(self, at: Place, code: AdkCode) -> None:
        super().__init__(at, code)
        if isinstance(artifacts := code.context.artifact_service, StepArtifacts):
            artifacts.place = self.place

    def place(self) -> str:
        """Return where its code is, as it is when that runs again: behind which checkpoint."""
        return str(self._checkpoints)

    def events_of(self, agent: BaseAgent, context: InvocationContext) -> AsyncGenerator[AdkEvent, None] | None:
        """Return the events of an agent's run, which the workflow runs; `None` if google.adk is to run it."""
        return self.run_agent(agent.name, context.branch) if self.code.runs(agent, context) else None


def _route(agent: BaseAgent, context: InvocationContext) -> AsyncGenerator[AdkEvent, None] | None:
    run = running.get()
    return run.events_of(agent, context) if isinstance(run, AdkRun) else None


internals.route_agents(_route)
