"""The code of Perdure's own custom agents, as a run of it takes it."""

from __future__ import annotations

import json
import time
import typing
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from copy import copy
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json, to_jsonable_python

from perdure.agents.custom import BaseAgent, InvocationContext, SessionSnapshot
from perdure.compiler.registry import Registry
from perdure.errors import EffectFailed
from perdure.journal.compact_json import briefly, payload_size
from perdure.journal.entries import MAX_EVENT_BYTES, FailureCaught
from perdure.journal.events import Event, EventActions
from perdure.journal.nesting import MAX_LEVELS, is_too_deep
from perdure.journal.projection import Projection
from perdure.messages.session import CodeInput
from perdure.messages.step_log import NextCall
from perdure.plan.nodes import CustomNode, Node, Plan
from perdure.rules.checkpoints import is_hidden
from perdure.steps.base import Place, Snapshot, StepOutput
from perdure.steps.code.agent_code import Code
from perdure.steps.code.code_runs import CodeRun
from perdure.steps.code.past import Past
from perdure.steps.code.played_log import PlayedLog
from perdure.tracebacks import raised

_MOST_LEVELS = MAX_LEVELS - 2
"""Of an event, which has two levels around it as it travels."""


class NativeCode(Code):
    """A custom agent's code, with what it works with."""

    def __init__(self, at: Place, session: Snapshot, past: Past, agent: BaseAgent) -> None:
        node = past.plan.nodes[at.agent]
        assert isinstance(node, CustomNode), "only a custom agent has code"
        seen = past.seen_with(past.places.begin, at, session)
        self._agent = agent
        self._plan = past.plan
        self._session = _Session(seen, at.invocation_id)
        self._held: list[Event] = []
        self._held_bytes = 0
        self.context = CodeContext(self._session, at, session.projection, past, node, agent)

        async def state(projection: Projection) -> dict[str, Any]:
            return projection.visible_state(at.invocation_id)

        self.log = PlayedLog(at, self._session, past.places.begin, state)

    async def events(self) -> AsyncGenerator[object, None]:
        """Run the code."""
        run = self._agent._run_async_impl(self.context)  # pyright: ignore[reportPrivateUsage] -- ADK's name
        async with aclosing(run) as events:
            async for event in events:
                yield event

    def checked(self, event: object) -> Event:
        """Return an event that the code yielded, as JSON, and a copy: what it does to a value later changes no log.

        Raises:
            TypeError: It is none.
            ValueError: It is another author's, or has too many levels.
        """
        name = self.context.node.name
        if not isinstance(event, Event):
            raise TypeError(f"_run_async_impl yielded {type(event).__name__!r}; yield an Event")
        if event.id and self.is_given(event.id):
            return event
        if event.author not in ("", name):
            raise ValueError(f"an event of author {event.author!r}; yield events with author=self.name")
        actions = EventActions.model_validate(to_jsonable_python(event.actions, exclude_none=True))
        given: dict[str, Any] = {"author": name, "branch": event.branch or self.context.branch, "actions": actions}
        given |= {"id": str(uuid.uuid4()), "timestamp": time.time(), "invocation_id": self.context.invocation_id}
        event = event.model_copy(update=given)
        if is_too_deep(event, _MOST_LEVELS):
            raise ValueError(f"an event of more than {_MOST_LEVELS} lists and objects within each other; yield a text")
        return event

    def hides(self, event: Event) -> bool:
        """Return whether nobody is shown an event."""
        return is_hidden(self._plan, event)

    async def part(self, event: Event) -> Event:
        """Return a part of an event."""
        return event

    async def keep(self, event: Event, id: str) -> None:
        """Log an event."""
        event = event.model_copy(update={"id": id}) if id else event
        self._held.append(event)
        self._held_bytes += payload_size(event)
        if not self.hides(event):
            self._session.grow([event], self._session.state | event.actions.state_delta)

    @property
    def held(self) -> int:
        """How many events it has logged that no step has returned yet."""
        return len(self._held)

    @property
    def holds(self) -> int:
        """Bytes of what it has logged and no step has returned yet."""
        return self._held_bytes

    async def output(self) -> StepOutput:
        """Return what it has logged since the last step."""
        output = StepOutput(events=tuple(self._held))
        self._held, self._held_bytes = [], 0
        return output

    async def left(self, error: Exception) -> StepOutput:
        """Return what it leaves in the log."""
        return await self.output()

    def as_given(self, event: Event) -> Event:
        """Return a sub-agent's event."""
        return event

    def failed(self, failure: FailureCaught) -> EffectFailed:
        """Return what it is given of a sub-agent, or a function, that failed."""
        first, *beside = [EffectFailed(known.agent, known.step, known.cause) for known in failure.failures]
        first.beside, first.silent = beside, failure.silent
        return first

    def told(self, error: Exception) -> str:
        """Return what an error of its own says, and which line of its code raised it."""
        place = raised(error)[0].place
        return f"{error} ({place})" if place is not None else str(error)


