"""Makes a Perdure app of a scenario: scripted models that keep what they were asked, tools that count their runs."""

from __future__ import annotations

import copy
import inspect
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Generic, TypeVar

from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from perdure.agents.adk_app import AdkApp
from perdure.agents.custom import BaseAgent
from perdure.agents.definitions import App, LlmAgent, LoopAgent, ParallelAgent, ResumabilityConfig, SequentialAgent
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, ToolContext, exit_loop
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.plan.nodes import EXIT_LOOP, TRANSFER
from perdure.prove.conversations import refusals
from perdure.prove.ledger import Ledger, run_number
from tests.conformance.normal_form import Item, normalize_request
from tests.conformance.scenario import (
    AgentSpec,
    CustomSpec,
    LlmSpec,
    LoopSpec,
    ParallelSpec,
    ProgramSpec,
    Scenario,
    SequentialSpec,
    ToolSpec,
)
from tests.conformance.steps_agent import StepsAgent
from tests.prove.program_agent import ProgramAgent, fail, succeed

steps_here: ContextVar[int] = ContextVar("steps that an activity may take", default=1)

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict[str, Any],
}
MadeApp = TypeVar("MadeApp", App, AdkApp)

_NO_RETRY = RetryPolicy(maximum_attempts=1)
_RETRY_DEATHS = RetryPolicy(
    initial_interval=timedelta(milliseconds=50), maximum_attempts=3, non_retryable_error_types=["RuntimeError"]
)
"""What a tool itself raises is final, but one that died with its worker runs again."""


class ScenarioError(Exception):
    """A scenario asks for what cannot be built."""


class RecordingModel(ScriptedModel):
    """A scripted model that keeps the contents of every call in normal form, failing calls included."""

    by_id = True
    """Calls and responses come with ids; google.adk takes its own out."""

    def __init__(self, agent: str, steps: Sequence[dict[str, Any]]) -> None:
        super().__init__(steps)
        self.agent = agent
        self.requests: list[list[Item]] = []
        self.problems: list[str] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Keep the request, then answer as scripted."""
        number = len(self.requests) + 1
        if llm_request.call_index + 1 != number:
            self.problems.append(f"model call {number} of {self.agent} got step {llm_request.call_index + 1}")
        if number > len(self.steps):
            self.problems.append(f"{self.agent} made model call {number}, but its script has {len(self.steps)} steps")
        self.problems += refusals(llm_request.contents, by_id=self.by_id)
        self.keep(llm_request.call_index + 1, copy.deepcopy(normalize_request(llm_request.contents)))
        async for response in super().generate_content_async(llm_request, stream):
            yield response

    def keep(self, number: int, request: list[Item]) -> None:
        """Keep the contents of the model call of a number, from 1."""
        self.requests.append(request)

    def leftover(self) -> list[str]:
        """Return what was not called for, as a problem."""
        made, steps = len(self.requests), len(self.steps)
        return [f"{self.agent} made {made} model calls, but its script has {steps} steps"] if made < steps else []


class LedgerModel(RecordingModel):
    """Keeps the contents of its calls in the ledger of a proof, where they outlive the process."""

    def __init__(self, agent: str, steps: Sequence[dict[str, Any]], ledger: Ledger) -> None:
        super().__init__(agent, steps)
        self._ledger = ledger

    def keep(self, number: int, request: list[Item]) -> None:
        self._ledger.note(agent=self.agent, call=number, request=request)


class ScenarioParts(ABC, Generic[MadeApp]):
    """The app of a scenario, and what its models and tools saw. How agents are made is a subclass's."""

    _context: type[Any]
    """What tools get that look at it."""
    _exit_loop: Any
    """The tool that ends a loop."""

    def __init__(self, scenario: Scenario, app_name: str, ledger: Ledger | None = None) -> None:
        """Build the app.

        Args:
            scenario: The scenario.
            app_name: The app's name; scenarios that run at the same time need different ones.
            ledger: Of a proof, whose workers are killed: what models and tools saw goes there instead.

        Raises:
            ScenarioError: An agent names a tool that the scenario does not describe.
            DefinitionError: Perdure does not take the agent tree.
        """
        self.models: dict[str, RecordingModel] = {}
        self.tool_runs: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ledger = ledger
        self._retry = _NO_RETRY if ledger is None else _RETRY_DEATHS
        if steps_here.get() > 1:
            # A tool with options of its own is an activity of its own.
            self._retry = None
        self._specs = scenario.tools
        self.app: MadeApp = self._app(scenario, app_name)

    @abstractmethod
    def _app(self, scenario: Scenario, app_name: str) -> MadeApp:
        """Return the app."""

    @abstractmethod
    def _made(self, spec: ToolSpec, function: Callable[..., Any]) -> Any:
        """Return the tool of a function."""

    def _model(self, spec: LlmSpec) -> RecordingModel:
        if self._ledger is None:
            model = RecordingModel(spec.name, spec.script)
        else:
            model = LedgerModel(spec.name, spec.script, self._ledger)
        self.models[spec.name] = model
        return model

    def _tool(self, name: str) -> Any:
        if name == EXIT_LOOP:
            return self._exit_loop
        spec = self._specs.get(name)
        if spec is None:
            raise ScenarioError(f"an agent has the tool {name!r}, which the scenario does not describe under `tools`")
        if spec.long_running and spec.confirm:
            raise ScenarioError(f"tool {name!r} is long_running and has confirm, which ADK does not offer together")
        return self._made(spec, self._function(name, spec))

    def _failure(self, message: str) -> Exception:
        """Return what a tool raises: final, whatever its options say."""
        if self._retry is not None:
            return RuntimeError(message)
        return ApplicationError(message, type="RuntimeError", non_retryable=True)

    def _function(self, name: str, spec: ToolSpec) -> Callable[..., Any]:
        """Return a function that does what the scenario says, with the signature that it says."""

        def tool(**kwargs: Any) -> Any:
            with self._lock:
                self.tool_runs[name] += 1
                # In a proof a run that is repeated after a kill is the same run.
                run = self.tool_runs[name] if self._ledger is None else run_number.get()
            if run <= spec.fail_first:
                raise self._failure(f"run {run} of {name} fails, as the scenario says")
            context = kwargs.get("tool_context")
            if isinstance(context, self._context):
                _act(spec, context)
            return copy.deepcopy(spec.returns)

        annotations = {parameter: _TYPES[kind] for parameter, kind in spec.parameters.items()}
        if spec.state_delta or spec.escalate or spec.skip_summarization or spec.transfer_to_agent:
            annotations["tool_context"] = self._context
        tool.__name__ = tool.__qualname__ = name
        tool.__doc__ = f"Does what the scenario says of {name}."
        tool.__annotations__ = annotations
        tool.__dict__["__signature__"] = inspect.Signature(
            [
                inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
                for parameter, annotation in annotations.items()
            ]
        )
        return tool


