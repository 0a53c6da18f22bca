"""What each step of a google.adk app begins and ends with: its agents, its session and context, its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event as AdkEvent
from google.adk.runners import Runner

from perdure.adk import callbacks, graph_internals, internals
from perdure.adk.events import AdkEvents
from perdure.adk.registry import AdkRegistry
from perdure.adk.run_configs import run_config
from perdure.adk.services import Services
from perdure.adk.session_service import SharedState, StepSession
from perdure.errors import CredentialError
from perdure.journal.credential_questions import credential_requests, parse_credential
from perdure.journal.entries import RunBegan
from perdure.journal.events import USER, Event
from perdure.steps.base import Place, Snapshot, StepOutput

_SessionT = TypeVar("_SessionT", bound=StepSession)

MAX_FAILURE_TEXT = 4_000
"""Characters of an error's text in the log."""


def began_as_node(session: Snapshot, at: Place) -> RunBegan | None:
    """Return how the run began, of an agent or of one above it, that is a node of a graph; `None` without a graph."""
    entries = session.projection.invocations[at.invocation_id].entries
    began = {entry.run: entry for entry in entries if isinstance(entry, RunBegan) and entry.node is not None}
    path = at.run
    while began and path:
        if path in began:
            return began[path]
        path = path.rpartition("/")[0]
    return None


class StepContexts:
    """Makes what the steps of one app work with."""

    def __init__(self, registry: AdkRegistry, services: Services) -> None:
        self._registry = registry
        self._services = services
        self._events = AdkEvents()

    def agents(self, at: Place, session: Snapshot, plan: str | None = None) -> AdkRegistry:
        """Return the agents of an invocation; `plan` is its digest, where the journal does not name it."""
        projection = session.projection
        today = self._registry.within(projection.tools)
        pinned = projection.plans.get(plan or projection.invocations[at.invocation_id].plan or "")
        return today.pinned(pinned) if pinned is not None else today

    def _runner(self, session: Snapshot) -> Runner:
        tools = session.projection.tools
        if not tools:
            return self._services.runner
        return self._services.runner_of(self._registry.within(tools[:-1]).agent_tool(*tools[-1]))

    async def output(self, at: Place, step: StepSession, context: InvocationContext) -> StepOutput:
        """Return what a step adds to the log: what its session has gathered."""
        output = StepOutput(events=tuple(step.logged), state=step.written_past_deltas(), ended=context.end_invocation)
        return await self._services.credentials.step(at.key, output, at.agent)

    async def logged(self, at: Place, step: StepSession) -> StepOutput:
        """Return what a step has logged, and no more of what it adds."""
        return await self._services.credentials.step(at.key, StepOutput(events=tuple(step.logged)), at.agent)

    async def state(self, at: Place, session: Snapshot) -> dict[str, Any]:
        """Return the state as an invocation's code sees it."""
        return await self._services.credentials.state(at.key, session.projection, at.invocation_id)

    async def begin(
        self,
        at: Place,
        session: Snapshot,
        agent: BaseAgent,
        key: str,
        *,
        streams: bool = False,
        shared: SharedState | None = None,
        sessions: type[_SessionT] = StepSession,
    ) -> tuple[_SessionT, InvocationContext]:
        """Return the session and the context that a step's code gets."""
        if shared is None:
            shared = SharedState.of(await self.state(at, session))
        step = sessions(at.key, session.projection, shared, self._events)
        message = session.projection.invocations[at.invocation_id].message
        key = ":".join((*at.scope, key))
        context = internals.new_context(
            self._runner(session),
            session=step.session,
            new_message=message.content.model_copy(deep=True) if message.content is not None else None,
            run_config=run_config(streams=streams),
            invocation_id=at.invocation_id,
        )
        context.session_service = step
        context.artifact_service = self._services.artifacts(key)
        context.branch = at.branch
        context.agent = callbacks.watched(agent)
        began = step.began = began_as_node(session, at)
        if began is not None and began.node is not None:
            node = step.node = self.agents(at, session).agent(began.agent)
            graph_internals.begin_step(step.session, context, began.node, node, after=began.after)
        return step, context

    async def show_credentials(self, at: Place, session: Snapshot, step: StepSession) -> None:
        """Show a graph's code the credentials that a person gave as its nodes read them: as the question, filled in.

        Raises:
            CredentialError: A secret is not to be had.
            ValueError: One is no credential.
        """
        asked = {call.id: call for call in credential_requests(session.projection.events)}
        for index, event in enumerate(step.session.events):
            if event.author != USER or not any(given.id in asked for given in event.get_function_responses()):
                continue
            # The log's own is shared among steps.
            shown = step.session.events[index] = event.model_copy(deep=True)
            for given in shown.get_function_responses():
                credential = parse_credential(given.response or {}) if given.id in asked else None
                if credential is not None:
                    config = await self._services.credentials.config(at.key, asked[given.id].args or {}, credential)
                    given.response = config.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def said(self, at: Place, step: StepSession, context: InvocationContext, event: AdkEvent) -> AdkEvent:
        """Return an event that an agent's code left, as it is logged.

        Raises:
            Exception: Of an agent that is a node of a graph: it is not what the agent's schema says.
        """
        began = step.began
        if began is not None and began.node is not None:
            taken = graph_internals.take_output(step.node, event, began.node)
            return graph_internals.as_logged(await self.seen(context, taken))
        return await self.seen(context, event)

    async def left(
        self, at: Place, agent: BaseAgent, step: StepSession, error: Exception, state: Mapping[str, Any] | None = None
    ) -> StepOutput:
        """Return what a step that failed leaves in the log, as ADK does; `state` is what it had written.

        Raises:
            CredentialError: There are secrets in the events, and no safe place for them.
        """
        events = list(step.logged)
        if self._registry.plan.adk is not None and self._registry.plan.adk.logs_failures:
            status = getattr(error, "status", None)
            code = status if isinstance(status, str) else type(error).__name__
            # The path tells a failure from a model's answer that is an error.
            failed: dict[str, Any] = {
                "author": agent.name,
                "error_code": code,
                "error_message": str(error)[:MAX_FAILURE_TEXT],
            }
            events.append(Event(**failed, node_info={"path": agent.name}))
        output = StepOutput(events=tuple(events), state=state or {})
        try:
            return await self._services.credentials.step(at.key, output, at.agent)
        except CredentialError:
            # The failure says more than that a secret has no safe place.
            return await self._services.credentials.step(at.key, replace(output, state={}), at.agent)

    async def seen(self, context: InvocationContext, event: AdkEvent) -> AdkEvent:
        """Return an event as plugins want it to be logged."""
        return await internals.seen_by_plugins(self._services.runner, context, event)
