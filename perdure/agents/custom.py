"""`BaseAgent`, from which custom agents derive, and the context that they get.

A custom agent's `_run_async_impl` runs in steps, between which the workflow runs what it waits for.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator
from pydantic_core import from_json

from perdure.agents.context import ReadonlyContext, ReadonlyState
from perdure.agents.validation import Definition, check_agent_name
from perdure.errors import DefinitionError
from perdure.journal.events import Event, EventActions

__all__ = [
    "BaseAgent",
    "BaseAgentState",
    "InvocationContext",
    "ReadonlyContext",
    "SessionSnapshot",
    "walk",
]

_StateT = TypeVar("_StateT", bound="BaseAgentState")


class BaseAgentState(BaseModel):
    """Base of a custom agent's checkpoints. ADK: `agents/base_agent.py`."""

    # As null, NaN would not come back into a field that holds numbers.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class BaseAgent(Definition):
    """Base of all agents. ADK: `agents/base_agent.py`.

    A custom agent is a subclass with its own `_run_async_impl`. Two agents are equal only if they are the same object.
    """

    name: str
    """A Python identifier, unique in the agent tree; `user` is reserved."""
    description: str = ""
    """What the agent can do; other agents' models read it when they choose whom to transfer to."""
    sub_agents: list[BaseAgent] = Field(default_factory=list["BaseAgent"])
    """Agents underneath; each can have one parent only."""

    _parent: BaseAgent | None = PrivateAttr(default=None)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        check_agent_name(name)
        return name

    def model_post_init(self, context: Any, /) -> None:
        """Become the parent of the sub-agents."""
        self.link_sub_agents()

    def link_sub_agents(self) -> None:
        """Become the parent of all sub-agents, those that were added later too.

        Raises:
            DefinitionError: One of them has another parent, or stands here twice.
        """
        for index, agent in enumerate(self.sub_agents):
            parent = agent.parent_agent
            if (parent is not None and parent is not self) or any(agent is other for other in self.sub_agents[:index]):
                raise DefinitionError(
                    f"agent {agent.name!r} is a sub-agent of {(parent or self).name!r} already, so it cannot be added "
                    f"to {self.name!r}; make a second agent with another name"
                )
        for agent in self.sub_agents:
            agent._parent = self

    @property
    def parent_agent(self) -> BaseAgent | None:
        """The agent that has this one among its `sub_agents`; `None` at the root."""
        return self._parent

    @property
    def root_agent(self) -> BaseAgent:
        """The topmost agent of the tree."""
        agent = self
        while agent.parent_agent is not None:
            agent = agent.parent_agent
        return agent

    def find_agent(self, name: str) -> BaseAgent | None:
        """Return the agent of this name, of this one and those underneath."""
        return next((agent for agent in walk(self) if agent.name == name), None)

    def find_sub_agent(self, name: str) -> BaseAgent | None:
        """Return the agent of this name, of those underneath."""
        return next((agent for agent in walk(self) if agent is not self and agent.name == name), None)

    async def run_async(self, parent_context: InvocationContext) -> AsyncGenerator[Event, None]:
        """Run the agent and yield its events. For custom agents, on their sub-agents: `agent.run_async(ctx)`.

        Perdure runs it as the plan says, pauses and resumes included: the generator waits while the agent waits.
        """
        async with aclosing(parent_context.run_agent(self)) as events:
            async for event in events:
                yield event

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Yield the events of a custom agent: an `async def` with `yield`. It runs in steps."""
        raise NotImplementedError(f"{type(self).__name__} has no _run_async_impl")

    @property
    def has_own_run(self) -> bool:
        """Whether the class brings its own `_run_async_impl`."""
        return type(self)._run_async_impl is not BaseAgent._run_async_impl

    def _load_agent_state(self, ctx: InvocationContext, state_type: type[_StateT]) -> _StateT | None:
        """Return the agent's last checkpoint in this invocation, if there is one."""
        state = ctx.agent_states.get(self.name)
        return None if state is None else state_type.model_validate(state)

    def _create_agent_state_event(self, ctx: InvocationContext) -> Event:
        """Return the event that logs the agent's state or end, as `ctx.set_agent_state` has set it."""
        return Event(
            invocation_id=ctx.invocation_id,
            author=self.name,
            branch=ctx.branch,
            actions=EventActions(
                agent_state=ctx.agent_states.get(self.name),
                end_of_agent=True if ctx.end_of_agents.get(self.name) else None,
            ),
        )

    def __eq__(self, other: object) -> bool:
        # Parent and child know each other, so comparing by value would not end.
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


