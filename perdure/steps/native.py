"""The steps of Perdure's own agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.artifacts.service import ArtifactService
from perdure.compiler.registry import Registry
from perdure.journal.events import Event
from perdure.journal.tool_output import ToolOutput
from perdure.steps.base import Callback, ModelCall, Place, Snapshot, StepOutput, ToolCall
from perdure.steps.code.code_runs import CodeRun
from perdure.steps.code.native_code import NativeCode, begin_code
from perdure.steps.code.past import Past
from perdure.steps.code.suspended_code import SuspendedCode
from perdure.steps.model_call import ModelCalls
from perdure.steps.tool_call import ToolCalls
from perdure.steps.tool_results import ToolResults
from perdure.steps.user_code import CodeRunner
from perdure.streams.drafts import Drafts
from perdure.streams.hub import Writer


class NativeSteps:
    """Does the steps of one app by the code that its plan names. Implements `Steps`."""

    def __init__(
        self,
        registry: Registry,
        tools: CodeRunner,
        models: CodeRunner,
        results: ToolResults,
        artifacts: ArtifactService | None = None,
    ) -> None:
        self._registry = registry
        self._models = ModelCalls(registry, models, artifacts)
        self._tools = ToolCalls(registry, tools, results, artifacts)
        self._code = tools
        self._suspended = SuspendedCode(self._begin_code)
        tools.at_close(self._suspended.close)

    async def _begin_code(self, at: Place, session: Snapshot, past: Past) -> CodeRun[NativeCode]:
        return begin_code(self._registry, at, session, past)

    async def call_model(self, at: Place, session: Snapshot, call: ModelCall, writer: Writer | None) -> StepOutput:
        """Ask an agent's model."""
        return await self._models.call(at, session, call, writer)

    def prepare_model_call(self, at: Place, session: Snapshot, call: ModelCall) -> None:
        """Make the contents of its request."""
        self._models.prepare(at, session, call)

    async def callback(
        self,
        at: Place,
        session: Snapshot,
        which: Callback,
        event: Event | None = None,
        drafts: Drafts | None = None,
    ) -> StepOutput:
        """Run a custom agent's code. Perdure's own agents have no callbacks, so that of a plan is one of other code.

        Raises:
            CodeFailed: The code raised.
            NotRegistered: This process lacks the agent, or it is asked for a callback.
        """
        if which == "run":
            return await self._code.run_async(self._suspended.run(at, session, drafts))
        raise self._registry.missing(f"agent {at.agent!r} has no callback {which!r}")

    async def authorize(self, at: Place, session: Snapshot, requests: Sequence[str]) -> StepOutput:
        """Take up none: tools of Perdure's own ask for no credentials, so the plan is one of other code.

        Raises:
            NotRegistered: Always.
        """
        raise self._registry.missing(f"agent {at.agent!r} asks for no credentials")

    async def run_tool(self, at: Place, call: ToolCall) -> ToolOutput:
        """Run a tool's function."""
        return await self._tools.run(at, call)

    async def reconcile(self, at: Place, call: ToolCall) -> ToolOutput:
        """Ask a tool's `reconcile` function what became of a call."""
        return await self._tools.reconcile(at, call)

    async def remind(self, at: Place, call: ToolCall) -> None:
        """Run a long-running tool's reminder."""
        await self._tools.remind(at, call)

    async def run_function(self, at: Place, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a function of `App(activities=[…])`."""
        return await self._tools.function(name, args, kwargs)
