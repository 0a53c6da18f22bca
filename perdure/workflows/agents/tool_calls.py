"""Has the calls of one model answer run, and logs what they respond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from google.genai import types

from perdure.errors import EffectFailed, InvalidMessage
from perdure.journal.credentials import credential_requests, credential_targets, is_credential_request
from perdure.journal.entries import ToolOutput
from perdure.journal.events import REQUEST_CONFIRMATION, Event, EventActions, ToolConfirmation
from perdure.journal.questions import confirmation_targets, is_confirmation_request, parse_confirmation
from perdure.journal.runs import AgentRun, Standing
from perdure.plan.nodes import LlmNode
from perdure.rules.next_call import given_tasks
from perdure.rules.tool_responses import (
    confirmation_request,
    credential_request,
    is_plain,
    response_event,
    silent_calls,
    with_latest_writes,
)
from perdure.workflows.agents.call_runs import CallRuns
from perdure.workflows.agents.callbacks import authorize, shown_to_plugins
from perdure.workflows.agents.delegations import run_task, with_result
from perdure.workflows.agents.large_responses import fit
from perdure.workflows.agents.scope import Scope


class ToolCalls:
    """The tool calls of one agent run."""

    def __init__(self, scope: Scope, node: LlmNode, run: AgentRun) -> None:
        self._scope = scope
        self._node = node
        self._agent_run = run
        self._runs = CallRuns(scope, node, run)
        self.ends_agent = False
        """The agent's code, in a tool, ended its run."""
        self.ends_turn = False
        """What stands behind the responses is the agent's answer."""

    async def run(self, calling: Event, step: Standing) -> None:
        """Run every call that has not run yet, then log the response event, after what a person is asked for them.

        Raises:
            EffectFailed: A tool failed; what the others returned is kept, and none of them runs again.
        """
        calls = self._left(calling, step)
        if not calls:
            return
        long_running = calling.long_running_tool_ids or frozenset[str]()
        try:
            outputs = await self._runs.outputs(calls, {}, step)
        except EffectFailed:
            await self._log_finished(calls, step)
            raise
        await fit(self._scope, self._agent_run, calls, outputs, long_running)
        request = None
        if not any(is_confirmation_request(event) for event in step.requests):
            ids = self._scope.log.call_ids("confirm", calls[0].id)
            request = confirmation_request(calls, outputs, ids, role=self._asking_role)
        response = self._merged(calls, outputs, long_running)
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

    def _merged(
        self, calls: Sequence[types.FunctionCall], outputs: Mapping[str, ToolOutput], long_running: frozenset[str]
    ) -> Event | None:
        response, adk = response_event(calls, outputs, long_running), self._scope.plan.adk
        if response is None or adk is None or adk.major < 2:
            return response
        return with_latest_writes(response, [outputs[id] for id in self._runs.returned if id in outputs])

    def has_responded(self, calling: Event, step: Standing) -> bool:
        """Return whether what the calls respond is logged, apart from tasks, whose results stand by themselves."""
        eager, left = self._eager(calling), self._left(calling, step)
        long_running = calling.long_running_tool_ids or frozenset[str]()
        return len(left) < len(eager) and all(call.id in long_running for call in left)

    def _left(self, calling: Event, step: Standing) -> list[types.FunctionCall]:
        """Return the calls without a response."""
        told = {one.id for event in step.responses for one in event.get_function_responses()}
        return [call for call in self._eager(calling) if call.id not in told]

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

    async def _log_finished(self, calls: Sequence[types.FunctionCall], step: Standing) -> None:
        """Log what calls responded that had ended when another one failed, where google.adk does."""
        adk, kept = self._scope.plan.adk, self._scope.invocation.kept
        finished = [call for call in calls if call.id in self._runs.finished and call.id in kept]
        outputs = {call.id or "": kept[call.id or ""] for call in finished}
        plain = [call for call in finished if is_plain(outputs[call.id or ""])]
        if adk is not None and adk.keeps_finished and plain:
            await fit(self._scope, self._agent_run, plain, outputs)
            response = self._merged(plain, outputs, frozenset())
            assert response is not None, "each responded"
            step.responses.append(await self._log(response))

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
        self._runs.authorized |= wanted
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
        outputs = await self._runs.outputs(calls, decisions, step)
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

    async def _log(self, event: Event, *, shown: bool = False) -> Event:
        event = event.model_copy(update={"author": self._node.name, "branch": self._agent_run.branch})
        if not shown:
            event = await shown_to_plugins(self._scope, self._agent_run, event)
        for response in event.get_function_responses():
            self._scope.progress.logged(response.id or "")
        return await self._scope.log_event(event, self._agent_run)


def _ran_again(step: Standing) -> set[str]:
    """Return the calls that ran again after an answer, by id."""
    told = Counter(one.id or "" for event in step.responses for one in event.get_function_responses())
    return {call_id for call_id, times in told.items() if times > 1}
