"""Apps of scenarios whose models answer any log, and check what they are asked, and whose tools tell of their runs."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.genai import types

from perdure.agents import ToolContext
from perdure.models.base import LlmRequest, LlmResponse
from perdure.plan.nodes import TRANSFER
from perdure.prove.conversations import refusals
from tests.conformance.build import RecordingModel, ScenarioApp
from tests.conformance.scenario import LlmSpec, Scenario, ToolSpec


@dataclass(frozen=True)
class Ran:
    """A tool's run."""

    call_id: str
    tool: str
    args: dict[str, Any]


class Willing(RecordingModel):
    """Calls one of the tools that it is offered, or says something; behind a response it always says something."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        self.problems += refusals(contents, by_id=self.by_id)
        tools = [
            declaration
            for tool in llm_request.config.tools or []
            if isinstance(tool, types.Tool)
            for declaration in tool.function_declarations or []
        ]
        chosen = len(contents) % (len(tools) + 1)
        part = types.Part(text=f"{self.agent} is done.")
        if chosen < len(tools) and not _worked(contents):
            part = types.Part(function_call=_call(tools[chosen]))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def _worked(contents: Sequence[types.Content]) -> bool:
    """Return whether something was done since the user's last words."""
    for content in reversed(contents):
        texts = [part.text for part in content.parts or [] if part.text]
        if any(part.function_response for part in content.parts or []) or "For context:" in texts:
            return True
        if content.role == "user":
            return False
    return False


_VALUES: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True}


def _call(tool: types.FunctionDeclaration) -> types.FunctionCall:
    schema: dict[str, Any] = tool.parameters_json_schema or (tool.parameters.model_dump() if tool.parameters else {})
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    args: dict[str, Any] = {}
    for name, one in properties.items():
        values: list[Any] = one.get("enum") or []
        args[name] = values[0] if values else _VALUES.get(str(one.get("type")), "x")
    if tool.name == TRANSFER and not args:
        args = {"agent_name": "nobody"}
    return types.FunctionCall(name=tool.name, args=args)


class WillingApp(ScenarioApp):
    """A scenario's agents and tools, for any log."""

    def __init__(self, scenario: Scenario, app_name: str) -> None:
        self.runs: dict[str, list[Ran]] = defaultdict(list)
        """Of tools, by session."""
        super().__init__(scenario, app_name)

    def _model(self, spec: LlmSpec) -> RecordingModel:
        self.models[spec.name] = Willing(spec.name, [])
        return self.models[spec.name]

    def _function(self, name: str, spec: ToolSpec) -> Callable[..., Any]:
        inner = super()._function(name, spec)
        known = inspect.signature(inner).parameters

        def tool(*, tool_context: ToolContext, **kwargs: Any) -> Any:
            ran = Ran(tool_context.function_call_id or "", name, dict(kwargs))
            self.runs[tool_context.session_id].append(ran)
            return inner(**kwargs, **({"tool_context": tool_context} if "tool_context" in known else {}))

        own = inspect.Parameter("tool_context", inspect.Parameter.KEYWORD_ONLY, annotation=ToolContext)
        parameters = [*(one for key, one in known.items() if key != own.name), own]
        tool.__name__ = tool.__qualname__ = name
        tool.__doc__ = inner.__doc__
        tool.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        tool.__dict__["__signature__"] = inspect.Signature(parameters)
        return tool

    @property
    def problems(self) -> list[str]:
        """Why providers would have refused what the models were asked."""
        return [f"{name}: {problem}" for name, model in self.models.items() for problem in model.problems]