class _Session:
    """A session as code sees it."""

    def __init__(self, seen: Projection, invocation_id: str) -> None:
        self.events = list(seen.own_events)
        self.state = seen.visible_state(invocation_id)

    def grow(self, events: Sequence[Event], state: dict[str, Any]) -> None:
        """Show what the log has gained, and the state behind that."""
        self.events += events
        self.state = state


class CodeContext(InvocationContext):
    """What a custom agent's code gets: ADK's context, which has the workflow run what it asks for."""

    run: CodeRun[NativeCode]
    """The run of the code."""

    def __init__(
        self, session: _Session, at: Place, projection: Projection, past: Past, node: CustomNode, agent: BaseAgent
    ) -> None:
        super().__init__(
            invocation_id=at.invocation_id,
            branch=at.branch,
            agent=agent,
            user_content=projection.invocations[at.invocation_id].message.content,
            is_resumable=past.plan.resumable,
            session=SessionSnapshot(
                app_name=at.key.app,
                user_id=at.key.user,
                id=at.key.session,
                read=lambda: (session.state, session.events),
            ),
        )
        self.node = node
        self._plan: Plan = past.plan
        if past.run.state is not None:
            self.agent_states[node.name] = past.run.state

    async def run_activity(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function of `App(activities=[…])` as a step of its own; its result is kept until the next checkpoint.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        name = fn.__name__
        if name not in self._plan.activities:
            raise EffectFailed(self.node.name, name, f"{name!r} is not listed in App(activities=[…]); add it there")
        result_type = typing.get_type_hints(fn).get("return", Any)
        call = CodeInput(name=name, args=args, kwargs=kwargs)
        if is_too_deep(call):
            cause = (
                f"its arguments have more than {MAX_LEVELS} lists and objects within each other; pass a text instead"
            )
            raise EffectFailed(self.node.name, name, cause)
        if payload_size(call) > MAX_EVENT_BYTES:
            cause = f"its arguments have {payload_size(call) / 1e6:.1f} MB; pass a reference to the data instead"
            raise EffectFailed(self.node.name, name, cause)
        kept = await self.run.call(_as_json(call))
        return TypeAdapter(result_type).validate_python(kept.result)

    async def run_agent(self, agent: BaseAgent) -> AsyncGenerator[Event, None]:
        """Run an agent underneath and yield its events; those of before come again, but are not logged again.

        Raises:
            EffectFailed: A step underneath failed.
        """
        node = self._node_of(agent)
        if node is None:
            raise LookupError(f"agent {agent.name!r} is no sub-agent of {self.node.name!r}; add it to its sub_agents")
        async with aclosing(self.run.run_agent(node.name, self.branch)) as events:
            async for event in events:
                yield event

    def _node_of(self, agent: BaseAgent) -> Node | None:
        """Return a sub-agent's node: by name, or by place if it was renamed under the pinned plan."""
        node = self._plan.nodes.get(agent.name)
        if node is not None:
            return node if self.node.name in self._plan.path(node.name)[:-1] else None
        places = [index for index, child in enumerate(self.agent.sub_agents) if child is agent]
        same_length = len(self.agent.sub_agents) == len(self.node.sub_agents)
        return self.node.sub_agents[places[0]] if places and same_length else None


def _as_json(call: CodeInput) -> NextCall:
    with briefly():
        data = to_json((call.args, call.kwargs), by_alias=True, exclude_none=True, bytes_mode="base64")
    args, kwargs = json.loads(data)
    return NextCall(name=call.name, args=args, kwargs=kwargs, arguments=call.arguments)


def begin_code(registry: Registry, at: Place, session: Snapshot, past: Past) -> CodeRun[NativeCode]:
    """Return a run of an agent's code, which has not begun.

    Raises:
        NotRegistered: This process lacks the agent.
    """
    node = past.plan.nodes[at.agent]
    agent = registry.custom_agent(at.agent, node.code if isinstance(node, CustomNode) else None)
    if agent.name != at.agent:
        # It has another name by now than in the plan that the invocation is pinned to.
        agent = copy(agent)
        agent.name = at.agent
    code = NativeCode(at, session, past, agent)
    run = code.context.run = CodeRun(at, code)
    return run
