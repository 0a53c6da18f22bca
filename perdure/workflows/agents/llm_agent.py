"""Runs an LLM agent: model, tools, answers, transfer, until its turn ends (SEMANTICS.md)."""

from __future__ import annotations

from functools import partial
from typing import assert_never

from perdure.errors import EffectFailed
from perdure.journal.credential_questions import is_credential_request
from perdure.journal.entries import ModelCalled
from perdure.journal.events import Event
from perdure.journal.runs import AgentRun, Standing, last_step
from perdure.journal.tasks import ends_task
from perdure.journal.unusable_answers import Judgment, judge
from perdure.messages.session import ModelInput, ModelOutput
from perdure.messages.step_log import StepLog
from perdure.messages.stretches import FailedStep, Stretch
from perdure.plan.nodes import TRANSFER, LlmNode
from perdure.rules.ids import taken_ids, with_unique_ids
from perdure.rules.llm_turns import find_turn
from perdure.rules.model_answers import model_event
from perdure.rules.next_step import (
    AskForThem,
    AskModel,
    BeginAnew,
    End,
    EndsTurn,
    EndTurn,
    Fail,
    GiveAnswer,
    GiveTasks,
    HandOver,
    Listen,
    NextStep,
    RunAuthorized,
    RunCalls,
    RunConfirmed,
    SignIn,
    TurnStep,
    WaitFor,
    next_step,
)
from perdure.workflows.agents.callbacks import after_agent, authorize
from perdure.workflows.agents.delegations import begin_anew, listen, take_place
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
        self._escalated = run.escalated
        self._adk = scope.plan.adk
        self._first = run.own[0].id if run.own else None
        self._answered = True
        """The last model step ended the agent's turn."""
        take_place(scope, node, run)
        self._turn = find_turn(scope.facts, node, run)
        self._failed: dict[str | None, FailedStep] = {}
        """Steps that failed behind others, by the tool's call; `None` is the model's."""
        self._tools = ToolCalls(scope, node, run, self._turn, self._failed)
        if node.include_contents == "none" and run.begun_after is None:
            self._take_note_of_begin()

    def _take_note_of_begin(self) -> None:
        """Remember after which event the agent run began: of one that is entered again, by what it logged first."""
        scope, run = self._scope, self._run
        events = scope.projection.events
        first = run.own[0].id if run.own else None
        begun = next((index for index in range(len(events) - 1, -1, -1) if events[index].id == first), len(events))
        run.begun_after = events[begun - 1].id if begun else None
        if not run.own and run.begun_after is not None:
            scope.log_begin(run)

    async def run(self) -> bool:
        what: NextStep | None = None
        while not isinstance(what := next_step(self._scope.facts, self._node, self._turn, what), End):
            self._escalated |= any(event.actions.escalate for event in self._turn.step.responses)
            if isinstance(what, Listen):
                await listen(self._scope, self._node, self._run)
                await self._begin_anew()
            elif self._turn.replied:
                await self._begin_anew()
            else:
                await self._take_step(what)
        if not self._turn.cut_short:
            await after_agent(self._scope, self._node, self._run)
        # As in ADK, of a task's agent readers see the ends of its turns only.
        self._scope.end(self._node, self._run, hidden=True if self._node.mode == "task" else None)
        return self._escalated

    async def _take_step(self, what: TurnStep) -> None:
        """Carry out a step of the agent's turn, and log what it leaves if it fails."""
        try:
            await self._carry_out(what)
        except EffectFailed as failed:
            left, failed.left = failed.left, None
            if isinstance(left, StepLog) and failed.agent == self._node.name:
                await self._scope.log_step(left, self._run)
            raise

    async def _carry_out(self, what: TurnStep) -> None:
        turn = self._turn
        match what:
            case AskModel():
                await self._ask_model()
            case WaitFor():
                await self._scope.wait_for(what.ids)
            case SignIn():
                await authorize(self._scope, self._run, what.requests)
                turn.step = Standing()
            case BeginAnew():
                await self._begin_anew()
            case RunCalls() | AskForThem() | GiveTasks() | RunAuthorized() | RunConfirmed():
                assert turn.step.calling is not None, "it has the calls"
                await self._tools.respond(what, turn.step.calling, turn.step)
            case GiveAnswer() | HandOver() | EndTurn():
                await self._end_turn(what)
            case Fail():
                raise EffectFailed(self._node.name, what.step, what.cause)
            case _:
                assert_never(what)

    async def _end_turn(self, what: EndsTurn) -> None:
        turn = self._turn
        match what:
            case GiveAnswer():
                await self._scope.log_answer(what.event, self._run)
                turn.cut_short |= what.cuts_short
            case HandOver():
                await self._hand_over(what.agent)
                self._scope.interrupted |= what.interrupts
                turn.cut_short |= what.cuts_short or self._scope.interrupted
            case EndTurn():
                self._scope.interrupted |= what.interrupts
                turn.cut_short |= what.cuts_short
            case _:
                assert_never(what)
        # For the model may be asked again.
        turn.ends_agent |= any(map(ends_task, turn.step.responses))
        turn.step = Standing(ended=True)

    async def _begin_anew(self) -> None:
        """Begin at the top, as google.adk does once a task is done, and when the user has said something for one."""
        turn, ended = self._turn, not await begin_anew(self._scope, self._node, self._run)
        turn.step, turn.replied, turn.cut_short = Standing(ended=ended), False, turn.cut_short or ended
        self._first = None
        # Where a callback answers, its end is logged with that.
        self._run.end_logged |= ended

    async def _ask_model(self) -> None:
        """Ask the model until it answers, and log that; or what its activity has done behind an answer.

        Raises:
            EffectFailed: The call failed, or the model gave no answer.
        """
        self._turn.step = Standing()
        number, output, judgment = await self._answer()
        if not output.is_answer:
            return
        step = self._turn.step = Standing()
        step.calling = await (self._log_step(output) if judgment is None else self._log_answer(number, judgment))
        step.ended = step.calling is None and self._answered and not step.requests

    async def _answer(self) -> tuple[int, ModelOutput, Judgment | None]:
        """Return which of the agent's calls was answered, the answer, if there is one, and what it is taken for."""
        scope, most = self._scope, self._most_steps()
        while True:
            async with scope.budget.calling(self._node, most) as calls:
                number = scope.projection.model_calls[self._node.name]
                output = await self._step_of_model(number, min(most, 2 * calls))
                if output.before is not None:
                    number += sum(isinstance(entry, ModelCalled) for entry in output.before.entries)
                    await self._take(output.before)
                judgment = self._judged(output)
                if output.is_answer:
                    scope.log.append(self._called(judgment.again if judgment is not None else None))
            if judgment is None or judgment.again is None:
                return number, output, judgment

    def _judged(self, output: ModelOutput) -> Judgment | None:
        """Return what an answer of Perdure's own agents is taken for."""
        if self._adk or not output.is_answer:
            return None
        return judge(output.answer, self._scope.invocation.asked_again.get(self._run.path, ()))

    def _most_steps(self) -> int:
        """Return how many steps an activity may take: one where somebody looks at each, or a graph runs the agent."""
        scope, adk = self._scope, self._adk
        watched = adk is not None and adk.watches
        alone = watched or bool(scope.calls) or self._node.mode is not None or scope.node_of(self._run) is not None
        return 1 if alone else scope.plan.steps_per_activity

    async def _take(self, done: Stretch) -> None:
        """Take over what an activity has done behind its model call, and go on behind that."""
        events = await self._scope.take(done.entries, self._run)
        if events and self._first is None:
            self._first = events[0].id
        self._escalated |= any(event.actions.escalate for event in events)
        self._turn.step = last_step(events, self._scope.projection.events)
        self._turn.long_running += [id for event in events for id in sorted(event.long_running_tool_ids or ())]
        self._failed.update({step.call_id: step for step in done.failed})

    async def _hand_over(self, target: str) -> None:
        run = self._run.resume(target, self._run.branch)
        if self._scope.hand_overs >= _MAX_HAND_OVERS:
            cause = f"control was handed over {_MAX_HAND_OVERS} times without an end; the agents send it to and fro"
            raise EffectFailed(self._node.name, TRANSFER, cause)
        self._scope.hand_overs += 1
        try:
            self._escalated |= await self._scope.run_agent(self._scope, self._scope.plan.nodes[target], run)
        finally:
            self._scope.hand_overs -= 1

    async def _log_answer(self, number: int, judgment: Judgment) -> Event | None:
        """Log the model's answer; returns the event if it has calls.

        Raises:
            EffectFailed: It is none.
        """
        scope, name = self._scope, self._node.name
        ids = partial(scope.log.call_ids, "model", name, number)
        taken = taken_ids(scope.projection, judgment.event)
        event = model_event(self._node, self._run.branch, judgment.event, taken, ids)
        event = await scope.log_answer(event, self._run)
        if judgment.failure is not None:
            raise EffectFailed(name, "model", judgment.failure)
        return event if event.get_function_calls() else None

    async def _log_step(self, output: ModelOutput) -> Event | None:
        """Log what a google.adk agent's model step gives; returns the event with calls, if there is one."""
        left, step = with_unique_ids(output.step or StepLog(), self._scope.projection), self._turn.step
        logged = await self._scope.log_step(left, self._run)
        if logged and self._first is None:
            self._first = logged[0].id
        self._escalated |= any(event.actions.escalate for event in logged)
        step.requests += [event for event in logged if is_credential_request(event)]
        if step.requests:
            # ADK 2 ends its run here, and begins another with the answer.
            return None
        self._turn.cut_short |= left.ended
        calling = next((event for event in reversed(logged) if event.get_function_calls()), None)
        if calling is not None and not left.ended:
            self._turn.long_running += sorted(calling.long_running_tool_ids or ())
            return calling
        self._answered = left.ended or not logged or logged[-1].is_final_response()
        return None

    async def _step_of_model(self, number: int, steps: int) -> ModelOutput:
        scope, name = self._scope, self._node.name
        scope.progress.check_stopped()
        failed = self._failed.pop(None, None)
        call = ModelInput(
            agent=name,
            invocation_id=scope.invocation.id,
            branch=self._run.branch,
            plan=None if scope.invocation.plan else scope.plan.digest,
            call_index=number,
            begun_after=self._run.begun_after,
            begun_with=self._first if self._adk else None,
            run=self._run.path,
            scope=scope.calls,
            steps=steps,
            tried=failed.attempts if failed is not None else 0,
            answer_id=failed.answer_id if failed is not None else None,
            journal=scope.slice(),
        )
        try:
            with scope.slice_under_way(call.journal) as witness:
                return await scope.activities.model(
                    call, self._node.model, self._node.model_options, witness, failed=failed
                )
        except EffectFailed:
            if not scope.progress.stopping:
                scope.log.append(self._called())
            raise

    def _called(self, again: str | None = None) -> ModelCalled:
        return ModelCalled(
            agent=self._node.name, invocation_id=self._scope.invocation.id, run=self._run.path, again=again
        )
