"""Rebuilds what a session asked about calls in doubt, so that nobody is asked twice and no answer is lost. Pure.

Such a question stands in no history: it is asked as soon as an at-most-once tool is known to be cut off. Its id is
derived from what history tells, so an answer to it, and the same question in the rebuilt journal, find each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure

from perdure.journal.entries import ToolOutput
from perdure.journal.events import Event
from perdure.journal.projection import Invocation
from perdure.journal.questions import last_request, lets_run_again, times_asked
from perdure.messages.session import AnswerInput, ToolInput
from perdure.plan.contents import types
from perdure.plan.nodes import LlmNode, Plan, ToolPlan
from perdure.recovery.rebuilding import Rebuilder, run_of, tool_of
from perdure.rules.failures import failure_text
from perdure.rules.ids import call_ids
from perdure.rules.in_doubt import (
    CUT_OFF,
    LOST_START,
    NOT_STARTED,
    UNDECIDED,
    Doubt,
    doubt_request,
    is_silent,
    leaves_doubt,
    reconciled_output,
)


class Questions:
    """Finds started calls that have ended without a word, and asks about them."""

    def __init__(self, journal: Rebuilder, seed: str) -> None:
        """Begin with nothing; ids of questions are derived from `seed`."""
        self._journal = journal
        self._seed = seed
        self._at_work: dict[int, ToolInput] = {}
        """Tools, and reconcile functions, by the event that scheduled them."""
        self._reasons: dict[str, str] = {}
        self._undecided: dict[str, str] = {}
        """What came of the reconcile function, by call id."""

    def scheduled(self, event_id: int, call: ToolInput) -> None:
        """Take in that a tool or its reconcile function is at work."""
        self._at_work[event_id] = call
        if call.kind == "tool":
            self._reasons.pop(call.function_call_id, None)
        self._undecided.pop(call.function_call_id, None)

    def returned(self, event_id: int, result: Payloads, time: float) -> None:
        """Take in what one of them returned; what a reconcile function knows is the call's output."""
        call = self._at_work.pop(event_id, None)
        if call is None or call.kind != "reconcile" or call.invocation_id not in self._journal.projection.invocations:
            return
        known = reconciled_output(ToolOutput.model_validate_json(result.payloads[0].data))
        if known is not None:
            self._journal.tool_returned(call, known, time)
        else:
            self._undecided[call.function_call_id] = UNDECIDED

    def failed(self, event_id: int, failure: Failure, time: float) -> bool:
        """Take in that one of them failed; returns whether that leaves a doubt, with which the invocation goes on."""
        call = self._at_work.pop(event_id, None)
        invocation = self._journal.projection.invocations.get(call.invocation_id) if call is not None else None
        if call is None or invocation is None:
            return False
        if call.kind == "reconcile":
            self._undecided[call.function_call_id] = f"its reconcile function failed: {failure.message}"
            return False
        tool = tool_of(self._journal.projection, invocation, call)
        if tool is None or call.function_call_id not in invocation.started:
            return False
        kind, cause = failure.application_failure_info.type, failure_text(failure)
        if kind == LOST_START:
            self._journal.tool_lost(call, cause, time)
        silent = is_silent(kind, timed_out=failure.HasField("timeout_failure_info"))
        if not leaves_doubt(tool, silent=silent, not_started=kind in NOT_STARTED):
            return False
        self._reasons[call.function_call_id] = cause
        # Where nobody can be asked, the model is told of the doubt, or the invocation fails of it.
        return self._journal.projection.is_resumable(invocation) or tool.on_failure == "tell_model"

    def cancelled(self, event_id: int) -> None:
        """Take in that one of them is at work no more, and nobody is to be asked."""
        self._at_work.pop(event_id, None)

    def answered(self, answer: AnswerInput, time: float) -> None:
        """Ask, before an answer is taken, what it can only be an answer to."""
        responses = [part.function_response for part in answer.content.parts or []]
        wanted = {response.id for response in responses if response is not None}
        if wanted - set(self._journal.projection.calls):
            for invocation in list(self._journal.projection.invocations.values()):
                self._ask(invocation, time, wanted=wanted)

    def ask(self, invocation: Invocation, time: float) -> None:
        """Ask about every call of an invocation that is known to be cut off."""
        self._ask(invocation, time, wanted=None)

    def _ask(self, invocation: Invocation, time: float, *, wanted: Collection[str | None] | None) -> None:
        plan = self._journal.projection.plan_of(invocation)
        if plan is None or not plan.resumable:
            return
        found: dict[str, tuple[Event, list[Doubt], list[str]]] = {}
        for calling, tool, doubt in self._doubts(plan, invocation):
            call_id = doubt.call.id or ""
            asked = times_asked(self._journal.projection.events, call_id)
            request_id = next(call_ids(self._seed, "doubt", call_id, asked))
            if request_id in wanted if wanted is not None else self._is_due(tool, call_id):
                _, doubts, ids = found.setdefault(calling.id, (calling, [], []))
                doubts.append(doubt)
                ids.append(request_id)
        for calling, doubts, ids in found.values():
            update = {"author": calling.author, "branch": calling.branch}
            request = doubt_request(doubts, ids).model_copy(update=update)
            self._journal.log(request, invocation.id, time, run_of(invocation, calling))

    def _is_due(self, tool: ToolPlan, call_id: str) -> bool:
        at_work = any(call.function_call_id == call_id for call in self._at_work.values())
        runs = self._journal.projection.tool_runs.get(call_id)
        is_lost = runs is not None and runs.outcome == "lost"
        return not at_work and (not tool.reconcile or is_lost or call_id in self._undecided)

    def _doubts(self, plan: Plan, invocation: Invocation) -> Iterator[tuple[Event, ToolPlan, Doubt]]:
        """Yield the started calls without a result about which no question is open."""
        projection = self._journal.projection
        for call_id, started in list(invocation.started.items()):
            calling, node = projection.event_of_call(call_id), plan.nodes.get(started.agent)
            tool = node.tool(started.tool) if isinstance(node, LlmNode) else None
            if calling is None or tool is None or call_id in invocation.kept or not self._may_ask(call_id):
                continue
            call = next(call for call in calling.get_function_calls() if call.id == call_id)
            yield calling, tool, Doubt(call, started.idempotency_key, started.timestamp, self._why(call))

    def _may_ask(self, call_id: str) -> bool:
        projection = self._journal.projection
        request_id = last_request(projection.events, call_id)
        if request_id is None:
            return True
        answer = projection.answer_to(request_id)
        return answer is not None and lets_run_again(answer)

    def _why(self, call: types.FunctionCall) -> str:
        call_id = call.id or ""
        runs = self._journal.projection.tool_runs.get(call_id)
        reason = self._reasons.get(call_id) or (runs and runs.cause) or CUT_OFF
        return f"{reason}; {self._undecided[call_id]}" if call_id in self._undecided else reason
