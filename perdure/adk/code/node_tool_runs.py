"""Runs a tool that runs nodes: its code by google.adk's, suspended as a graph is; the workflow runs the agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext

from perdure.adk import graph_internals
from perdure.adk.code.adk_code import AdkCode
from perdure.adk.code.graph_runs import GraphRun, RunSync
from perdure.adk.graphs import is_leaf
from perdure.adk.session_service import StepSession
from perdure.adk.step_contexts import StepContexts
from perdure.journal.events import USER, Event, ToolConfirmation
from perdure.journal.node_runs import ends_node, path_of
from perdure.journal.questions import confirmation_targets, is_confirmation_request, parse_confirmation
from perdure.journal.tool_output import ToolOutput
from perdure.plan.nodes import CustomNode
from perdure.steps.base import CodeFailed, Place, Snapshot, StepOutput, ToolCall, ToolFailed
from perdure.steps.code.past import Past

__all__ = ["begin_tool"]

_CallTool = Callable[[Place, ToolCall, StepSession, InvocationContext], Awaitable[ToolOutput]]
"""Calls a tool of an agent, with the callbacks around it, in a session and a context."""


async def begin_tool(
    at: Place,
    session: Snapshot,
    past: Past,
    node: CustomNode,
    contexts: StepContexts,
    run_sync: RunSync,
    call_tool: _CallTool,
) -> ToolNodesRun:
    """Return a run of a tool's code, which has not begun; its branch names the call."""
    tool = node.tool or ""
    branch, _, call_id = (at.branch or "").rpartition(f"{tool}@")
    above = at.run.rpartition("/")[0]
    owner = replace(at, agent=at.agent.removesuffix(f".{tool}"), run=above, branch=branch.rstrip(".") or None)
    calling = session.projection.event_of_call(call_id)
    calls = calling.get_function_calls() if calling is not None else []
    args = next((one.args for one in calls if one.id == call_id), None)
    decision = _decision_on(call_id, session.projection.events)
    call = ToolCall(
        id=call_id, tool=tool, args=args or {}, key=at.run, state={}, session=session, confirmation=decision
    )
    code = await ToolCode.begin(at, session, past, contexts, whole=True, of=owner)
    code.node = at.agent
    bare: Any = code.context
    bare.node_path = bare.node_path or "/".join(f"{name}@1" for name in past.plan.path(owner.agent))
    return ToolNodesRun(at, code, contexts, run_sync, partial(call_tool, owner, call))


def _decision_on(call_id: str, events: Sequence[Event]) -> ToolConfirmation | None:
    """Return what a person has decided of a call, if anything."""
    asked = {
        request
        for request, target in confirmation_targets(filter(is_confirmation_request, events)).items()
        if target == call_id
    }
    answers = [one for event in events if event.author == USER for one in event.get_function_responses()]
    given = [one.response or {} for one in answers if one.id in asked]
    return parse_confirmation(given[-1]) if given else None


class ToolCode(AdkCode):
    """A tool's code, in the context of its agent."""

    node: str
    """The node that it is in the plan."""

    def runs(self, agent: BaseAgent, context: InvocationContext) -> bool:
        """Return whether the workflow runs an agent that the code wants to run in a context."""
        return context.session is self.session.session and self._registry.runs_below(self.node, agent)

    async def output(self) -> StepOutput:
        """Return what its nodes have logged; what the tool writes into the state its response tells."""
        taken, self.session.held_bytes = len(self.session.logged), 0
        output = await self._contexts.logged(self._at, self.session)
        del self.session.logged[:taken]
        return output


class ToolNodesRun(GraphRun):
    """One run of a tool's code, from its top to its end, or to where all that is left of it waits for answers."""

    def __init__(
        self,
        at: Place,
        code: ToolCode,
        contexts: StepContexts,
        run_sync: RunSync,
        call_tool: Callable[[StepSession, InvocationContext], Awaitable[ToolOutput]],
    ) -> None:
        super().__init__(at, code, contexts, run_sync)
        self._call_tool = call_tool
        self._result: ToolOutput | None = None
        self._ended: dict[str, list[Event]] = {}
        """What tells that nodes have ended which the code itself has run, by path, in the order of their runs."""

    def _begin(self, past: Past) -> None:
        for event in past.run.own:
            if ends_node(event):
                self._ended.setdefault(path_of(event), []).append(event)
        for mark in past.places.marks:
            self._ended.setdefault(path_of(mark), []).append(mark)
        super()._begin(past)
        # Those of one path are told apart by their number.
        self._passed.clear()

    async def _events(self) -> AsyncGenerator[object, None]:
        code = self.code

        async def call() -> None:
            self._result = await self._call_tool(code.session, code.context)

        async with aclosing(graph_internals.run_code(call, code.context)) as events:
            async for event in events:
                yield event

    async def _run_node(self, node: Any, runner: Any, path: str, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a node; one that the code runs itself, and that has ended, gives it what it gave it."""
        ended = self._ended.get(path)
        if not is_leaf(node) or graph_internals.is_replayed(runner) or not ended:
            return await super()._run_node(node, runner, path, run)
        event = ended.pop(0)
        self._pass_over(path, event)
        return graph_internals.ended_with(runner, path, event.output, event.actions.route)

    def _pass_over(self, path: str, last: Event) -> None:
        known = self._known.get(path, [])
        ids = [event.id for event in known]
        if last.id in ids:
            del known[: ids.index(last.id) + 1]

    async def _check(self) -> None:
        error = self._error
        if isinstance(error, ToolFailed):
            raise CodeFailed(error.kind, str(error), error.left) from error
        await super()._check()

    async def _output(self) -> StepOutput:
        output = await super()._output()
        return output if self.suspended else replace(output, output=self._result)
