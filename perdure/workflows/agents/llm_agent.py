"""Runs an LLM agent: model, tools, answers, transfer, until its turn ends (SEMANTICS.md)."""

from __future__ import annotations

from perdure.errors import EffectFailed
from perdure.journal.credentials import asking_call, credential_requests, is_credential_request
from perdure.journal.entries import ModelCalled, RunBegan
from perdure.journal.events import USER, Event
from perdure.journal.no_answers import Judgment, failure_of, judge
from perdure.journal.questions import confirmation_targets, is_confirmation_request
from perdure.journal.runs import AgentRun, Standing, last_step
from perdure.journal.tasks import ends_task
from perdure.messages.session import ModelInput, ModelOutput
from perdure.messages.step_log import StepLog
from perdure.plan.nodes import TRANSFER, LlmNode
from perdure.rules.model_answers import model_event, structured_answer, taken_ids
from perdure.rules.next_call import given_tasks
from perdure.workflows.agents.callbacks import after_agent, authorize
from perdure.workflows.agents.delegations import begin_anew, has_spoken, listen, take_place
from perdure.workflows.agents.scope import Scope
from perdure.workflows.agents.tool_calls import ToolCalls

_MAX_HAND_OVERS = 50
"""Each one nests a few frames, and Python's stack is finite."""


async def run_llm_agent(scope: Scope, node: LlmNode, run: AgentRun) -> bool:
    """Run an LLM agent to its end; returns whether an event of it, or underneath it, escalated."""
    return await _LlmRun(scope, node, run).run()


