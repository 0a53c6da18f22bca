"""Rebuilds journal entries from what users sent and what activities returned, as the workflow would log them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from perdure.errors import RequestRefused
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import (
    MAX_EVENT_BYTES,
    ActivityKept,
    AnswerAccepted,
    CallbackRan,
    CallExpired,
    CallReminded,
    Entry,
    EventLogged,
    Failure,
    FailureCaught,
    InvocationResumed,
    InvocationSettled,
    MessageAccepted,
    StateChanged,
    TempStateSet,
    ToolKept,
    ToolRan,
    Within,
)
from perdure.journal.events import USER, Event, EventActions
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.projection import Call, Invocation, Projection, shared_part, split_state_delta
from perdure.journal.tool_output import LocalCall, ToolOutput
from perdure.journal.unusable_answers import judge
from perdure.messages.callbacks import AgentCallback, CallbackInput
from perdure.messages.session import (
    AnswerInput,
    CodeInput,
    CodeOutput,
    MessageInput,
    ModelInput,
    ModelOutput,
    ToolInput,
)
from perdure.messages.shared_state import ShareStateInput, StateChangeInput
from perdure.messages.step_log import StepLog
from perdure.plan.contents import types
from perdure.plan.nodes import LlmNode, ToolPlan
from perdure.recovery.rebuilt_entries import (
    SAME_TIME,
    callback_ran,
    is_final,
    is_same_start,
    lost_start,
    model_called,
    not_started,
    tool_ran,
    tool_start,
)
from perdure.rules.checkpoints import is_hidden
from perdure.rules.ids import call_ids, derived_id, taken_ids, with_unique_ids
from perdure.rules.intake import accepted_message, by_branch, check_answer, expired_answer, named, state_event
from perdure.rules.model_answers import instant_output, logged_events, model_event, structured_answer
from perdure.rules.tool_responses import confirmation_request, response_event, silent_calls
from perdure.views.pages import expired_cause


class Rebuilder:
    """A journal that grows by one thing after another that happened to its session."""

    def __init__(self, entries: Sequence[Entry], seed: str, writes: Collection[ShareStateInput] = ()) -> None:
        """Begin with a journal.

        Args:
            entries: The journal, as far as it is known.
            seed: What the run derived ids from.
            writes: What its events shared, by which they are known.
        """
        self.projection = fold_journal(entries)
        self._seed = seed
        self._writes = writes
        self._outputs: dict[str, ToolOutput] = {}
        """Outputs of tools that only asked for a confirmation, or are logged with their response, by call id."""

    def _apply(self, entry: Entry) -> None:
        apply_entry(self.projection, entry)

    def within(self, scope: Sequence[str]) -> Rebuilder | None:
        """Return the journal of an agent that tools run, by the calls around it; `None` if no slice tells of it."""
        found = self
        for call_id in scope:
            if call_id not in found.projection.scopes:
                return None
            found = _ScopeRebuilder(found, call_id)
        return found

    def message(self, message: MessageInput, invocation_id: str, time: float) -> None:
        """Accept a message, unless a slice tells that it was."""
        projection = self.projection
        if message.request_id in projection.requests or invocation_id in projection.invocations:
            return
        task = self.projection.open_task()
        invocation_id = task.invocation_id if task is not None else invocation_id
        delta, temp = split_state_delta(message.state_delta)
        content = message.content.model_copy(update={"role": USER})
        event = self._event(time, USER, invocation_id, content=content, actions=EventActions(state_delta=delta))
        self._apply(accepted_message(message, event, task))
        if temp:
            self._apply(TempStateSet(invocation_id=invocation_id, delta=temp))

    def answer(self, answer: AnswerInput, invocation_id: str, time: float) -> RequestRefused | None:
        """Accept an answer, unless a slice tells that it was; returns why it is not, if it fits no open call."""
        projection = self.projection
        if answer.request_id is not None and answer.request_id in projection.requests:
            return None
        try:
            calls = check_answer(projection, answer)
        except RequestRefused as refusal:
            return refusal
        content = named(answer.content, calls)
        update = {"custom_metadata": answer.metadata}
        invocation = projection.invocations.get(calls[0].pending.invocation_id)
        if invocation is None or not projection.is_resumable(invocation):
            again = invocation is not None and projection.begins_again(invocation)
            id = invocation.id if invocation is not None and again else invocation_id
            event = self._event(time, USER, id, content=content).model_copy(update=update)
            self._apply(MessageAccepted(event=event, request_id=answer.request_id, streaming=answer.streaming))
            return None
        late = next((call for call in calls if call.expired is not None), None)
        if late is not None:
            self._fail(invocation, late)
        for branch, part_of in by_branch(content, calls):
            event = self._event(time, USER, invocation.id, content=part_of, branch=branch).model_copy(update=update)
            self._apply(AnswerAccepted(event=event, request_id=answer.request_id, streaming=answer.streaming))
        return None

    def state_changed(self, change: StateChangeInput, time: float) -> None:
        """Log a change of the session's state, unless that was done."""
        if all(event.id != change.request_id for event in self.projection.events):
            self._apply(StateChanged(event=state_event(change, time)))

    def expired(self, time: float) -> None:
        """Answer for the person, or fail, where a deadline had passed by this time, unless that was done."""
        for call in self.projection.overdue(time):
            answer = expired_answer(call)
            if answer is None:
                self._apply(CallExpired(call_id=call.pending.id))
            else:
                self.answer(answer, f"e-{derived_id(self._seed, 'expired', call.pending.id)}", time)

    def _fail(self, invocation: Invocation, call: Call) -> None:
        """Let a deadline fail its invocation, as it has by the time of an answer that comes later."""
        if invocation.status == "queued":
            self._apply(InvocationResumed(invocation_id=invocation.id))
        failure = Failure(agent=call.pending.agent, step=call.pending.name, cause=expired_cause(call))
        self._apply(InvocationSettled(invocation_id=invocation.id, status="failed", failures=(failure,)))

    def model_answered(self, call: ModelInput, output: ModelOutput, time: float) -> None:
        """Log a model's answer, unless that was done."""
        projection = self.projection
        if projection.model_calls[call.agent] > call.call_index:
            return
        invocation = projection.invocations.get(call.invocation_id)
        asked = invocation.asked_again if invocation is not None else {}
        if output.step is not None:
            self._apply(model_called(call))
            self._log_step(call.invocation_id, with_unique_ids(output.step, projection), time, call.run)
            return
        judgment = judge(output.answer, asked.get(call.run, ()))
        self._apply(model_called(call, judgment.again))
        node = self._node(call.invocation_id, call.agent)
        if node is None or judgment.again is not None:
            return
        ids = partial(call_ids, self._seed, "model", call.agent, call.call_index)
        event = model_event(node, call.branch, judgment.event, taken_ids(projection, judgment.event), ids)
        logged = [self.log(part, call.invocation_id, time, call.run) for part in logged_events(event)]
        self._respond(next((part for part in logged if part.content is not None), logged[0]), time)

    def _log_step(self, invocation_id: str, step: StepLog, time: float, run: str) -> None:
        if step.state:
            self._apply(TempStateSet(invocation_id=invocation_id, delta=step.state))
        for event in step.events:
            self.log(event, invocation_id, time, run)

    def called_back(self, call: CallbackInput, step: StepLog, length: int, time: float) -> None:
        """Log what callbacks around an agent left, or its own code, or take up credentials, unless that was done.

        What plugins did around a turn is done again: no entry says that it was. `length` is how long the journal was,
        at least, when they were called.
        """
        invocation = self.projection.invocations[call.invocation_id]
        if call.which in ("before", "after"):
            self._log_callback(call, call.which, step, length, time)
        elif call.which == "run":
            self._log_code(call, step, length, time)
        elif call.which == "authorize" and not invocation.authorized.issuperset(call.requests):
            taken = TempStateSet(invocation_id=invocation.id, delta=step.state, authorized=tuple(call.requests))
            self._apply(taken)

    def _log_code(self, call: CallbackInput, step: StepLog, length: int, time: float) -> None:
        """Log what a custom agent's code left, unless a slice tells of an event of it since then."""
        since = self.projection.entries[0 if call.scope else length :]
        own = [entry.event for entry in since if isinstance(entry, EventLogged) and entry.run == call.run]
        if not step.events or all(event.content != step.events[0].content for event in own):
            self._log_step(call.invocation_id, step, time, call.run)
        if step.failed is not None:
            self.code_failed(call, step.failed.again)

    def code_failed(self, call: CallbackInput, again: tuple[int, ...] = ()) -> None:
        """Note that a custom agent's code failed, so that a resume tries again what it was given, unless that was done.

        Args:
            call: The step of the code.
            again: Which failures are tried again. Default: all.
        """
        entries = self.projection.invocations[call.invocation_id].entries
        met = [entry for entry in entries if isinstance(entry, FailureCaught) and entry.run == call.run]
        if met and met[-1].failures:
            whose = FailureCaught(invocation_id=call.invocation_id, agent=call.agent, branch=call.branch, run=call.run)
            self._apply(whose.model_copy(update={"again": again}))

    def _log_callback(self, call: CallbackInput, which: AgentCallback, step: StepLog, length: int, time: float) -> None:
        ran = callback_ran(call, which, self._seed, len(self.projection.entries), len(step.events))
        known = (entry for entry in self.projection.entries[length:] if isinstance(entry, CallbackRan))
        if any(entry.model_copy(update={"ids": ran.ids}) == ran for entry in known):
            return
        self._apply(ran)
        given = [
            event.model_copy(update={"id": id, "author": event.author or call.agent, "branch": call.branch})
            for event, id in zip(step.events, ran.ids, strict=True)
        ]
        self._log_step(call.invocation_id, StepLog(events=tuple(given), state=step.state), time, call.run)

    def tool_started(self, call: ToolInput, time: float) -> None:
        """Note that an at-most-once tool was started by the workflow task of this time, unless that was done."""
        invocation = self.projection.invocations.get(call.invocation_id)
        tool = tool_of(self.projection, invocation, call) if invocation is not None else None
        if invocation is None or tool is None or not tool.at_most_once:
            return
        entry = tool_start(call, time)
        if not any(is_same_start(known, entry) for known in self.projection.entries):
            self._apply(entry)

    def tool_not_started(self, call: ToolInput, time: float) -> None:
        """Note that what was noted at `time` did not start after all, unless that was done, or it was started again."""
        invocation = self.projection.invocations.get(call.invocation_id)
        noted = invocation.started.get(call.function_call_id) if invocation is not None else None
        if noted is not None and abs(noted.timestamp - time) < SAME_TIME:
            self._apply(not_started(call, time))

    def tool_lost(self, call: ToolInput, cause: str, time: float) -> None:
        """Note that a tool was refused its start, which may repeat one that a reset has lost, unless that was done."""
        noted = self.projection.invocations[call.invocation_id].started.get(call.function_call_id)
        caller = self.projection.event_of_call(call.function_call_id)
        elsewhere = caller is None or caller.invocation_id != call.invocation_id
        ran = lost_start(call, cause, noted.timestamp if noted is not None else time, time, elsewhere=elsewhere)
        known = (entry for entry in self.projection.entries if isinstance(entry, ToolRan) and entry.outcome == "lost")
        if all(entry.call_id != ran.call_id for entry in known):
            self._apply(ran)

    def reminded(self, call: ToolInput) -> None:
        """Note that a call's reminder was started, unless that was done."""
        open_call = self.projection.calls.get(call.function_call_id)
        if open_call is not None and open_call.remind_at is not None:
            self._apply(CallReminded(call_id=call.function_call_id))

    def local_tool_returned(self, call: LocalCall, output: ToolOutput, time: float) -> None:
        """Take in what a local tool returned, as from any other."""
        invocation = self.projection.invocations.get(call.invocation_id)
        if invocation is not None and invocation.status != "finished":
            self._returned(invocation, call.call_id, output, time, confirmed=call.confirmed)

    def tool_returned(self, call: ToolInput, output: ToolOutput, time: float) -> None:
        """Keep a tool's output, unless it was logged, and log the response event if it is the last that was missing."""
        if output.asks is not None:
            # Its agent has not begun: it asks again.
            return
        invocation = self.projection.invocations[call.invocation_id]
        self._returned(invocation, call.function_call_id, output, time, confirmed=call.confirmation is not None)

    def all_returned(self, calling: Event, outputs: Mapping[str, ToolOutput], time: float) -> bool:
        """Log what the tools of all calls of an answer returned, by call id; returns whether that is their response."""
        projection, before = self.projection, len(self.projection.events)
        for call_id, output in outputs.items():
            if output.times is not None:
                invocation = projection.invocations[calling.invocation_id]
                self._apply(tool_ran(projection, invocation, calling, call_id, output.times))
            self._outputs[call_id] = output.model_copy(update={"times": None, "call": None})
        self._respond(calling, time)
        return len(projection.events) > before

    def take(self, entry: Entry) -> None:
        """Take in an entry that no slice tells of."""
        self._apply(entry)

    def take_new(self, entry: Entry) -> None:
        """Take in an entry, unless a slice tells of it."""
        if entry not in self.projection.entries:
            self._apply(entry)

    def _returned(
        self, invocation: Invocation, call_id: str, output: ToolOutput, time: float, *, confirmed: bool
    ) -> None:
        calling = self.projection.event_of_call(call_id)
        responses = len(self.projection.responses_to(call_id))
        kept = invocation.kept.get(call_id)
        if calling is None or responses >= (2 if confirmed else 1) or is_final(calling, call_id, kept, confirmed):
            return
        if output.times is not None:
            self.take_new(tool_ran(self.projection, invocation, calling, call_id, output.times))
        output = output.model_copy(update={"times": None, "call": None})
        if output.needs_confirmation:
            self._outputs[call_id] = output
        else:
            self._apply(ToolKept(invocation_id=invocation.id, call_id=call_id, output=output))
        if not confirmed:
            self._respond(calling, time)

    def code_returned(self, call: CodeInput, output: CodeOutput, length: int) -> None:
        """Keep a function's result, unless it stands behind the first `length` entries."""
        if call.agent is None or call.invocation_id is None:
            return
        kept = ActivityKept(
            invocation_id=call.invocation_id,
            agent=call.agent,
            branch=call.branch,
            name=call.name,
            index=call.index,
            arguments=call.arguments,
            result=output.result,
            run=call.run,
        )
        if kept not in self.projection.entries[length:]:
            self._apply(kept)

    def _respond(self, calling: Event, time: float) -> None:
        """Log what an agent's tools responded, once all of a model's calls have their output."""
        node = self._node(calling.invocation_id, calling.author)
        calls = calling.get_function_calls()
        if node is None or not calls or any(self.projection.responses_to(call.id or "") for call in calls):
            return
        invocation = self.projection.invocations[calling.invocation_id]
        outputs: dict[str, ToolOutput] = {}
        for call in calls:
            output = self._output(invocation, node, call)
            if output is None:
                return
            outputs[call.id or ""] = output
        request = confirmation_request(calls, outputs, call_ids(self._seed, "confirm", calls[0].id))
        long_running = calling.long_running_tool_ids or frozenset[str]()
        response = response_event(calls, outputs, long_running)
        for call in silent_calls(calls, outputs, long_running):
            if call.id not in invocation.kept:
                kept = ToolKept(invocation_id=invocation.id, call_id=call.id or "", output=outputs[call.id or ""])
                self._apply(kept)
        run, whose = run_of(invocation, calling), {"author": node.name, "branch": calling.branch}
        for event in (request, response):
            if event is not None:
                self.log(event.model_copy(update=whose), invocation.id, time, run)
        answer = structured_answer(node, calling.branch, response) if response is not None else None
        for event in logged_events(answer) if answer is not None else ():
            self.log(event, invocation.id, time, run)
        for output in outputs.values():
            self._log_step(invocation.id, StepLog(events=output.after, state=output.state), time, run)

    def _output(self, invocation: Invocation, node: LlmNode, call: types.FunctionCall) -> ToolOutput | None:
        plan = self.projection.plan_of(invocation)
        found = invocation.kept.get(call.id or "") or self._outputs.get(call.id or "")
        if found is not None or plan is None:
            return found if found is None or not found.awaits_callbacks else None
        return instant_output(plan, node, call, decided=False)

    def _node(self, invocation_id: str, agent: str) -> LlmNode | None:
        invocation = self.projection.invocations.get(invocation_id)
        plan = self.projection.plan_of(invocation) if invocation is not None else None
        node = plan.nodes.get(agent) if plan is not None else None
        return node if isinstance(node, LlmNode) else None

    def _event(self, time: float, author: str, invocation_id: str, **fields: Any) -> Event:
        return Event(
            id=self._event_id(fields.get("actions")),
            timestamp=time,
            author=author,
            invocation_id=invocation_id,
            **fields,
        )

    def _event_id(self, actions: EventActions | None) -> str:
        shared = shared_part(actions.state_delta) if actions else {}
        known = {event.id for event in self.projection.events} if shared else set[str]()
        found = (write.write_id for write in self._writes if write.delta == shared and write.write_id not in known)
        return next(found, None) or derived_id(self._seed, "event", len(self.projection.entries))

    def log(self, event: Event, invocation_id: str, time: float, run: str) -> Event:
        """Log an event of an agent's run, unless it is too large; returns it with its id and time."""
        delta, temp = split_state_delta(event.actions.state_delta)
        if temp:
            self._apply(TempStateSet(invocation_id=invocation_id, delta=temp))
        update: dict[str, object] = {"timestamp": time, "invocation_id": invocation_id}
        update["id"] = event.id or self._event_id(event.actions)
        update["actions"] = event.actions.model_copy(update={"state_delta": delta})
        logged = event.model_copy(update=update)
        if payload_size(logged) <= MAX_EVENT_BYTES:
            plan = self.projection.plan_of(self.projection.invocations[invocation_id])
            self._apply(EventLogged(event=logged, run=run, hidden=plan is not None and is_hidden(plan, logged)))
        return logged


class _ScopeRebuilder(Rebuilder):
    """Rebuilds what an agent did that a tool runs: each entry stands in the journal around it."""

    def __init__(self, around: Rebuilder, call_id: str) -> None:
        super().__init__((), f"{around._seed}/{call_id}")
        self.projection = around.projection.scopes[call_id]
        self._around = around
        self._call_id = call_id

    def _apply(self, entry: Entry) -> None:
        self._around._apply(Within(call_id=self._call_id, entry=entry))


def tool_of(projection: Projection, invocation: Invocation, call: ToolInput) -> ToolPlan | None:
    """Return the tool of a call, as the invocation's plan has it."""
    # An invocation that answers a confirmation in an app that is not resumable may have begun behind the slices.
    plan = projection.plan_of(invocation) or projection.plans.get(projection.newest_plan or "")
    node = plan.nodes.get(call.agent) if plan is not None else None
    return node.tool(call.tool) if isinstance(node, LlmNode) else None


def run_of(invocation: Invocation, event: Event) -> str:
    """Return the path of the agent run that an event of an invocation is of."""
    logged = (entry for entry in reversed(invocation.entries) if isinstance(entry, EventLogged))
    return next((entry.run for entry in logged if entry.event.id == event.id), "")