def walk(agent: BaseAgent) -> Iterator[BaseAgent]:
    """Yield an agent and all underneath, depth-first, parents before children."""
    yield agent
    for child in agent.sub_agents:
        yield from walk(child)


class SessionSnapshot:
    """The session as a custom agent sees it: `ctx.session`. What it shows grows as events are logged."""

    def __init__(
        self,
        *,
        app_name: str,
        user_id: str,
        id: str,  # ADK's name
        read: Callable[[], tuple[Mapping[str, Any], Sequence[Event]]],
    ) -> None:
        """Look at a session.

        Args:
            app_name: The app.
            user_id: The user.
            id: The session.
            read: Returns the session's state and its event log, as they are now.
        """
        self.app_name = app_name
        self.user_id = user_id
        self.id = id
        self._read = read

    @property
    def state(self) -> Mapping[str, Any]:
        """The session's state, to be read; writing raises a `TypeError` that says how to write it."""
        return ReadonlyState(self._read()[0], "yield an Event(author=self.name, actions=EventActions(state_delta={…}))")

    @property
    def events(self) -> Sequence[Event]:
        """The session's event log, oldest first."""
        return tuple(self._read()[1])


class InvocationContext(abc.ABC):
    """The argument of `_run_async_impl`. ADK: `agents/invocation_context.py`."""

    def __init__(
        self,
        *,
        invocation_id: str,
        agent: BaseAgent,
        session: SessionSnapshot,
        branch: str | None = None,
        user_content: types.Content | None = None,
        is_resumable: bool = False,
    ) -> None:
        self.invocation_id = invocation_id
        """`e-…`."""
        self.agent = agent
        """The custom agent."""
        self.session = session
        self.branch = branch
        """The branch on which the agent runs; `None` outside of parallel agents."""
        self.user_content = user_content
        """The message that started the invocation."""
        self.is_resumable = is_resumable
        """Whether the app shows checkpoints and can be resumed."""
        self.agent_states: dict[str, dict[str, Any]] = {}
        """Checkpoints of this invocation as JSON, by agent."""
        self.end_of_agents: dict[str, bool] = {}
        """Whether an agent has ended in this invocation."""

    @property
    def app_name(self) -> str:
        """The app of the session."""
        return self.session.app_name

    @property
    def user_id(self) -> str:
        """The user of the session."""
        return self.session.user_id

    def set_agent_state(
        self, agent_name: str, *, agent_state: BaseAgentState | None = None, end_of_agent: bool = False
    ) -> None:
        """Set an agent's checkpoint or end; the event of `_create_agent_state_event` logs it. As in ADK.

        Args:
            agent_name: The agent.
            agent_state: Its checkpoint, after which it counts as not ended; ignored with `end_of_agent`. Without
                either, state and end are forgotten, so that the agent can run again.
            end_of_agent: The agent has ended, and needs no checkpoint any more.
        """
        self.agent_states.pop(agent_name, None)
        self.end_of_agents.pop(agent_name, None)
        if end_of_agent:
            self.end_of_agents[agent_name] = True
        elif agent_state is not None:
            self.agent_states[agent_name] = from_json(agent_state.model_dump_json())
            self.end_of_agents[agent_name] = False

    def should_pause_invocation(self, event: Event) -> bool:
        """Return `False`: a pause is an await here, so an agent gets control back only when a sub-agent is done."""
        return False

    @abc.abstractmethod
    async def run_activity(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function of `App(activities=[…])` as a recorded step, and return its result.

        For effects that must not happen again where the agent's code runs from its top again, and for values that must
        stay the same: a clock's, chance. Arguments and result travel as JSON.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """

    @abc.abstractmethod
    def run_agent(self, agent: BaseAgent) -> AsyncGenerator[Event, None]:
        """Run an agent underneath and yield its events; `agent.run_async(ctx)` does the same."""