class _LlmRun:
    def __init__(self, scope: Scope, node: LlmNode, run: AgentRun) -> None:
        self._scope = scope
        self._node = node
        self._run = run
        self._tools = ToolCalls(scope, node, run)
        self._escalated = run.escalated
        self._adk = scope.plan.adk
        self._first = run.own[0].id if run.own else None
        self._answered = True
        """The last model step ended the agent's turn."""
        self._cut_short = False
        """The agent's code ended its run, so that no callback runs after it."""
        self._elsewhere: str | None = None
        """The event, by id, with the call that this invocation's message confirms, of an earlier turn."""
        take_place(scope, node, run)
        self._step = last_step(run.own, scope.projection.events) if run.own else self._answered_elsewhere()
        self._replied = False
        """The user has said something since the agent's last turn, which does a task."""
        if node.mode == "task" and (self._step.ended or not run.own):
            self._step = Standing(ended=has_spoken(scope, run))
            self._replied = bool(run.own) and not self._step.ended
        self._long_running = [id for event in run.own for id in sorted(event.long_running_tool_ids or ())]
        if self._adk and (self._step.refused is not None or (self._step.ended and self._answered_since())):
            self._step = Standing(ended=self._step.refused is not None)
        if node.include_contents == "none" and run.begun_after is None:
            self._take_note_of_begin()

    def _answered_since(self) -> bool:
        """Return whether a long-running call was answered after all that the agent has said."""
        events, said = self._scope.projection.events, self._run.own[-1].id
        for event in reversed(events):
            if event.id == said:
                return False
            answered = {response.id for response in event.get_function_responses()}
            if event.author == USER and answered & set(self._long_running):
                return True
        return False

    def _take_note_of_begin(self) -> None:
        """Remember after which event the agent run began: of one that is entered again, by what it logged first."""
        scope, run = self._scope, self._run
        events = scope.projection.events
        first = run.own[0].id if run.own else None
        begun = next((index for index in range(len(events) - 1, -1, -1) if events[index].id == first), len(events))
        run.begun_after = events[begun - 1].id if begun else None
        if not run.own and run.begun_after is not None and scope.name_of(run):
            after, path = run.begun_after, scope.name_of(run)
            began = RunBegan(
                invocation_id=scope.invocation.id, agent=run.agent, branch=run.branch, after=after, run=path
            )
            scope.log.append(began)

    def _answered_elsewhere(self) -> Standing:
        """In an app that is not resumable the answer to a question starts an invocation: the tool runs in it."""
        projection = self._scope.projection
        for response in self._scope.invocation.message.get_function_responses():
            request = projection.event_of_call(response.id or "")
            if request is None or request.author != self._node.name:
                continue
            if is_confirmation_request(request):
                target = confirmation_targets([request])[response.id or ""]
                return self._asking(target, request)
            if is_credential_request(request):
                asked = next(call for call in credential_requests([request]) if call.id == response.id)
                return self._asking(asking_call(asked), request)
        return Standing()

    def _asking(self, call_id: str, request: Event) -> Standing:
        calling = self._scope.projection.event_of_call(call_id)
        self._elsewhere = calling.id if calling is not None else None
        return Standing(calling=calling, requests=[request])

    async def run(self) -> bool:
        refused = self._step.refused
        if refused is not None and refused.id in self._scope.invocation.refused:
            # Entered again before the failure was settled.
            raise EffectFailed(self._node.name, "model", failure_of(refused))
        if self._replied:
            await self._begin_anew()
        while True:
            await self._finish_turn()
            left = self._left_open()
            if left:
                # ADK 2: the model has seen the first values, and goes on with the answers.
                await self._scope.wait_for(left)
            elif self._node.mode != "task" or self._cut_short:
                break
            else:
                await listen(self._scope, self._node, self._run)
                await self._begin_anew()
                continue
            self._step = Standing()
        if not self._cut_short:
            await after_agent(self._scope, self._node, self._run)
        # As in ADK, of a task's agent readers see the ends of its turns only.
        self._scope.end(self._node, self._run, hidden=True if self._node.mode == "task" else None)
        return self._escalated

    async def _finish_turn(self) -> None:
        try:
            while not self._step.ended:
                await self._advance()
        except EffectFailed as failed:
            left, failed.left = failed.left, None
            if isinstance(left, StepLog) and failed.agent == self._node.name:
                await self._scope.log_step(left, self._run)
            raise

    async def _begin_anew(self) -> None:
        """Begin at the top, as google.adk does once a task is done, and when the user has said something for one."""
        ended = not await begin_anew(self._scope, self._node, self._run)
        self._step, self._first, self._cut_short = Standing(ended=ended), None, self._cut_short or ended
        # Where a callback answers, its end is logged with that.
        self._run.end_logged |= ended

    def _left_open(self) -> list[str]:
        """Return the long-running calls of this run that the user has still to answer."""
        if not (self._adk and self._adk.major >= 2 and self._scope.plan.resumable):
            return []
        projection = self._scope.projection
        return [id for id in self._long_running if projection.calls[id].answer != "logged"]

    async def _advance(self) -> None:
        """Make one model call and do all that follows from it."""
        step = self._step
        if step.calling is None and not step.responses:
            await (self._sign_in(step) if step.requests else self._ask_model(step))
            return
        if step.calling is not None:
            await self._respond(step, step.calling)
        answer = structured_answer(self._node, self._run.branch, step.responses[-1]) if step.responses else None
        if answer is not None:
            await self._scope.log_answer(answer, self._run)
        if answer is not None or self._tools.ends_agent or self._tools.ends_turn:
            step.ended = True
            self._cut_short |= self._tools.ends_agent
            return
        if step.calling is not None and given_tasks(self._node, step.calling):
            await self._begin_anew()
            return
        hands_over = await _hands_over_behind(self._scope, step)
        if not hands_over and (step.calling is None or self._goes_back_to_model(step, step.calling)):
            self._step = Standing()
            return
        if not step.responses:
            # Only where nothing pauses: a long-running tool that returned nothing ends the turn.
            step.ended = True
            return
        actions = step.responses[-1].actions
        if actions.transfer_to_agent is not None:
            await self._hand_over(actions.transfer_to_agent)
        if self._adk and self._adk.major >= 2 and any(map(is_credential_request, step.requests)):
            self._scope.interrupted = True
        self._cut_short |= self._scope.interrupted
        # Where nothing pauses, a question is the last word if it stands behind the responses.
        asks_last = any(map(is_confirmation_request, step.requests)) and self._tools.answers_first(step.responses[-1])
        ends = actions.transfer_to_agent or actions.skip_summarization or self._cut_short
        self._step = Standing(ended=bool(ends or asks_last))

    async def _ask_model(self, step: Standing) -> None:
        step.calling = await (self._call_adk_model() if self._adk else self._call_model())
        step.ended = step.calling is None and self._answered and not step.requests

    async def _sign_in(self, step: Standing) -> None:
        """Wait for the credentials that toolsets need before the model is asked; end the turn where nothing pauses."""
        ids = [request.id or "" for request in credential_requests(step.requests)]
        if self._scope.plan.resumable:
            await self._scope.wait_for(ids)
        given = [id for id in ids if self._scope.projection.answer_to(id) is not None]
        if given:
            await authorize(self._scope, self._run, given)
        else:
            self._cut_short = self._scope.interrupted = True
        self._step = Standing(ended=not given)

    def _goes_back_to_model(self, step: Standing, calling: Event) -> bool:
        """Return whether the user answered: then the model goes on, whatever the tools' own responses ask for."""
        if self._scope.plan.resumable:
            return bool(calling.long_running_tool_ids or step.requests)
        return self._asked_elsewhere(calling)

    def _asked_elsewhere(self, calling: Event) -> bool:
        """Return whether an earlier invocation asked what this one's message confirms: nothing pauses in this app."""
        return not self._scope.plan.resumable and calling.id == self._elsewhere

    async def _respond(self, step: Standing, calling: Event) -> None:
        """Run the tools, wait for the answers, and run what they confirmed."""
        asked_elsewhere = self._asked_elsewhere(calling)
        if not asked_elsewhere and not self._tools.has_responded(calling, step):
            await self._tools.run(calling, step)
        elif len(step.responses) == 1 and not step.requests:
            await self._tools.ask_to_confirm(calling, step)
        await self._tools.run_tasks(calling, step)
        if self._scope.plan.resumable:
            await self._scope.wait_for([*self._awaited(step, calling), *self._questions(step)])
        if self._tools.to_authorize(step) and (self._scope.plan.resumable or asked_elsewhere):
            await self._tools.run_authorized(calling, step)
        if self._tools.to_confirm(step) and (self._scope.plan.resumable or asked_elsewhere):
            await self._tools.run_confirmed(calling, step)
        # Whatever its result; it may have been logged before the agent was entered again.
        self._tools.ends_agent |= any(map(ends_task, step.responses))
        self._escalated |= any(event.actions.escalate for event in step.responses)

    def _awaited(self, step: Standing, calling: Event) -> list[str]:
        """Return the long-running calls without whose answers the model does not go on."""
        waiting = sorted(calling.long_running_tool_ids or ())
        if not self._adk or self._adk.major < 2:
            return waiting
        told = {response.id for event in step.responses for response in event.get_function_responses()}
        return [id for id in waiting if id not in told]

    def _questions(self, step: Standing) -> list[str]:
        asked = [request.id or "" for request in credential_requests(step.requests)]
        return [*confirmation_targets(step.requests), *asked]

    async def _hand_over(self, target: str) -> None:
        node = self._scope.plan.nodes.get(target)
        if node is None:
            # Of google.adk's tools alone: a tool of Perdure's is told so.
            raise EffectFailed(self._node.name, TRANSFER, self._unknown(target))
        run = self._run.resume(target, self._run.branch)
        if self._scope.hand_overs >= _MAX_HAND_OVERS:
            cause = f"control was handed over {_MAX_HAND_OVERS} times without an end; the agents send it to and fro"
            raise EffectFailed(self._node.name, TRANSFER, cause)
        self._scope.hand_overs += 1
        try:
            self._escalated |= await self._scope.run_agent(self._scope, node, run)
        finally:
            self._scope.hand_overs -= 1

    def _unknown(self, target: str) -> str:
        """Return how google.adk tells that there is no agent of a name."""
        if self._adk and self._adk.major >= 2:
            return f"ValueError: Transfer target agent {target!r} not found."
        return f"ValueError: Agent {target} not found in the agent tree."

    async def _call_model(self) -> Event | None:
        """Call the model until it answers, and log that; returns the event if it has calls.

        Raises:
            EffectFailed: The call failed, or the model gave no answer.
        """
        scope, name = self._scope, self._node.name
        while True:
            async with scope.budget.calling(self._node):
                number = scope.projection.model_calls[name]
                judgment = await self._ask(number)
                scope.log.append(self._called(judgment.again))
            if judgment.again is None:
                break
        ids = scope.log.call_ids("model", name, number)
        taken = taken_ids(scope.projection, judgment.event)
        event = model_event(self._node, self._run.branch, judgment.event, taken, ids)
        event = await scope.log_answer(event, self._run)
        if judgment.failure is not None:
            raise EffectFailed(name, "model", judgment.failure)
        return event if event.get_function_calls() else None

    async def _call_adk_model(self) -> Event | None:
        """Run a google.adk agent's model step, and log what it gives; returns the event with calls, if there is one.

        Raises:
            EffectFailed: The step failed.
        """
        scope = self._scope
        async with scope.budget.calling(self._node):
            output = await self._step_of_model(scope.projection.model_calls[self._node.name])
            scope.log.append(self._called())
        step = output.step or StepLog()
        logged = await scope.log_step(step, self._run)
        if logged and self._first is None:
            self._first = logged[0].id
        self._escalated |= any(event.actions.escalate for event in logged)
        self._step.requests += [event for event in logged if is_credential_request(event)]
        if self._step.requests:
            # ADK 2 ends its run here, and begins another with the answer.
            return None
        self._cut_short |= step.ended
        calling = next((event for event in reversed(logged) if event.get_function_calls()), None)
        if calling is not None and not step.ended:
            self._long_running += sorted(calling.long_running_tool_ids or ())
            return calling
        self._answered = step.ended or not logged or logged[-1].is_final_response()
        return None

    async def _ask(self, number: int) -> Judgment:
        """Make one model call, the agent's n-th."""
        scope = self._scope
        output = await self._step_of_model(number)
        asked = scope.invocation.asked_again.get((self._node.name, self._run.branch, scope.name_of(self._run)), ())
        return judge(output.answer, asked)

    async def _step_of_model(self, number: int) -> ModelOutput:
        scope, name = self._scope, self._node.name
        scope.progress.check_stopped()
        call = ModelInput(
            agent=name,
            invocation_id=scope.invocation.id,
            branch=self._run.branch,
            plan=None if scope.invocation.plan else scope.plan.digest,
            call_index=number,
            begun_after=self._run.begun_after,
            begun_with=self._first if self._adk else None,
            run=scope.name_of(self._run),
            scope=scope.calls,
            journal=scope.slice(),
        )
        try:
            with scope.slice_under_way(call.journal) as witness:
                return await scope.activities.model(call, self._node.model, self._node.model_options, witness)
        except EffectFailed:
            if not scope.progress.stopping:
                scope.log.append(self._called())
            raise

    def _called(self, again: str | None = None) -> ModelCalled:
        run, path = self._run, self._scope.name_of(self._run)
        return ModelCalled(
            agent=self._node.name, invocation_id=self._scope.invocation.id, branch=run.branch, run=path, again=again
        )


async def _hands_over_behind(scope: Scope, step: Standing) -> bool:
    """Return whether a tool hands over control beside calls that are open, once these are answered. ADK 2."""
    adk, calling, told = scope.plan.adk, step.calling, step.responses
    if adk is None or adk.major < 2 or not scope.plan.resumable or calling is None or not told or step.requests:
        return False
    if told[-1].actions.transfer_to_agent is None:
        return False
    await scope.wait_for(sorted(calling.long_running_tool_ids or ()))
    return True
