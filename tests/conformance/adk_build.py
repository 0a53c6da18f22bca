"""Makes an app of google.adk's objects of a scenario."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext, exit_loop
from google.genai import types
from pydantic import PrivateAttr

from perdure.adk.loading import as_adk_app
from perdure.adk.models import model_step
from perdure.agents.adk_app import AdkApp
from perdure.models.base import LlmRequest as OwnRequest
from perdure.plan.nodes import TRANSFER
from tests.conformance.adk_agents import ProgramAgent, StepsAgent
from tests.conformance.build import RecordingModel, ScenarioParts, steps_here
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


class Recording(BaseLlm):
    """A model of google.adk's that answers as a scenario says."""

    _model: RecordingModel = PrivateAttr()

    def __init__(self, model: RecordingModel) -> None:
        super().__init__(model="scripted")
        self._model = model
        model.by_id = False

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        step = model_step.get()
        assert step is not None, "a model is asked in a step"
        request = OwnRequest(
            model="scripted",
            contents=[_as_in_1(content) for content in llm_request.contents],
            config=llm_request.config,
            agent=step.agent,
            call_index=step.index,
        )
        async for response in self._model.generate_content_async(request):
            yield LlmResponse.model_validate(response.model_dump(exclude_none=True))


_FOR_CONTEXT = "For context:"
_QUOTED = re.compile(r":\n<<<BEGIN_QUOTED_AGENT_CONTENT>>>\n(.*?)\n<<<END_QUOTED_AGENT_CONTENT>>>", re.DOTALL)


def _as_in_1(content: types.Content) -> types.Content:
    """Return a content as google.adk 1 has it: 2.x puts quotes around what other agents said."""
    parts = [
        part.model_copy(update={"text": _unquoted(part.text)}) if part.text else part for part in content.parts or []
    ]
    return content.model_copy(update={"parts": parts})


def _unquoted(text: str) -> str:
    return _FOR_CONTEXT if text.startswith(f"{_FOR_CONTEXT} below is ") else _QUOTED.sub(r": \1", text)


class AdkScenarioApp(ScenarioParts[AdkApp]):
    """A scenario's app of google.adk's agents."""

    _context = ToolContext
    _exit_loop = staticmethod(exit_loop)

    def _app(self, scenario: Scenario, app_name: str) -> AdkApp:
        config = ResumabilityConfig(is_resumable=scenario.app.resumable)
        root = self._agent(scenario.app.root)
        app = as_adk_app(App(name=app_name, root_agent=root, resumability_config=config), app_name)
        assert app is not None, "google.adk's App is one"
        return replace(app, steps_per_activity=steps_here.get())

    def _failure(self, message: str) -> Exception:
        # google.adk tries nothing again.
        return RuntimeError(message)

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
            model=Recording(self._model(spec)),
            instruction=spec.instruction,
            tools=[self._tool(name) for name in spec.tools if name != TRANSFER],
            output_key=spec.output_key,
            include_contents=spec.include_contents,
            disallow_transfer_to_parent=spec.disallow_transfer_to_parent,
            disallow_transfer_to_peers=spec.disallow_transfer_to_peers,
        )

    def _made(self, spec: ToolSpec, function: Callable[..., Any]) -> Any:
        if spec.long_running:
            return LongRunningFunctionTool(func=function)
        return FunctionTool(function, require_confirmation=spec.confirm)
