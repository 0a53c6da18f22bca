"""In which order the calls of one answer begin, and what each sees of what the others have written.

google.adk begins one call after the other: each once the one before it waits for something for the first time. By then
a tool that waits for nothing has ended, and one that runs an agent has copied the state for it.
ADK: `functions.handle_function_call_list_async`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.errors import EffectFailed
from perdure.journal.tool_output import ToolOutput
from perdure.messages.step_log import StepLog
from perdure.plan.contents import types
from perdure.plan.nodes import LlmNode
from perdure.workflows.agents.scope import Scope


class CallOrder:
    """The calls of one answer that run now, in order; Perdure's own agents' begin all at once."""

    def __init__(self, scope: Scope, node: LlmNode, calls: Sequence[types.FunctionCall]) -> None:
        """Take the calls before any has begun."""
        self._scope = scope
        self._begun = {call.id: asyncio.Event() for call in calls}
        self._open = set(self._begun)
        self._through = {call.id for call in calls if (tool := node.tool(call.name or "")) and tool.runs_through}
        self.returned: list[str] = []
        """Calls in the order in which they returned."""
        self.failed = False
        """A call has failed."""
        self.finished: set[str] = set()
        """Calls that google.adk, too, has come to the end of when it is told of a failure."""

    async def turn(self, call: types.FunctionCall) -> None:
        """Wait until those before a call have done what they do before they wait for anything."""
        for before, begun in self._begun.items():
            if before == call.id:
                return
            await begun.wait()

    def begun(self, call: types.FunctionCall) -> None:
        """Let those behind a call begin, unless its tool runs through."""
        if call.id not in self._through:
            self._begun[call.id].set()

    def end(self, call: types.FunctionCall, output: ToolOutput) -> None:
        """Let those that have not ended see what a call has written: no event holds it yet."""
        self._open.discard(call.id)
        self.returned.append(call.id or "")
        if not self.failed or call.id in self._through:
            self.finished.add(call.id or "")
        if self._scope.plan.adk is None or not self._open:
            return
        invocation, seen = self._scope.invocation, self._scope.projection.visible_state(self._scope.invocation.id)
        before = invocation.temp if call.id in invocation.kept else {}
        delta = output.actions.state_delta
        written = {key: value for key, value in delta.items() if key not in output.written_over} | dict(output.state)
        # What an earlier run of the workflow has kept may have been written over since.
        new = {key: value for key, value in written.items() if key not in before and seen.get(key, ...) != value}
        if new:
            self._scope.keep_state(new)

    def fail(self, failed: EffectFailed) -> None:
        """Let those that have not ended see what a call had written that failed, until a resume begins anew."""
        self.failed = True
        left = failed.left
        if isinstance(left, StepLog) and left.state:
            self._scope.keep_state(left.state)
            failed.left = left.model_copy(update={"state": {}})

    def over(self, call: types.FunctionCall) -> None:
        """Let those behind a call begin in any case."""
        self._begun[call.id].set()
