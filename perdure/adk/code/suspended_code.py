"""Keeps the code of an app's custom agents, and graphs, suspended between its steps."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

from perdure.adk.code.code_runs import Code, CodeRun, Past
from perdure.adk.code.code_sessions import CodeSession, PlayedLog
from perdure.adk.code.graph_runs import GraphRun, RunSync
from perdure.adk.graphs import is_graph
from perdure.adk.step_contexts import StepContexts
from perdure.journal.fold import fold_journal
from perdure.journal.projection import Projection
from perdure.steps.base import Place, Snapshot, StepOutput

_MOST_KEPT = 200
"""Agents whose code is kept suspended, in one process."""


class SuspendedCode:
    """Runs the custom agents, and the graphs, of one app."""

    def __init__(self, contexts: StepContexts, run_sync: RunSync) -> None:
        """Begin.

        Args:
            contexts: Make what their code works with.
            run_sync: Runs functions that are not async.
        """
        self._contexts = contexts
        self._run_sync = run_sync
        self._kept: OrderedDict[tuple[object, ...], CodeRun] = OrderedDict()

    async def run(self, at: Place, session: Snapshot) -> StepOutput:
        """Run an agent's code up to where it waits for sub-agents, or to its end.

        Raises:
            CodeFailed: It raised.
            StepRefused: Its place in the tree cannot be named.
        """
        past = Past.of(at, session)
        key = (at.key, at.scope, at.invocation_id, at.run)
        code = self._kept.pop(key, None)
        if code is not None and not code.fits(past):
            await code.close()
            code = None
        if code is None:
            code = await self._begin(at, session, past)
        try:
            output = await code.go_on(past)
        except BaseException:
            await code.close()
            raise
        if code.suspended:
            self._kept[key] = code
            while len(self._kept) > _MOST_KEPT:
                await self._kept.popitem(last=False)[1].close()
        return output

    async def close(self) -> None:
        """End all code that is kept."""
        while self._kept:
            await self._kept.popitem()[1].close()

    async def _begin(self, at: Place, session: Snapshot, past: Past) -> CodeRun:
        registry = self._contexts.agents(at, session)
        agent = registry.agent(at.agent)
        # ADK finds in a graph's session how far it has come.
        begin = past.length if is_graph(agent) else past.places.begin
        early = session.projection
        if begin < past.length:
            early = fold_journal(past.entries[:begin]).scope(at.scope)
        then = replace(session, projection=early)
        key = f"{at.invocation_id}:{at.run}:code"
        step, context = await self._contexts.begin(at, then, agent, key, sessions=CodeSession)
        if is_graph(agent):
            await self._contexts.show_credentials(at, session, step)
        if past.run.state is not None:
            context.agent_states[at.agent] = past.run.state

        async def state(projection: Projection) -> dict[str, Any]:
            return await self._contexts.state(at, replace(session, projection=projection))

        log = PlayedLog(at, step, begin, state)
        code = Code(agent, context, step, log, registry)
        if is_graph(agent):
            return GraphRun(at, code, self._contexts, self._run_sync)
        return CodeRun(at, code, self._contexts)
