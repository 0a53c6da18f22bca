"""Shortens the responses of one model answer's calls until they fit into the log: no tool runs again for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from google.genai import types

from perdure.errors import EffectFailed
from perdure.journal.entries import ToolOutput
from perdure.journal.events import Event
from perdure.journal.runs import AgentRun
from perdure.messages.oversized_results import KeepResultInput
from perdure.rules.failures import public_text
from perdure.rules.large_results import Remedy, beginning_length, shortened, too_large, without_actions
from perdure.rules.tool_responses import requested_confirmation
from perdure.workflows.agents.scope import Scope


async def fit(
    scope: Scope,
    run: AgentRun,
    calls: Sequence[types.FunctionCall],
    outputs: dict[str, ToolOutput],
    long_running: frozenset[str] = frozenset(),
) -> None:
    """Shorten the largest of several outputs, in place, until one event takes them all."""
    around = Event(author=run.agent, branch=run.branch, invocation_id=scope.invocation.id)
    tried: set[tuple[str, Remedy]] = set()
    while remedies := too_large(calls, outputs, long_running, around, tried):
        # Before anything is awaited: the tools have run, and the run may be cut off.
        for call in calls:
            if requested_confirmation(call, outputs[call.id or ""]) is None:
                scope.keep(call.id or "", outputs[call.id or ""])
        tried |= {(call.id or "", remedy) for call, remedy in remedies}
        length = beginning_length(len(calls))
        made = await asyncio.gather(
            *(_remedied(scope, run, call, outputs[call.id or ""], remedy, length) for call, remedy in remedies)
        )
        for (call, _), output in zip(remedies, made, strict=True):
            outputs[call.id or ""] = output
            scope.keep(call.id or "", output)


async def _remedied(
    scope: Scope, run: AgentRun, call: types.FunctionCall, output: ToolOutput, remedy: Remedy, length: int
) -> ToolOutput:
    tool = call.name or ""
    if remedy == "drop":
        return without_actions(tool, output)
    scope.progress.check_stopped()
    key = f"{scope.invocation.id}/{call.id}"
    request = KeepResultInput(tool=tool, idempotency_key=key, output=output, length=length)
    try:
        return await scope.activities.keep_result(run.agent, request)
    except EffectFailed as failure:
        return shortened(tool, output, f"the rest was not kept: {public_text(failure.cause)}", length)
