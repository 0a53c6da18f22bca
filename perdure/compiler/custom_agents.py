"""Checks custom agents: their method, and the agents that they hold."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from perdure.agents.custom import BaseAgent
from perdure.errors import DefinitionError


def check_custom_agent(agent: BaseAgent, agents: Sequence[BaseAgent]) -> None:
    """Check a custom agent: its method, and what it holds.

    Args:
        agent: The custom agent.
        agents: All agents of the tree.

    Raises:
        DefinitionError: Something is wrong with it.
    """
    if not inspect.isasyncgenfunction(inspect.unwrap(agent._run_async_impl)):  # pyright: ignore[reportPrivateUsage] -- ADK's name
        raise DefinitionError(
            f"agent {agent.name!r}: _run_async_impl of {type(agent).__name__} is no async generator; write it as "
            "`async def _run_async_impl(self, ctx)` with `yield`"
        )
    for field in type(agent).model_fields:
        for held in _agents_in(getattr(agent, field)):
            if not any(held is known for known in agents):
                raise DefinitionError(
                    f"agent {agent.name!r} holds agent {held.name!r} in its field {field!r}, but not in its tree; add "
                    "it to sub_agents, so that it can be run"
                )


def _agents_in(value: object) -> Iterator[BaseAgent]:
    if isinstance(value, BaseAgent):
        yield value
    elif isinstance(value, Mapping):
        yield from _agents_in(list(cast(Mapping[Any, object], value).values()))
    elif isinstance(value, list | tuple):
        for item in cast(list[object], value):
            yield from _agents_in(item)
