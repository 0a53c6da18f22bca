"""Says what becomes of a tool that failed: its model is told, or what it had returned by then is kept for a resume."""

from __future__ import annotations

from google.genai import types

from perdure.errors import EffectFailed
from perdure.journal.entries import AnswerAccepted, ToolOutput
from perdure.journal.events import EventActions
from perdure.messages.step_log import StepLog
from perdure.plan.nodes import ToolPlan
from perdure.rules.in_doubt import Doubt
from perdure.rules.intake import failed_answer
from perdure.rules.tool_responses import failure_output, unknown_output
from perdure.workflows.agents.scope import Scope
from perdure.workflows.run.log import user_event


def _is_told(tool: ToolPlan, failure: EffectFailed) -> bool:
    """Return whether the model is told of a failure: not of a tool that was never started."""
    return tool.on_failure == "tell_model" and not failure.not_started


def keep_returned(scope: Scope, call_id: str, failure: EffectFailed) -> None:
    """Keep what a tool had returned, if its step failed of what comes behind that: the tool does not run again."""
    if isinstance(failure.left, StepLog) and failure.left.returned is not None:
        scope.keep(call_id, failure.left.returned)


def told_failure(
    scope: Scope, tool: ToolPlan, call: types.FunctionCall, failure: EffectFailed, branch: str | None
) -> ToolOutput:
    """Return the output of a tool that failed: an error for the model.

    Of a long-running call that pauses the agent this is the answer, unless somebody has answered between two attempts.

    Raises:
        EffectFailed: The model is not told, and the step fails. What the tool had returned by then is kept.
    """
    if not _is_told(tool, failure):
        keep_returned(scope, call.id or "", failure)
        raise failure
    runs = scope.projection.tool_runs.get(call.id or "")
    output = failure_output(tool.name, failure.cause, runs.attempts if runs is not None else 1)
    if tool.kind != "long_running" or not scope.plan.resumable:
        return output
    known = scope.projection.calls.get(call.id or "")
    if known is not None and known.answer == "open":
        answer = failed_answer(call, output.result)
        event = user_event(scope.invocation.id, answer.content, EventActions(), branch)
        scope.log.append(AnswerAccepted(event=event.model_copy(update={"custom_metadata": answer.metadata})))
    silent = ToolOutput()
    scope.keep(call.id or "", silent)
    return silent


def told_doubt(scope: Scope, tool: ToolPlan | None, doubt: Doubt) -> ToolOutput | None:
    """Return the output of a call in doubt where nobody can be asked; `None` if the model is not to be told."""
    if scope.plan.resumable or tool is None or tool.on_failure != "tell_model":
        return None
    return unknown_output(tool.name, doubt.reason)
