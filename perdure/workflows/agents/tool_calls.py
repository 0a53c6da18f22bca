"""Runs the calls of one model answer, all at once, and logs what they respond."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from google.genai import types

from perdure.errors import EffectFailed, InvalidMessage
from perdure.journal.credentials import credential_requests, credential_targets, is_credential_request
from perdure.journal.entries import ToolOutput
from perdure.journal.events import REQUEST_CONFIRMATION, Event, EventActions, ToolConfirmation
from perdure.journal.questions import confirmation_targets, is_confirmation_request, parse_confirmation
from perdure.journal.runs import AgentRun, Standing
from perdure.messages.session import ToolInput
from perdure.plan.nodes import MODEL_OPTIONS, SET_MODEL_RESPONSE, LlmNode, ToolPlan
from perdure.rules.in_doubt import Doubt
from perdure.rules.model_answers import instant_output, refused_transfer
from perdure.rules.tool_responses import (
    REJECTED,
    asks_person,
    confirmation_request,
    credential_request,
    response_event,
    silent_calls,
)
from perdure.workflows.agents.agent_tools import run_agent_tool
from perdure.workflows.agents.at_most_once import ask, is_up_to_a_person, run_once
from perdure.workflows.agents.callbacks import authorize, shown_to_plugins
from perdure.workflows.agents.delegations import given_tasks, instant_finish, run_single_turn, run_task, with_result
from perdure.workflows.agents.large_responses import fit
from perdure.workflows.agents.node_tools import run_node_tool
from perdure.workflows.agents.scope import Scope
from perdure.workflows.agents.tool_failures import told_doubt, told_failure
from perdure.workflows.agents.tool_runs import run_tool, state_for

_BLOCKED = (
    "call {id!r} came with an imported log and nobody allowed it to run; import the log again with"
    " allow_pending_calls, or resume it from events that end with the call's response"
)


class ToolCalls:
    """The tool calls of one agent run."""

    def __init__(self, scope: Scope, node: LlmNode, run: AgentRun) -> None:
        self._scope = scope
        self._node = node
        self._agent_run = run
        self._authorized: set[str] = set()
        """Calls that run again, since a person has given the credential that they needed."""
        self.ends_agent = False
        """The agent's code, in a tool, ended its run."""
        self.ends_turn = False
        """What stands behind the responses is the agent's answer."""

    async def run(self, calling: Event, step: Standing) -> None:
        """Run every call that has not run yet, then log the response event, after what a person is asked for them.

        Raises:
            EffectFailed: A tool failed; what the others returned is kept, and none of them runs again.
        """
        calls = self._eager(calling)
        if not calls:
            return
        long_running = calling.long_running_tool_ids or frozenset[str]()
        outputs = await self._outputs(calls, {}, step)
        await fit(self._scope, self._agent_run, calls, outputs, long_running)
        request = None
        if not any(is_confirmation_request(event) for event in step.requests):
            ids = self._scope.log.call_ids("confirm", calls[0].id)
            request = confirmation_request(calls, outputs, ids, role=self._asking_role)
        response = response_event(calls, outputs, long_running)
        await self._ask_for_credentials(calls, response, step)
        first = response if request is not None and self.answers_first(response) else None
        if first is not None:
            actions = first.actions.model_copy(update={"skip_summarization": None})
            step.responses.append(await self._log(first.model_copy(update={"actions": actions})))
        if request is not None:
            step.requests.append(await self._log(request))
        for call in silent_calls(calls, outputs, long_running):
            # First: cut off behind the response event, these would seem not to have run, and take no answer.
            self._scope.keep(call.id or "", outputs[call.id or ""])
        if response is not None and first is None:
            step.responses.append(await self._log(with_result(response, outputs, self._agent_run)))
        await self._log_behind(outputs)

    def has_responded(self, calling: Event, step: Standing) -> bool:
        """Return whether what the calls respond is logged, apart from tasks, whose results stand by themselves."""
        tasks = {call.id for call in given_tasks(self._node, calling)}
        return any(one.id not in tasks for event in step.responses for one in event.get_function_responses())

    def _eager(self, calling: Event) -> list[types.FunctionCall]:
        tasks = given_tasks(self._node, calling)
        return [call for call in calling.get_function_calls() if call not in tasks]

    async def run_tasks(self, calling: Event, step: Standing) -> None:
        """Have sub-agents do the tasks that the calls give them, one after the other, and log what comes of each.

        Raises:
            EffectFailed: One failed.
        """
        told = {one.id for event in step.responses for one in event.get_function_responses()}
        for call in given_tasks(self._node, calling):
            if call.id not in told:
                result = await run_task(self._scope, self._agent_run, call)
                result = await shown_to_plugins(self._scope, self._agent_run, result)
                step.responses.append(await self._scope.log_event(result, self._agent_run))

    async def _ask_for_credentials(
        self, calls: Sequence[types.FunctionCall], response: Event | None, step: Standing
    ) -> None:
        if any(map(is_credential_request, step.requests)):
            # A log was cut off behind the question.
            return
        ids = self._scope.log.call_ids("credential", calls[0].id)
        adk = self._scope.plan.adk
        request = credential_request(response, ids, once_for_each=adk is not None and adk.major >= 2)
        if request is not None:
            step.requests.append(await self._log(request))

    @property
    def _asking_role(self) -> str:
        adk = self._scope.plan.adk
        return "model" if adk is not None and adk.major >= 2 else "user"

    def answers_first(self, response: Event | None) -> bool:
        """Return whether responses stand in front of the confirmations that other calls ask for, as in ADK 2."""
        if response is None or self._asking_role != "model":
            return False
        asked = response.actions.requested_tool_confirmations
        return any(one.id not in asked for one in response.get_function_responses())

    async def _log_behind(self, outputs: Mapping[str, ToolOutput]) -> None:
        """Log what google.adk's tools gave beside their responses."""
        for output in outputs.values():
            if output.state:
                self._scope.keep_state(output.state)
            self.ends_agent |= output.ends_agent
            for event in output.after:
                self.ends_turn = True
                await self._log(event, shown=True)

    async def ask_to_confirm(self, calling: Event, step: Standing) -> None:
        """Ask what the responses tell of, where the questions are missing: a log was cut there."""
        (told,) = step.responses
        await self._ask_for_credentials(calling.get_function_calls(), told, step)
        outputs = {id: ToolOutput() for id in (call.id or "" for call in calling.get_function_calls())}
        for call_id, asked in told.actions.requested_tool_confirmations.items():
            outputs[call_id] = ToolOutput(actions=EventActions(requested_tool_confirmations={call_id: asked}))
        calls = calling.get_function_calls()
        request = confirmation_request(calls, outputs, self._scope.log.call_ids("confirm", calls[0].id))
        if request is not None:
            step.requests.append(await self._log(request))

    def to_authorize(self, step: Standing) -> bool:
        """Return whether credentials were asked for whose calls have not run again yet."""
        wanted = {
            call_id for targets in credential_targets(step.requests, step.responses).values() for call_id in targets
        }
        return bool(wanted - _ran_again(step))

    async def run_authorized(self, calling: Event, step: Standing) -> None:
        """Have the credentials taken up that a person gave, run their calls again, and log one response event.

        What these ask for now is not asked, as in ADK: their model sees what they say.

        Raises:
            EffectFailed: ADK's code, or a tool, failed.
        """
        asked = [request.id or "" for request in credential_requests(step.requests)]
        given = [id for id in asked if self._answer(id) is not None]
        await authorize(self._scope, self._agent_run, given)
        targets = credential_targets(step.requests, self._told(calling, step))
        wanted = {call_id for request_id in given for call_id in targets[request_id]} - _ran_again(step)
        self._authorized |= wanted
        await self._run_again([call for call in calling.get_function_calls() if call.id in wanted], {}, step)

    def _told(self, calling: Event, step: Standing) -> list[Event]:
        """Return the responses that say what the calls need; of an earlier invocation, they are in the log only."""
        ids = {call.id for call in calling.get_function_calls()}
        return step.responses or [
            event
            for event in self._scope.projection.events
            if ids & event.actions.requested_auth_configs.keys() and event.author == calling.author
        ]

    def to_confirm(self, step: Standing) -> bool:
        """Return whether confirmations were asked for whose tools have not run yet."""
        targets = set(confirmation_targets(step.requests).values())
        return bool(targets - _ran_again(step))

    async def run_confirmed(self, calling: Event, step: Standing) -> None:
        """Run the calls that a person approved, and log one response event for those and the rejected ones.

        Raises:
            EffectFailed: A tool failed.
        """
        decisions: dict[str, ToolConfirmation] = {}
        for request_id, call_id in confirmation_targets(step.requests).items():
            answer = self._answer(request_id)
            if answer is not None:
                decisions[call_id] = self._decision(request_id, answer)
        await self._run_again([call for call in calling.get_function_calls() if call.id in decisions], decisions, step)

    async def _run_again(
        self, calls: Sequence[types.FunctionCall], decisions: Mapping[str, ToolConfirmation], step: Standing
    ) -> None:
        if not calls:
            return
        outputs = await self._outputs(calls, decisions, step)
        await fit(self._scope, self._agent_run, calls, outputs)
        response = response_event(calls, outputs, frozenset())
        if response is not None:
            step.responses.append(await self._log(response))
        await self._log_behind(outputs)

    def _answer(self, request_id: str) -> Mapping[str, Any] | None:
        """Return the answer that counts now: where nothing pauses, only what this turn's message answers."""
        if self._scope.plan.resumable:
            return self._scope.projection.answer_to(request_id)
        answers = self._scope.invocation.message.get_function_responses()
        return next((one.response or {} for one in answers if one.id == request_id), None)

    def _decision(self, request_id: str, answer: Mapping[str, Any]) -> ToolConfirmation:
        try:
            return parse_confirmation(answer)
        except InvalidMessage as error:
            # An answer that stood in an imported log has been taken as it was.
            cause = f"the imported answer to {request_id!r} says nothing: {error}"
            raise EffectFailed(self._node.name, REQUEST_CONFIRMATION, cause) from error

    async def _outputs(
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

        async def run(call: types.FunctionCall) -> ToolOutput | Doubt:
            with self._scope.progress.branch():
                return await self._output(call, decisions.get(call.id or ""), step)

        tasks = [asyncio.create_task(run(call)) for call in calls]
        with contextlib.suppress(asyncio.CancelledError):
            # A stop cancels what runs, yet what finishes all the same must not be lost.
            await asyncio.gather(*tasks, return_exceptions=True)
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
        self, call: types.FunctionCall, decision: ToolConfirmation | None, step: Standing
    ) -> ToolOutput | Doubt:
        kept = self._scope.invocation.kept.get(call.id or "")
        decided = decision is not None or call.id in self._authorized
        if kept is not None and not kept.awaits_callbacks and not (decided and asks_person(call, kept)):
            return kept
        if decision is not None and not decision.confirmed and self._scope.plan.adk is None:
            return REJECTED
        if call.id in self._scope.projection.blocked_calls and not self._is_asked_about(call, step):
            raise EffectFailed(self._node.name, call.name or "", _BLOCKED.format(id=call.id))
        if self._scope.plan.adk is not None:
            if step.calling is not None and (given := instant_finish(self._node, step.calling, call)) is not None:
                return given
            return await self._run(self._node.tool(call.name or "") or _unplanned(call), call, step, decision)
        output = instant_output(self._scope.plan, self._node, call, decided=decision is not None)
        if output is not None:
            return output
        tool = self._node.tool(call.name or "")
        assert tool is not None, "a call of an unknown tool has an output at once"
        return await self._run(tool, call, step, decision)

    def _is_asked_about(self, call: types.FunctionCall, step: Standing) -> bool:
        tool = self._node.tool(call.name or "")
        return tool is not None and tool.at_most_once and is_up_to_a_person(self._scope, call.id or "", step)

    async def _run(
        self, tool: ToolPlan, call: types.FunctionCall, step: Standing, decision: ToolConfirmation | None
    ) -> ToolOutput | Doubt:
        invocation_id, call_id = self._scope.invocation.id, call.id or ""
        adk = self._scope.plan.adk is not None
        reads = adk or bool(self._scope.calls) or tool.agent is not None or tool.name == SET_MODEL_RESPONSE
        state, length = (None, None) if reads else state_for(self._scope.projection, invocation_id, tool)
        request = ToolInput(
            agent=self._node.name,
            tool=tool.name,
            args=call.args or {},
            function_call_id=call_id,
            invocation_id=invocation_id,
            branch=self._agent_run.branch,
            confirmation=decision,
            authorized=call_id in self._authorized,
            state=state,
            length=length,
            key_salt=self._scope.projection.key_salt,
            known=len(self._scope.session.entries) if tool.at_most_once else None,
            run=self._scope.name_of(self._agent_run) if adk else "",
            scope=self._scope.calls,
            reads=reads,
        )
        kept = self._scope.invocation.kept.get(call_id)
        if tool.at_most_once and (kept is None or not kept.awaits_callbacks):
            output = await run_once(self._scope, tool, call, request, step)
            if isinstance(output, Doubt):
                return output
            if len(step.calling.get_function_calls() if step.calling else ()) > 1:
                # Others may still run: the run may be cut off before the response of all of them is logged.
                self._keep_final(call, output)
        else:
            try:
                output = await _run_plain(self._scope, tool, request, self._agent_run)
            except EffectFailed as failure:
                output = told_failure(self._scope, tool, call, failure, self._agent_run.branch)
        self._scope.progress.returned(call_id, partial(self._scope.keep, call_id, output))
        target = output.actions.transfer_to_agent
        if target is not None and target not in self._scope.plan.nodes and not adk:
            return refused_transfer(self._scope.plan, tool.name, output)
        return output

    async def _log(self, event: Event, *, shown: bool = False) -> Event:
        event = event.model_copy(update={"author": self._node.name, "branch": self._agent_run.branch})
        if not shown:
            event = await shown_to_plugins(self._scope, self._agent_run, event)
        for response in event.get_function_responses():
            self._scope.progress.logged(response.id or "")
        return await self._scope.log_event(event, self._agent_run)


async def _run_plain(scope: Scope, tool: ToolPlan, request: ToolInput, run: AgentRun) -> ToolOutput:
    if tool.runs_nodes:
        return await run_node_tool(scope, request, run)
    if tool.delegates == "single_turn":
        return await run_single_turn(scope, tool, request, run)
    return await (run_tool if tool.agent is None else run_agent_tool)(scope, tool, request)


def _failure(task: asyncio.Task[ToolOutput | Doubt]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _unplanned(call: types.FunctionCall) -> ToolPlan:
    """Return a plan for a tool that the plan does not name: a toolset may have it, or the step says that none has."""
    name = call.name or "unknown"
    return ToolPlan(name=name, declaration=types.FunctionDeclaration(name=name), options=MODEL_OPTIONS)


def _ran_again(step: Standing) -> set[str]:
    """Return the calls that ran again after an answer, by id."""
    return {response.id or "" for event in step.responses[1:] for response in event.get_function_responses()}
