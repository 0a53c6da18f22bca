"""`App`, `LlmAgent`, `SequentialAgent`, `LoopAgent`, `ParallelAgent`. Names and fields are ADK's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal, cast

from google.genai import types
from pydantic import BaseModel, Field, field_validator

from perdure.agents.context import ReadonlyContext
from perdure.agents.custom import BaseAgent
from perdure.agents.foreign_tools import taken
from perdure.agents.retries import RetryPolicy
from perdure.agents.structured import Structured
from perdure.agents.validation import Definition
from perdure.errors import DefinitionError
from perdure.journal.events import USER
from perdure.models.base import BaseLlm
from perdure.plan.nodes import MAX_LLM_CALLS, MAX_STEPS, MaxLlmCalls

InstructionProvider = Callable[[ReadonlyContext], str | Awaitable[str]]
"""A function that returns an instruction; it runs in an activity, before each model call."""


class LlmAgent(BaseAgent):
    """An agent that a model drives. ADK: `agents/llm_agent.py`."""

    model: str | BaseLlm = ""
    """A model's name or a model; without one, that of the nearest LLM agent above."""
    instruction: str | InstructionProvider = ""
    """What the model is told to do; `{key}` and `{key?}` stand for session state. The text of a function is taken as
    it is."""
    tools: list[Any] = Field(default_factory=list[Any])
    """What the model may call: functions, which become `FunctionTool`s, tools, and tools of google.adk's."""
    output_key: str | None = None
    """Key of session state that takes the text of the agent's answer; with an `output_schema`, its value."""
    input_schema: type[BaseModel] | None = None
    """What the agent is asked where an `AgentTool` runs it: its fields are the tool's arguments."""
    output_schema: Any = None
    """The form of the agent's answers: a pydantic model, another type such as `list[Model]`, or a JSON schema, by which
    nothing is checked. The model is asked for JSON, and asked again, three times at the most, where its answer does not
    fit; then the turn fails. Beside other tools it answers by calling `set_model_response`, as in ADK."""
    include_contents: Literal["default", "none"] = "default"
    """`none`: the model sees the current turn only, not the session's log."""
    generate_content_config: types.GenerateContentConfig | None = None
    """Temperature, safety settings and so on; tools and instruction have fields of their own."""
    disallow_transfer_to_parent: bool = False
    """The model cannot transfer to the parent; a later message does not go to this agent either."""
    disallow_transfer_to_peers: bool = False
    """The model cannot transfer to the parent's other sub-agents."""
    max_llm_calls: MaxLlmCalls | None = None
    """Model calls of this agent in an invocation, beside what the app allows all agents. Default: any number."""
    model_retry: RetryPolicy | None = None
    """How a model call is tried again that its provider may answer later. Default: as the app says."""
    model_timeout: timedelta | None = None
    """Time of one attempt of a model call. Default: as the app says."""

    @field_validator("tools", mode="before")
    @classmethod
    def _take_tools(cls, tools: object) -> object:
        """Take google.adk's tools, too, and functions that `durable` has marked."""
        return [taken(tool) for tool in cast("list[object]", tools)] if isinstance(tools, list) else tools

    def structured_output(self) -> Structured | None:
        """Return the type of the agent's answers, if it has one.

        Raises:
            DefinitionError: It has no JSON schema.
        """
        given = self.output_schema
        return Structured(given, f"agent {self.name!r}: output_schema") if given else None

    def resolved_model(self) -> str | BaseLlm:
        """Return the agent's model, or else that of the nearest LLM agent above that has one.

        Raises:
            DefinitionError: There is none.
        """
        agent: BaseAgent | None = self
        while agent is not None:
            if isinstance(agent, LlmAgent) and agent.model:
                return agent.model
            agent = agent.parent_agent
        raise DefinitionError(
            f"agent {self.name!r} has no model, and neither has an LLM agent above it; give it one, as in "
            "LlmAgent(model='gemini-2.5-flash', …)"
        )


Agent = LlmAgent


class SequentialAgent(BaseAgent):
    """Runs its sub-agents one after the other. ADK: `agents/sequential_agent.py`."""


class LoopAgent(BaseAgent):
    """Runs its sub-agents over and over, until one of them escalates. ADK: `agents/loop_agent.py`."""

    max_iterations: int | None = None
    """Rounds after which it ends all the same; `None` is without limit."""


class ParallelAgent(BaseAgent):
    """Runs its sub-agents at once, each on a branch of its own. ADK: `agents/parallel_agent.py`."""


class ResumabilityConfig(Definition):
    """Settings of an app's resumption. ADK: `apps/_configs.py`."""

    is_resumable: bool = False
    """Long-running calls pause an invocation, and a failed or stopped one can be resumed."""


class App(Definition):
    """An agent tree with a name: what a worker serves and a `Runner` talks to. ADK: `apps/app.py`."""

    name: str
    """A Python identifier: the workflow type and the task queue of the app's sessions; `user` is reserved."""
    root_agent: BaseAgent
    """The agent that gets the messages."""
    resumability_config: ResumabilityConfig | None = None
    activities: list[Callable[..., Any]] = Field(default_factory=list[Callable[..., Any]])
    """Functions that custom agents may run by `ctx.run_activity`: defined in a module, sync or async."""
    max_llm_calls: MaxLlmCalls = MAX_LLM_CALLS
    """Model calls of all agents in an invocation, after which it waits for a resume (in an app that is not resumable it
    fails); 0 and less are without limit. Default: 500. ADK: `RunConfig.max_llm_calls`."""
    model_retry: RetryPolicy | None = None
    """How a model call is tried again that its provider may answer later; `maximum_attempts=0` is without end. A pause
    that the provider asks for counts before it. Default: 15 attempts, some eight minutes."""
    model_timeout: timedelta | None = None
    """Time of one attempt of a model call. Default: 10 minutes."""

    steps_per_activity: int = Field(default=1, ge=1, le=MAX_STEPS)
    """How many steps of an LLM agent one activity may take: a model call, its tools, the next model call, and so on; at
    most 100. Each is kept before the next begins, but in no history yet: a session that is terminated, reset or over
    a time limit meanwhile loses what the activity had done. Default: 1, each step an activity of its own
    (docs/performance.md)."""

    errors: Literal["hidden", "shown"] = "hidden"
    """What end users are told of a failure by an HTTP API that asks for credentials: `hidden`, type and reference;
    `shown`, the error's own text. Operators always read the text."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.isidentifier():
            raise DefinitionError(f"app name {name!r} is no Python identifier; use letters, digits and underscores")
        if name == USER:
            raise DefinitionError(f"no app can be named {USER!r}; choose another name")
        return name

    @property
    def is_resumable(self) -> bool:
        """Whether the app is resumable."""
        return self.resumability_config is not None and self.resumability_config.is_resumable
