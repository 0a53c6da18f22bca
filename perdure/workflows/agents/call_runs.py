"""Runs the calls of one model answer, each by its own kind, and keeps what they return."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import assert_never

from google.genai import types

from perdure.errors import EffectFailed
from perdure.journal.entries import ToolOutput
from perdure.journal.events import ToolConfirmation
from perdure.journal.runs import AgentRun, Standing
from perdure.messages.session import ToolInput
from perdure.messages.stretches import FailedStep
from perdure.plan.nodes import SET_MODEL_RESPONSE, LlmNode, ToolPlan
from perdure.rules.in_doubt import Doubt
from perdure.rules.model_answers import refused_transfer
from perdure.rules.next_call import (
    AsksApproval,
    AwaitsVerdict,
    BuiltIn,
    Fails,
    InDoubt,
    Kept,
    Rejected,
    Runs,
    TakenAsSaid,
    next_of_call,
)
from perdure.rules.tool_responses import asks_person
from perdure.workflows.agents.agent_tools import run_agent_tool
from perdure.workflows.agents.at_most_once import ask, run_once
from perdure.workflows.agents.call_order import CallOrder
from perdure.workflows.agents.delegations import run_single_turn
from perdure.workflows.agents.node_tools import run_node_tool
from perdure.workflows.agents.scope import Scope
from perdure.workflows.agents.tool_failures import told_doubt, told_failure
from perdure.workflows.agents.tool_runs import run_tool, state_for


class CallRuns:
    """The runs of one agent run's calls."""

    def __init__(self, scope: Scope, node: LlmNode, run: AgentRun, failed: dict[str | None, FailedStep]) -> None:
        """Run them; `failed` are those that failed in the activity of the model, by their calls."""
        self._scope = scope
        self._failed = failed
        self._node = node
        self._agent_run = run
        self.authorized: set[str] = set()
        """Calls that run again, since a person has given the credential that they needed."""
        self.finished: set[str] = set()
        """Calls that had come to their end when another one failed."""
        self.returned: list[str] = []
        """Calls in the order in which they returned."""

    async def outputs(
        self, calls: Sequence[types.FunctionCall], decisions: Mapping[str, ToolConfirmation], step: Standing
    ) -> dict[str, ToolOutput]:
        """Return what each call returned, once somebody has said what became of those that are in doubt."""
        outputs: dict[str, ToolOutput] = {}
        while True:
            left = [call for call in calls if call.id not in outputs]
            found = await self._run_all(left, decisions, step)
            outputs |= {call_id: output for call_id, output in found.items() if isinstance(output, ToolOutput)}
            doubts = [output for output in found.values() if isinstance(output, Doubt)]
            for doubt in list(doubts):
                output = told_doubt(self._scope, self._node.tool(doubt.call.name or ""), doubt)
                if output is not None:
                    doubts.remove(doubt)
                    outputs[doubt.call.id or ""] = output
            if not doubts:
                return outputs
            for call in calls:
                if call.id in outputs:
                    self._keep_final(call, outputs[call.id])
            await ask(self._scope, self._agent_run, doubts, step)

    async def _run_all(
        self, calls: Sequence[types.FunctionCall], decisions: Mapping[str, ToolConfirmation], step: Standing
    ) -> dict[str, ToolOutput | Doubt]:
        self._scope.progress.check_stopped()
        order = CallOrder(self._scope, self._node, calls)

        async def run(call: types.FunctionCall) -> ToolOutput | Doubt:
            try:
                await order.turn(call)
                self._scope.progress.check_stopped()
                with self._scope.progress.branch():
                    output = await self._output(call, decisions.get(call.id or ""), step, order)
                if isinstance(output, ToolOutput):
                    order.end(call, output)
            except EffectFailed as failed:
                order.fail(failed)
                raise
            finally:
                order.over(call)
            return output

        tasks = [asyncio.create_task(run(call)) for call in calls]
        with contextlib.suppress(asyncio.CancelledError):
            # A stop cancels what runs, yet what finishes all the same must not be lost.
            await asyncio.gather(*tasks, return_exceptions=True)
        self.finished |= order.finished
        self.returned += order.returned
        failures = [failure for task in tasks if (failure := _failure(task)) is not None]
        # From here on the agent above is told, which may deal with it.
        self._scope.progress.told(failures)
        outputs = {
            call.id or "": task.result() for call, task in zip(calls, tasks, strict=True) if _failure(task) is None
        }
        if failures or self._scope.progress.stopping:
            for call in calls:
                output = outputs.get(call.id or "")
                if isinstance(output, ToolOutput) and not output.needs_confirmation:
                    self._scope.keep(call.id or "", output)
        if failures:
            # An error of the tool says more than the cancellation of its siblings.
            raise next((failure for failure in failures if isinstance(failure, EffectFailed)), failures[0])
        self._scope.progress.check_stopped()
        return outputs

    def _keep_final(self, call: types.FunctionCall, output: ToolOutput) -> None:
        # One that asks for a confirmation, or a credential, runs again with that.
        if not asks_person(call, output):
            self._scope.keep(call.id or "", output)

    async def _output(
        self, call: types.FunctionCall, decision: ToolConfirmation | None, step: Standing, order: CallOrder
    ) -> ToolOutput | Doubt:
        authorized = call.id in self.authorized
        what = next_of_call(self._scope.facts, self._node, step, call, decision, authorized=authorized)
        match what:
            case Kept() | BuiltIn() | AsksApproval() | Rejected():
                return what.output
            case AwaitsVerdict():
                return Doubt(call, request_id=what.request_id)
            case TakenAsSaid():
                return self._returned(call, what.output, step, once=True)
            case Fails():
                raise EffectFailed(self._node.name, call.name or "", what.cause)
            case Runs() | InDoubt():
                return await self._run(what, call, step, self._request(what.tool, call, decision), order)
            case _:
                assert_never(what)

    def _request(self, tool: ToolPlan, call: types.FunctionCall, decision: ToolConfirmation | None) -> ToolInput:
        invocation_id, call_id = self._scope.invocation.id, call.id or ""
        adk = self._scope.plan.adk is not None
        reads = adk or bool(self._scope.calls) or tool.agent is not None or tool.name == SET_MODEL_RESPONSE
        state, length = (None, None) if reads else state_for(self._scope.projection, invocation_id, tool)
        return ToolInput(
            agent=self._node.name,
            tool=tool.name,
            args=call.args or {},
            function_call_id=call_id,
            invocation_id=invocation_id,
            branch=self._agent_run.branch,
            confirmation=decision,
            authorized=call_id in self.authorized,
            state=state,
            length=length,
            key_salt=self._scope.projection.key_salt,
            known=len(self._scope.session.entries) if tool.at_most_once else None,
            run=self._agent_run.path if adk else "",
            scope=self._scope.calls,
            reads=reads,
        )

    async def _run(
        self, what: Runs | InDoubt, call: types.FunctionCall, step: Standing, request: ToolInput, order: CallOrder
    ) -> ToolOutput | Doubt:
        tool = what.tool
        if tool.agent is None and tool.delegates is None:
            order.begun(call)
        once = tool.at_most_once and not (isinstance(what, Runs) and what.returned)
        if once:
            output = await run_once(self._scope, what, call, request)
            if isinstance(output, Doubt):
                return output
        else:
            try:
                output = await self._run_plain(tool, call, request, order)
            except EffectFailed as failure:
                output = told_failure(self._scope, tool, call, failure, self._agent_run.branch)
        self._returned(call, output, step, once=once)
        target = output.actions.transfer_to_agent
        if target is not None and target not in self._scope.plan.nodes and self._scope.plan.adk is None:
            return refused_transfer(self._scope.plan, tool.name, output)
        return output

    def _returned(self, call: types.FunctionCall, output: ToolOutput, step: Standing, *, once: bool) -> ToolOutput:
        if once and len(step.calling.get_function_calls() if step.calling else ()) > 1:
            # Others may still run: the run may be cut off before the response of all of them is logged.
            self._keep_final(call, output)
        call_id = call.id or ""
        self._scope.progress.returned(call_id, partial(self._scope.keep, call_id, output))
        return output

    async def _run_plain(
        self, tool: ToolPlan, call: types.FunctionCall, request: ToolInput, order: CallOrder
    ) -> ToolOutput:
        if tool.runs_nodes:
            return await run_node_tool(self._scope, request, self._agent_run)
        if tool.agent is None and tool.delegates is None:
            return await run_tool(self._scope, tool, request, self._failed.pop(call.id, None))
        if order.failed:
            # As in ADK it is given up before it asks its agent.
            raise asyncio.CancelledError
        begun = partial(order.begun, call)
        if tool.delegates is None:
            return await run_agent_tool(self._scope, tool, request, begun)
        return await run_single_turn(self._scope, tool, request, self._agent_run, begun)


def _failure(task: asyncio.Task[ToolOutput | Doubt]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
