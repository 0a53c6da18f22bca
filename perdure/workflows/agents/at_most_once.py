"""Starts each call of an at-most-once tool once, and asks about one that was cut off."""

from __future__ import annotations

from collections.abc import Sequence

from google.genai import types

from perdure.errors import EffectFailed
from perdure.journal.entries import AnswerAccepted, ToolOutput
from perdure.journal.questions import times_asked
from perdure.journal.runs import AgentRun, Standing
from perdure.journal.tool_runs import idempotency_key
from perdure.messages.session import ToolInput
from perdure.plan.nodes import ToolOptions, ToolPlan
from perdure.rules.in_doubt import (
    CUT_OFF,
    UNDECIDED,
    Doubt,
    doubt_request,
    leaves_doubt,
    reconciled_output,
)
from perdure.rules.next_call import InDoubt, Runs
from perdure.workflows.agents.scope import Scope
from perdure.workflows.agents.tool_failures import keep_returned
from perdure.workflows.agents.tool_runs import run_tool, with_journal

_NOT_RESUMABLE = (
    "it is not known whether the call took effect ({reason}), and nobody can be asked in an app that is not resumable;"
    " set ResumabilityConfig(is_resumable=True), or give the tool a reconcile function that can tell"
)


async def run_once(
    scope: Scope, what: Runs | InDoubt, call: types.FunctionCall, given: ToolInput
) -> ToolOutput | Doubt:
    """Return the output of an at-most-once call that is started now, or is in doubt; else the doubt about it.

    Raises:
        EffectFailed: The tool raised; then a resume finds the call in doubt.
    """
    if what.again is not None:
        given = given.model_copy(update={"again": _answer_id(scope, what.again)})
    if isinstance(what, Runs):
        try:
            return await run_tool(scope, what.tool, given)
        except EffectFailed as failure:
            keep_returned(scope, given.function_call_id, failure)
            if given.function_call_id in scope.invocation.kept or not leaves_doubt(
                what.tool, silent=failure.silent, not_started=failure.not_started
            ):
                raise
    return await _reconcile(scope, what.tool, call, given)


def _answer_id(scope: Scope, request_id: str) -> str:
    """Return what tells a person's answer from any other: a reset may bring one again, to a question of the same id."""
    for entry in reversed(scope.projection.entries):
        if isinstance(entry, AnswerAccepted) and any(
            response.id == request_id for response in entry.event.get_function_responses()
        ):
            return f"{request_id}/{entry.request_id or ''}"
    return request_id


async def _reconcile(scope: Scope, tool: ToolPlan, call: types.FunctionCall, given: ToolInput) -> ToolOutput | Doubt:
    """Ask the tool's own function what became of a call, if it has one."""
    given = _as_begun(scope, given)
    runs = scope.projection.tool_runs.get(given.function_call_id)
    reason = (runs and runs.cause) or CUT_OFF
    # What it would look for is this call's key, and it is another call that is in doubt.
    if tool.reconcile and not (runs and runs.outcome == "lost"):
        scope.progress.check_stopped()
        options = tool.options.model_copy(update={"max_attempts": ToolOptions().max_attempts})
        try:
            request = with_journal(scope, given.model_copy(update={"kind": "reconcile"}))
            with scope.slice_under_way(request.journal) as witness:
                output = await scope.activities.tool(request, options, witness)
        except EffectFailed as failure:
            reason = f"{reason}; its reconcile function failed: {failure.cause}"
        else:
            known = reconciled_output(output)
            if known is not None:
                return known
            reason = f"{reason}; {UNDECIDED}"
    return Doubt(call, given.idempotency_key, scope.invocation.started[given.function_call_id].timestamp, reason)


def _as_begun(scope: Scope, given: ToolInput) -> ToolInput:
    """Return a call with the key under which it was started: if its log was imported since, it would get another."""
    own = idempotency_key(given.invocation_id, given.function_call_id)
    salt, _, _ = scope.invocation.started[given.function_call_id].idempotency_key.rpartition(f"/{own}")
    return given.model_copy(update={"key_salt": salt})


def _request_ids(scope: Scope, doubts: Sequence[Doubt]) -> list[str]:
    """Return ids that whoever reads the history can derive too, so that nobody is asked twice about one call."""
    targets = [(doubt.call.id, times_asked(scope.projection.events, doubt.call.id or "")) for doubt in doubts]
    return [next(scope.log.call_ids("doubt", *target)) for target in targets]


async def ask(scope: Scope, run: AgentRun, doubts: Sequence[Doubt], step: Standing) -> None:
    """Ask a person about calls in doubt, where nobody asked yet, and wait for all of the answers.

    Raises:
        EffectFailed: The app is not resumable, so that nothing can wait.
    """
    new = [doubt for doubt in doubts if doubt.request_id is None]
    if not scope.plan.resumable and new:
        raise EffectFailed(run.agent, new[0].call.name or "", _NOT_RESUMABLE.format(reason=new[0].reason))
    asked = [doubt.request_id for doubt in doubts if doubt.request_id is not None]
    if new:
        request = doubt_request(new, _request_ids(scope, new))
        request = request.model_copy(update={"author": run.agent, "branch": run.branch})
        logged = await scope.log_event(request, run)
        step.doubts.append(logged)
        asked += [call.id or "" for call in logged.get_function_calls()]
    await scope.wait_for(asked)
