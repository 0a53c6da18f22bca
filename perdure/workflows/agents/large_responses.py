"""Shortens the responses of one model answer's calls until they fit into the log: no tool runs again for them."""

from __future__ import annotations

from collections.abc import Sequence

from google.genai import types

from perdure.errors import EffectFailed
from perdure.journal.entries import ToolOutput
from perdure.journal.events import Event
from perdure.journal.runs import AgentRun
from perdure.messages.kept_results import KeepResultInput
from perdure.rules import large_results
from perdure.rules.failures import public_text
from perdure.rules.large_results import shortened
from perdure.workflows.agents.scope import Scope


async def fit(
    scope: Scope,
    run: AgentRun,
    calls: Sequence[types.FunctionCall],
    outputs: dict[str, ToolOutput],
    long_running: frozenset[str] = frozenset(),
) -> None:
    """Shorten the largest of several outputs, in place, until one event takes them all."""

    async def shorten(call: types.FunctionCall, output: ToolOutput, length: int) -> ToolOutput:
        scope.progress.check_stopped()
        tool, key = call.name or "", f"{scope.invocation.id}/{call.id}"
        request = KeepResultInput(tool=tool, idempotency_key=key, output=output, length=length)
        try:
            return await scope.activities.keep_result(run.agent, request)
        except EffectFailed as failure:
            return shortened(tool, output, f"the rest was not kept: {public_text(failure.cause)}", length)

    around = Event(author=run.agent, branch=run.branch, invocation_id=scope.invocation.id)
    await large_results.fit(calls, outputs, long_running, around, shorten, scope.keep)
