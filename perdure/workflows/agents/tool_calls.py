"""Has the calls of one model answer run, and logs what they respond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from google.genai import types

from perdure.errors import EffectFailed
from perdure.journal.credential_questions import is_credential_request
from perdure.journal.entries import ToolOutput
from perdure.journal.events import Event, EventActions, ToolConfirmation
from perdure.journal.questions import is_confirmation_request
from perdure.journal.runs import AgentRun, Standing
from perdure.messages.stretches import FailedStep
from perdure.plan.nodes import LlmNode
from perdure.rules.llm_turns import Turn, answers_first
from perdure.rules.next_step import AskForThem, GiveTasks, Respond, RunAuthorized, RunCalls, RunConfirmed
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

    def __init__(
        self, scope: Scope, node: LlmNode, run: AgentRun, turn: Turn, failed: dict[str | None, FailedStep]
    ) -> None:
        self._scope = scope
        self._node = node
        self._agent_run = run
        self._turn = turn
        self._runs = CallRuns(scope, node, run, failed)

    async def respond(self, what: Respond, calling: Event, step: Standing) -> None:
        """Do what the calls of an answer bring about next.

        Raises:
            EffectFailed: ADK's code, a tool or a sub-agent failed.
        """
        match what:
            case RunCalls():
                await self._run(what.calls, calling, step)
            case AskForThem():
                await self._ask_for_them(calling, step)
            case GiveTasks():
                await self._run_tasks(what.calls, step)
            case RunAuthorized():
                # What these ask for now is not asked, as in ADK: their model sees what they say.
                await authorize(self._scope, self._agent_run, what.requests)
                self._runs.authorized |= {call.id or "" for call in what.calls}
                await self._run_again(what.calls, {}, step)
            case RunConfirmed():
                await self._run_again(what.calls, what.decisions, step)
            case _:
                assert_never(what)

    async def _run(self, calls: Sequence[types.FunctionCall], calling: Event, step: Standing) -> None:
        """Run calls, then log the response event, after what a person is asked for them.

        Raises:
            EffectFailed: A tool failed; what the others returned is kept, and none of them runs again.
        """
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
        first = response if request is not None and answers_first(self._scope.facts, response) else None
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

    async def _run_tasks(self, calls: Sequence[types.FunctionCall], step: Standing) -> None:
        """Have sub-agents do the tasks that calls give them, one after the other, and log what comes of each.

        Raises:
            EffectFailed: One failed.
        """
        for call in calls:
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
            self._turn.ends_agent |= output.ends_agent
            for event in output.after:
                self._turn.ends_turn = True
                await self._log(event, shown=True)

    async def _ask_for_them(self, calling: Event, step: Standing) -> None:
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

    async def _log(self, event: Event, *, shown: bool = False) -> Event:
        event = event.model_copy(update={"author": self._node.name, "branch": self._agent_run.branch})
        if not shown:
            event = await shown_to_plugins(self._scope, self._agent_run, event)
        for response in event.get_function_responses():
            self._scope.progress.logged(response.id or "")
        return await self._scope.log_event(event, self._agent_run)
