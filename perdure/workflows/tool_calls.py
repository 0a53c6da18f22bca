"""Runs the calls of one model answer, all at once, and logs what they respond."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from google.genai import types

from perdure.events import Event, EventActions, ToolConfirmation
from perdure.journal import ToolOutput
from perdure.messages import ToolInput
from perdure.plan import LlmNode, ToolPlan
from perdure.responses import (
    REJECTED,
    confirmation_request,
    confirmation_targets,
    error_output,
    parse_confirmation,
    response_event,
)
from perdure.runs import Step
from perdure.workflows.effects import EffectFailed
from perdure.workflows.log import new_function_call_id
from perdure.workflows.scope import Scope

_INLINE_STATE_BYTES = 4096
"""Up to this size a tool's input carries the session's state; beyond, only the length of the journal."""


class ToolCalls:
    """The tools of one LLM agent in one run."""

    def __init__(self, scope: Scope, node: LlmNode, branch: str | None) -> None:
        self._scope = scope
        self._node = node
        self._branch = branch

    async def run(self, calling: Event, step: Step) -> None:
        """Run every call that has not run yet, then log the response event, after what it asks to be confirmed.

        Raises:
            EffectFailed: A tool failed; what the others returned is kept, and none of them runs again.
        """
        calls = calling.get_function_calls()
        long_running = calling.long_running_tool_ids or frozenset[str]()
        outputs = await self._outputs(calls, {})
        if not step.requests:
            request = confirmation_request(calls, outputs, _fresh_ids())
            if request is not None:
                step.requests.append(await self._log(request))
        response = response_event(calls, outputs, long_running)
        if response is not None:
            step.responses.append(await self._log(response))
        answered = {response.id for event in step.responses for response in event.get_function_responses()}
        for call in calls:
            if call.id in long_running and call.id not in answered:
                self._scope.keep(call.id or "", outputs[call.id or ""])

    def to_confirm(self, step: Step) -> bool:
        """Return whether confirmations were asked for whose tools have not run yet."""
        targets = set(confirmation_targets(step.requests).values())
        done = {r.id for event in step.responses[1:] for r in event.get_function_responses()}
        return bool(targets - done)

    async def run_confirmed(self, calling: Event, step: Step) -> None:
        """Run the calls that a person approved, and log one response event for those and the rejected ones.

        Raises:
            EffectFailed: A tool failed.
        """
        decisions: dict[str, ToolConfirmation] = {}
        for request_id, call_id in confirmation_targets(step.requests).items():
            answer = self._scope.projection.answer_to(request_id)
            if answer is not None:
                decisions[call_id] = parse_confirmation(answer)
        calls = [call for call in calling.get_function_calls() if call.id in decisions]
        response = response_event(calls, await self._outputs(calls, decisions), frozenset())
        if response is not None:
            step.responses.append(await self._log(response))

    async def _outputs(
        self, calls: list[types.FunctionCall], decisions: Mapping[str, ToolConfirmation]
    ) -> dict[str, ToolOutput]:
        self._scope.check_stopped()
        tasks = [asyncio.create_task(self._output(call, decisions.get(call.id or ""))) for call in calls]
        with contextlib.suppress(asyncio.CancelledError):
            # A stop cancels what runs, yet what finishes all the same must not be lost.
            await asyncio.gather(*tasks, return_exceptions=True)
        failures = [failure for task in tasks if (failure := _failure(task)) is not None]
        outputs = {
            call.id or "": task.result() for call, task in zip(calls, tasks, strict=True) if _failure(task) is None
        }
        if failures or self._scope.stopping:
            for call in calls:
                if call.id in outputs and not outputs[call.id].needs_confirmation:
                    self._scope.keep(call.id, outputs[call.id])
        if failures:
            # An error of the tool says more than the cancellation of its siblings.
            raise next((failure for failure in failures if isinstance(failure, EffectFailed)), failures[0])
        self._scope.check_stopped()
        return outputs

    async def _output(self, call: types.FunctionCall, decision: ToolConfirmation | None) -> ToolOutput:
        kept = self._scope.invocation.kept.get(call.id or "")
        if kept is not None and not (kept.needs_confirmation and decision is not None):
            return kept
        if decision is not None and not decision.confirmed:
            return REJECTED
        tool = self._node.tool(call.name or "")
        kind = tool.kind if tool is not None else "transfer" if call.name == "transfer_to_agent" else "unknown"
        match kind:
            case "transfer":
                return self._transfer(call.args or {})
            case "exit_loop":
                return ToolOutput(actions=EventActions(escalate=True, skip_summarization=True))
            case _ if tool is None:
                names = ", ".join(tool.name for tool in self._node.tools) or "none"
                return error_output(f"There is no tool {call.name!r}. The tools are: {names}.")
            case _:
                return await self._run(tool, call, decision)

    async def _run(self, tool: ToolPlan, call: types.FunctionCall, decision: ToolConfirmation | None) -> ToolOutput:
        if tool.confirmation == "always" and decision is None and _is_complete(tool, call):
            return ToolOutput(needs_confirmation=True)
        invocation_id, call_id = self._scope.invocation.id, call.id or ""
        state, length = self._state(tool)
        request = ToolInput(
            agent=self._node.name,
            tool=tool.name,
            args=call.args or {},
            function_call_id=call_id,
            invocation_id=invocation_id,
            branch=self._branch,
            idempotency_key=f"{invocation_id}/{call_id}",
            confirmation=decision,
            state=state,
            length=length,
        )
        output = await self._scope.effects.tool(request, tool.options)
        self._scope.unlogged[call_id] = output
        target = output.actions.transfer_to_agent
        if target is not None and target not in self._scope.plan.nodes:
            return error_output(f"Tool {tool.name!r} hands over to {target!r}, but there is no such agent.")
        return output

    def _state(self, tool: ToolPlan) -> tuple[dict[str, Any] | None, int | None]:
        if not tool.needs_context:
            return None, None
        state = self._scope.projection.visible_state(self._scope.invocation.id)
        # A repr is no JSON, but it is as long, and takes any value.
        if len(repr(state)) <= _INLINE_STATE_BYTES:
            return state, None
        return None, len(self._scope.projection.entries)

    def _transfer(self, args: dict[str, Any]) -> ToolOutput:
        plan, target = self._scope.plan, args.get("agent_name")
        if not isinstance(target, str) or target not in plan.nodes or self._is_closed_peer(target):
            names = ", ".join(node.name for node in plan.transfer_targets(self._node)) or "none"
            return error_output(f"There is no agent {target!r} to transfer to. The agents are: {names}.")
        return ToolOutput(actions=EventActions(transfer_to_agent=target))

    def _is_closed_peer(self, target: str) -> bool:
        """Return whether an agent stands beside this one, which may not transfer to those. ADK checks no more."""
        if not self._node.disallow_transfer_to_peers or target == self._node.name:
            return False
        parent = self._scope.plan.parents.get(self._node.name)
        return parent is not None and self._scope.plan.parents.get(target) is parent

    async def _log(self, event: Event) -> Event:
        for response in event.get_function_responses():
            self._scope.unlogged.pop(response.id or "", None)
        return await self._scope.log_event(event.model_copy(update={"author": self._node.name, "branch": self._branch}))


def _failure(task: asyncio.Task[ToolOutput]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _is_complete(tool: ToolPlan, call: types.FunctionCall) -> bool:
    """Return whether a call has all that its tool needs; nobody is asked to approve one that cannot run."""
    declaration = tool.declaration
    schema: Any = declaration.parameters_json_schema or {}
    required = (declaration.parameters.required if declaration.parameters else schema.get("required")) or []
    return all(name in (call.args or {}) for name in required)


def _fresh_ids() -> Iterator[str]:
    while True:
        yield new_function_call_id()
