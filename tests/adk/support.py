"""What the tests of google.adk's agents share: models of google.adk that answer by a script, apps of its objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import PrivateAttr

from perdure.adk.loading import as_adk_app
from perdure.agents.adk_app import AdkApp


class Script(BaseLlm):
    """A model that gives its answers one after the other, and keeps what it was asked."""

    _answers: list[list[types.Part]] = PrivateAttr()
    _requests: list[LlmRequest] = PrivateAttr(default_factory=list[LlmRequest])
    _streamed: list[bool] = PrivateAttr(default_factory=list[bool])

    def __init__(self, *answers: list[types.Part]) -> None:
        super().__init__(model="script")
        self._answers = list(answers)

    @property
    def requests(self) -> list[LlmRequest]:
        return self._requests

    @property
    def answers(self) -> list[list[types.Part]]:
        """What it will say."""
        return self._answers

    @property
    def streamed(self) -> list[bool]:
        """Whether each request asked for its answer piece by piece."""
        return self._streamed

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self._requests.append(llm_request)
        self._streamed.append(stream)
        yield LlmResponse(content=types.Content(role="model", parts=self._answers.pop(0)))


def say(words: str) -> list[types.Part]:
    return [types.Part(text=words)]


def call(*names: str, **args: Any) -> list[types.Part]:
    return [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name in names]


def agent(name: str, *answers: list[types.Part], **options: Any) -> LlmAgent:
    return LlmAgent(name=name, model=Script(*answers), **options)


def make_app(name: str, root: BaseAgent, *, resumable: bool = False, **options: Any) -> AdkApp:
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    app = as_adk_app(App(name=name, root_agent=root, resumability_config=config, **options), name)
    assert app is not None
    return app


def letters() -> Any:
    """Return a graph of google.adk 2 that drafts, asks whether to send, and says what was decided."""
    from google.adk import Workflow
    from google.adk.events.request_input import RequestInput

    def draft(node_input: str) -> str:
        return f"a letter about {node_input}"

    def ask(node_input: str) -> Generator[RequestInput]:
        yield RequestInput(message=f"Send {node_input}?", response_schema=None)

    def decide(node_input: str) -> str:
        return f"decided: {node_input}"

    return Workflow(name="letters", edges=[("START", draft, ask, decide)])