@contextmanager
def taking(steps: int) -> Generator[None]:
    """Have the activities of scenarios that are built, or proved, inside of the block take so many steps."""
    before = steps_here.set(steps)
    try:
        yield
    finally:
        steps_here.reset(before)


class ScenarioApp(ScenarioParts[App]):
    """A scenario's app of Perdure's agents."""

    _context = ToolContext
    _exit_loop = staticmethod(exit_loop)

    def _app(self, scenario: Scenario, app_name: str) -> App:
        root = self._agent(scenario.app.root)
        config = ResumabilityConfig(is_resumable=scenario.app.resumable)
        activities = [succeed, fail] if any(isinstance(agent, ProgramSpec) for agent in scenario.agents) else []
        return App(
            name=app_name,
            root_agent=root,
            resumability_config=config,
            activities=activities,
            steps_per_activity=steps_here.get(),
        )

    def _agent(self, spec: AgentSpec) -> BaseAgent:
        fields: dict[str, Any] = {
            "name": spec.name,
            "description": spec.description,
            "sub_agents": [self._agent(child) for child in spec.sub_agents],
        }
        match spec:
            case LlmSpec():
                return self._llm_agent(spec, fields)
            case SequentialSpec():
                return SequentialAgent(**fields)
            case LoopSpec():
                return LoopAgent(**fields, max_iterations=spec.max_iterations)
            case ParallelSpec():
                return ParallelAgent(**fields)
            case CustomSpec():
                return StepsAgent(**fields, steps=list(spec.steps))
            case ProgramSpec():
                return ProgramAgent(**fields, program=list(spec.program))

    def _llm_agent(self, spec: LlmSpec, fields: dict[str, Any]) -> LlmAgent:
        return LlmAgent(
            **fields,
            model=self._model(spec),
            instruction=spec.instruction,
            # Every agent that can transfer gets that tool anyway.
            tools=[self._tool(name) for name in spec.tools if name != TRANSFER],
            output_key=spec.output_key,
            include_contents=spec.include_contents,
            disallow_transfer_to_parent=spec.disallow_transfer_to_parent,
            disallow_transfer_to_peers=spec.disallow_transfer_to_peers,
        )

    def _made(self, spec: ToolSpec, function: Callable[..., Any]) -> Any:
        if spec.long_running:
            return LongRunningFunctionTool(function, retry=self._retry)
        return FunctionTool(function, retry=self._retry, require_confirmation=spec.confirm)


def _act(spec: ToolSpec, context: Any) -> None:
    for key, value in spec.state_delta.items():
        context.state[key] = copy.deepcopy(value)
    if spec.escalate:
        context.actions.escalate = True
    if spec.skip_summarization:
        context.actions.skip_summarization = True
    if spec.transfer_to_agent:
        context.actions.transfer_to_agent = spec.transfer_to_agent
