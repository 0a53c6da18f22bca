"""Runs `AgentTool` without its agent: up to where it would run it, and on from there, with what the agent logged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from copy import copy
from functools import cache
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event as AdkEvent
from google.adk.events.event_actions import EventActions as AdkActions
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from perdure.adk.events import actions_of, changed_state, plain_state, to_adk
from perdure.journal.events import USER, EventActions
from perdure.journal.projection import Projection
from perdure.journal.tool_output import AgentAsked

_RUN = "_perdure_run"
"""Where a stand-in keeps what it runs."""

_Run = Callable[[BaseAgent, InvocationContext], AsyncGenerator[AdkEvent, None]]


class Asks(BaseException):
    """A tool is to run its agent. No callback for errors may take this for one."""

    def __init__(self, asked: AgentAsked) -> None:
        """Say what the agent is told."""
        super().__init__()
        self.asked = asked


class _Reached(BaseException):
    def __init__(self, content: types.Content, state: dict[str, Any]) -> None:
        super().__init__()
        self.content = content
        self.state = state


def asking(tool: AgentTool, logged: dict[str, Any]) -> AgentTool:
    """Return a tool that raises `Asks` where it would run its agent; `logged` is the state in the log."""

    async def reached(_: BaseAgent, context: InvocationContext) -> AsyncGenerator[AdkEvent, None]:
        content = context.user_content
        assert content is not None, "a tool tells its agent something"
        raise _Reached(content, dict(context.session.state))
        yield  # pyright: ignore[reportUnreachable] -- makes it a generator

    async def run_async(self: AgentTool, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        # The tool's own code may change it.
        given, actions = dict(args), tool_context.actions.model_copy(deep=True)
        try:
            return await type(tool).run_async(self, args=args, tool_context=tool_context)
        except _Reached as told:
            asked = AgentAsked(
                content=told.content,
                state=changed_state(logged, told.state),
                args=plain_state(given),
                actions=actions_of(actions),
            )
            raise Asks(asked) from None

    return _changed(tool, run_async, reached)


def answered(tool: AgentTool, scope: Projection, invocation_id: str) -> AgentTool:
    """Return a tool that, where it would run its agent, gets what that has logged, or fails as that did."""
    began, invocation = scope.began, scope.invocations[invocation_id]
    assert began is not None, "it is the projection of a scope"
    logged = [event for event in scope.own_events if event.author != USER]

    async def log(_: BaseAgent, __: InvocationContext) -> AsyncGenerator[AdkEvent, None]:
        for event in logged:
            # Whatever waited there has been answered, and whom control was handed to has worked.
            actions = event.actions.model_copy(update={"transfer_to_agent": None})
            yield to_adk(event.model_copy(update={"long_running_tool_ids": None, "actions": actions}))
        if invocation.failures:
            raise _as_raised(invocation.failures[0].cause)

    async def run_async(self: AgentTool, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        # In place: callbacks behind the tool are to see them, too.
        args.clear()
        args.update(began.asked.args)
        restore(tool_context, began.asked.actions)
        result = await type(tool).run_async(self, args=args, tool_context=tool_context)
        for event in logged:
            tool_context.actions.artifact_delta.update(event.actions.artifact_delta)
        return result

    return _changed(tool, run_async, log)


def without_before(context: InvocationContext) -> None:
    """Let no callback run before the tool: they have run, and the call's arguments are what they left."""

    async def nothing(**_: object) -> None:
        return None

    assert context.agent is not None, "a step has an agent"
    context.agent = context.agent.model_copy(update={"before_tool_callback": None})
    quiet: PluginManager = copy(context.plugin_manager)
    quiet.run_before_tool_callback = nothing
    context.plugin_manager = quiet


def restore(context: ToolContext, actions: EventActions) -> None:
    """Set through a tool's context what had been set in an earlier step."""
    data = actions.model_dump(mode="json", by_alias=True, exclude_none=True)
    known = AdkActions.model_validate({key: value for key, value in data.items() if value})
    context.state.update(known.state_delta)
    for name in known.model_fields_set - {"state_delta"}:
        setattr(context.actions, name, getattr(known, name))


def _changed(tool: AgentTool, run_async: Callable[..., Any], run: _Run) -> AgentTool:
    """Return a copy of a tool whose agent runs `run`; the callbacks and plugins around that have steps of their own."""
    changed = copy(tool)
    changed.__class__ = type(type(tool).__name__, (type(tool),), {"run_async": run_async})
    changed.agent = _stand_in(tool.agent, run)
    changed.include_plugins = False
    return changed


def _stand_in(agent: BaseAgent, run: _Run) -> BaseAgent:
    stand_in = agent.model_copy(update={"before_agent_callback": None, "after_agent_callback": None})
    # It stays what it is to those who ask for its class and its schemas.
    object.__setattr__(stand_in, "__class__", _kind(type(agent)))
    object.__setattr__(stand_in, _RUN, run)
    return stand_in


@cache
def _kind(kind: type[BaseAgent]) -> type[BaseAgent]:
    """Return the class of stand-ins for agents of a class: pydantic takes its time to make one."""

    def run(self: BaseAgent, context: InvocationContext) -> AsyncGenerator[AdkEvent, None]:
        running: _Run = self.__dict__[_RUN]
        return running(self, context)

    return type(kind.__name__, (kind,), {"_run_async_impl": run, "__module__": kind.__module__})


def _as_raised(cause: str) -> Exception:
    """Return an error that reads as the one by which the agent failed."""
    kind, _, message = cause.partition(": ")
    if not kind.isidentifier():
        return RuntimeError(cause)
    return type(kind, (Exception,), {})(message)
