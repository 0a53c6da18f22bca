"""The models of a google.adk app's agents: others in their place, for proofs and tests, and a look at what is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from pydantic import PrivateAttr

from perdure.adk.graphs import given_as
from perdure.adk.trees import walk
from perdure.agents.adk_app import AdkApp, AdkModels
from perdure.errors import DefinitionError
from perdure.models.base import BaseLlm as OwnModel
from perdure.models.base import LlmRequest as OwnRequest


@dataclass(frozen=True)
class ModelStep:
    """Which call of a model a step makes."""

    agent: str
    index: int
    """How many model calls of the agent came back before, over the whole session."""


model_step: ContextVar[ModelStep | None] = ContextVar("model_step", default=None)
"""Set while an agent's step asks its model; google.adk's requests do not tell."""


class OwnLlm(BaseLlm):
    """Answers as a model of Perdure's does: one of the agent's that asks."""

    _inner: OwnModel = PrivateAttr()

    def __init__(self, inner: OwnModel) -> None:
        """Take its place."""
        super().__init__(model=inner.model)
        self._inner = inner

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield what the model answers to the call that is made.

        Raises:
            ModelError: As the model says.
            DefinitionError: No agent's step asks, but code of the app's own.
        """
        step = model_step.get()
        if step is None:
            raise DefinitionError(f"{self.model!r} can be asked by its agent only, not by an app's own code")
        request = OwnRequest(
            model=self.model,
            contents=llm_request.contents,
            config=llm_request.config,
            agent=step.agent,
            call_index=step.index,
        )
        async for response in self._inner.generate_content_async(request, stream):
            yield LlmResponse.model_validate(response.model_dump(exclude_none=True))


class AppModels(AdkModels):
    """The models of one app's agents, and of those that tools run (`AgentTool`)."""

    def __init__(self, app: AdkApp) -> None:
        self._app = app
        self._agents = list(_with_tools(app.app.root_agent))

    def by_name(self) -> dict[str, str]:
        """Return the agents whose model is known by its name only, and that name."""
        models = {agent.name: _nearest(agent) for agent in self._agents}
        return {name: model for name, model in models.items() if not isinstance(model, BaseLlm)}

    def replace(self, models: Mapping[str, OwnModel]) -> Callable[[], None]:
        """Put models in the place of agents' own; returns what takes that back.

        Raises:
            DefinitionError: There is no such agent.
        """
        names = dict.fromkeys(agent.name for agent in self._agents)
        unknown = sorted(set(models) - set(names))
        if unknown:
            raise DefinitionError(
                f"the script is for {unknown[0]!r}, but app {self._app.name!r} has no such LLM agent; it has"
                f" {', '.join(names) or 'none'}"
            )
        given = [agent.model for agent in self._agents]
        # Before any is replaced: an agent without a model of its own has its parent's, but not its parent's script.
        now = [OwnLlm(models[agent.name]) if agent.name in models else _nearest(agent) for agent in self._agents]

        def put(taken: Sequence[str | BaseLlm]) -> None:
            for agent, model in zip(self._agents, taken, strict=True):
                agent.model = model
                given_agent = given_as(agent)
                if isinstance(given_agent, LlmAgent):
                    # Code that runs it as a node is to run one that is known by its fields.
                    given_agent.model = model

        put(now)
        return lambda: put(given)

    def watch(self, tell: Callable[[str, Sequence[types.Content]], None]) -> None:
        """Have `tell` called with each request: whose it is, and its contents."""
        for agent in self._agents:
            if not isinstance(agent.model, BaseLlm):
                agent.model = agent.canonical_model
        for model in {id(agent.model): agent.model for agent in self._agents}.values():
            assert isinstance(model, BaseLlm)
            # On the object: what asks for its class finds it unchanged.
            vars(model)["generate_content_async"] = _watched(model.generate_content_async, tell)


def _with_tools(root: BaseAgent) -> Iterator[LlmAgent]:
    """Yield the LLM agents of a tree, and of those that its tools run."""
    for agent in walk(root):
        if isinstance(agent, LlmAgent):
            yield agent
            for tool in cast("list[object]", agent.tools):  # pyright: ignore[reportUnknownMemberType]
                if isinstance(tool, AgentTool):
                    yield from _with_tools(tool.agent)


def _nearest(agent: LlmAgent) -> str | BaseLlm:
    """Return an agent's model, or that of the nearest agent above that has one."""
    above = agent
    while not above.model and isinstance(above.parent_agent, LlmAgent):
        above = above.parent_agent
    return above.model


def _watched(
    generate: Callable[..., AsyncGenerator[LlmResponse, None]], tell: Callable[[str, Sequence[types.Content]], None]
) -> Callable[..., AsyncGenerator[LlmResponse, None]]:
    async def watched(llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        step = model_step.get()
        tell(
            f"model call {step.index + 1} of {step.agent}" if step else "a model call inside of a tool",
            llm_request.contents,
        )
        async for response in generate(llm_request, stream):
            yield response

    return watched
