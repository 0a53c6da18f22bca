"""Tools of google.adk's in agents of Perdure's, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event_actions import EventActions as AdkActions
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.agent_tool import AgentTool as AdkAgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool as AdkFunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool as AdkLongRunningTool
from google.adk.tools.tool_confirmation import ToolConfirmation as AdkConfirmation
from google.adk.tools.tool_context import ToolContext as AdkToolContext
from google.genai import types

from perdure.adk.events import actions_of
from perdure.agents.agent_tool import AgentTool
from perdure.agents.context import ToolContext
from perdure.agents.durable import Durability, durability_of, marked
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool
from perdure.errors import DefinitionError
from perdure.plan.nodes import ToolPlan

__all__ = ["NativeTool", "adk_tool", "native_tool"]

_NOT_FOR_ADK = ("reconcile", "reminder")


def adk_tool(tool: FunctionTool) -> BaseTool:
    """Return a tool of google.adk's for one of Perdure's, with what that was made with.

    Raises:
        DefinitionError: It has what google.adk's agents cannot have.
    """
    if isinstance(tool, AgentTool):
        raise DefinitionError(
            f"tool {tool.name!r} runs an agent of Perdure's, which stands in Perdure's own agents only"
        )
    for name in _NOT_FOR_ADK:
        if getattr(tool, name, None) is not None:
            raise DefinitionError(f"tool {tool.name!r}: {name} is for Perdure's own agents only; leave it out")
    function = marked(tool.fn, Durability({}, made=tool))
    if isinstance(tool, LongRunningFunctionTool):
        return AdkLongRunningTool(func=function)
    return AdkFunctionTool(func=function, require_confirmation=tool.require_confirmation)


def native_tool(tool: Any) -> NativeTool:
    """Return a tool of Perdure's that runs one of google.adk's.

    Raises:
        DefinitionError: It works in google.adk's agents only.
    """
    if not isinstance(tool, BaseTool):
        raise DefinitionError(
            f"{type(tool).__name__}: a toolset stands in google.adk's agents only; give its tools one by one"
        )
    if isinstance(tool, AdkAgentTool):
        raise DefinitionError(
            f"tool {tool.name!r} runs an agent of google.adk's, which stands in google.adk's agents only; for an agent"
            " of Perdure's there is perdure.agents.AgentTool"
        )
    if _declaration(tool) is None:
        raise DefinitionError(
            f"tool {tool.name!r} is one of the model's provider, and stands in google.adk's agents only"
        )
    return NativeTool(tool, durability_of(tool))


def _declaration(tool: BaseTool) -> types.FunctionDeclaration | None:
    return tool._get_declaration()  # pyright: ignore[reportPrivateUsage] -- what google.adk itself asks its tools


class NativeTool(FunctionTool):
    """Runs a tool of google.adk's in an agent of Perdure's: with the session's state, and without its events."""

    def __init__(self, tool: BaseTool, durability: Durability | None) -> None:
        """Take a tool, and what `durable` gave it.

        Raises:
            DefinitionError: What was given does not go together.
        """
        self._adk = tool
        self._given = durability.plan() if durability is not None else None
        if self._given is not None and self._given.kind == "long_running" and not tool.is_long_running:
            raise DefinitionError(f"tool {tool.name!r} is not long-running, so its answer cannot expire")
        super().__init__(self._run)
        self.name = tool.name
        if self._given is not None:
            self.options, self.local, self.at_most_once = (
                self._given.options,
                self._given.local,
                self._given.at_most_once,
            )
            self.on_failure = self._given.on_failure

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function: google.adk's are."""
        return True

    @property
    def needs_context(self) -> bool:
        """Whether it takes a `ToolContext`: google.adk's tools may."""
        return True

    @property
    def declaration(self) -> types.FunctionDeclaration:
        """The tool's declaration for the model, as google.adk makes it."""
        found = _declaration(self._adk)
        assert found is not None, "a tool without one is refused"
        return found

    def plan(self) -> ToolPlan:
        """Return the tool as a plan holds it."""
        plan = super().plan()
        if self._given is None:
            return plan
        answers = {"expiry": self._given.expiry, "response_schema": self._given.response_schema}
        return plan.model_copy(update=answers)

    def _plan_kind(self) -> Literal["function", "long_running", "transfer", "exit_loop"]:
        return "long_running" if self._adk.is_long_running else "function"

    def bind(self, args: Mapping[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Return the arguments for the run; google.adk's tools check them themselves."""
        return {"args": dict(args), "tool_context": tool_context}

    async def _run(self, args: dict[str, Any], tool_context: ToolContext) -> Any:
        context = _adk_context(tool_context)
        result = await self._adk.run_async(args=args, tool_context=context)
        if context.actions.requested_auth_configs:
            raise RuntimeError(
                f"tool {self.name!r} asks for a credential, which agents of Perdure's own cannot; give it to an agent"
                " of google.adk's"
            )
        made = actions_of(context.actions)
        for key, value in made.state_delta.items():
            tool_context.state[key] = value
        for name in made.model_fields_set - {"state_delta"}:
            setattr(tool_context.actions, name, getattr(made, name))
        return result


def _adk_context(given: ToolContext) -> AdkToolContext:
    """Return the context of a google.adk tool: the session has its state, and no events."""
    session = Session(
        id=given.session_id, app_name=given.app_name, user_id=given.user_id, state=given.state.to_dict(), events=[]
    )
    context = InvocationContext(
        session_service=InMemorySessionService(),
        invocation_id=given.invocation_id,
        agent=BaseAgent(name=given.agent_name),
        session=session,
        user_content=given.user_content,
    )
    decision = given.tool_confirmation
    return AdkToolContext(
        context,
        event_actions=AdkActions(),
        function_call_id=given.function_call_id,
        tool_confirmation=AdkConfirmation.model_validate(decision.model_dump(by_alias=True)) if decision else None,
    )
