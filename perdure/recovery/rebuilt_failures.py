"""Rebuilds the entries about a tool that failed for good, where its model is told of that. Pure."""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure

from perdure.journal.entries import ToolKept, ToolRan
from perdure.journal.fold import apply_entry
from perdure.journal.tool_output import ToolOutput
from perdure.messages.session import ToolInput
from perdure.messages.step_log import StepLog
from perdure.plan.contents import types
from perdure.recovery.history_payloads import read_json
from perdure.recovery.rebuilding import Rebuilder, tool_of
from perdure.rules.failures import MAX_CAUSE
from perdure.rules.intake import failed_answer
from perdure.rules.tool_responses import failure_output


def keep_returned(journal: Rebuilder, call: ToolInput, failure: Failure) -> None:
    """Take in what a tool returned whose step failed behind that."""
    details = failure.application_failure_info.details
    data = read_json(details) if details.payloads else None
    if isinstance(data, dict) and "returned" in data:
        returned = StepLog.model_validate(data).returned
        invocation = journal.projection.invocations.get(call.invocation_id)
        if returned is not None and invocation is not None and call.function_call_id not in invocation.kept:
            journal.take(ToolKept(invocation_id=invocation.id, call_id=call.function_call_id, output=returned))


def tool_failed(journal: Rebuilder, call: ToolInput, cause: str, time: float) -> bool:
    """Take in that a tool failed, if its model is told of that; returns whether it is."""
    projection = journal.projection
    invocation = projection.invocations.get(call.invocation_id)
    tool = tool_of(projection, invocation, call) if invocation is not None else None
    if invocation is None or tool is None or tool.on_failure != "tell_model" or tool.at_most_once:
        return False
    known = projection.tool_runs.get(call.function_call_id)
    attempts = known.attempts if known is not None else max(tool.options.max_attempts, 1)
    if known is None:
        ran = ToolRan(call_id=call.function_call_id, outcome="failed", attempts=attempts, started=time, ended=time)
        apply_entry(projection, ran.model_copy(update={"cause": cause[:MAX_CAUSE]}))
    output = failure_output(tool.name, cause, attempts)
    open_call = projection.calls.get(call.function_call_id)
    if open_call is None or tool.kind != "long_running" or not projection.is_resumable(invocation):
        journal.tool_returned(call, output, time)
        return True
    journal.tool_returned(call, ToolOutput(), time)
    if open_call.answer == "open":
        made = types.FunctionCall(id=call.function_call_id, name=call.tool)
        journal.answer(failed_answer(made, output.result), call.invocation_id, time)
    return True
