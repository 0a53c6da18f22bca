"""Code of google.adk's apps that raises what the user's message says, in each place where google.adk runs it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types


class Own(BaseException):
    """One that is nobody's `Exception`."""


KINDS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(2),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "Own": lambda: Own("mine"),
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
}


def act(*given: Any) -> None:
    """Raise what the message in one of these contexts says, if it says that."""
    [context, *_] = [one for one in given if hasattr(one, "user_content")]
    said = context.user_content.parts[0].text
    if said in KINDS:
        raise KINDS[said]()


def callback(*given: Any, **named: Any) -> None:
    act(*given, *named.values())


async def async_callback(*given: Any, **named: Any) -> None:
    await asyncio.sleep(0)
    act(*given, *named.values())


def instruction(context: ReadonlyContext) -> str:
    act(context)
    return ""


async def async_instruction(context: ReadonlyContext) -> str:
    await asyncio.sleep(0)
    return instruction(context)


class Calls(BaseLlm):
    """Calls `tool`, if there is one, and says that it is done."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts or []
        answered = any(part.function_response for part in last)
        part = types.Part(text="done")
        if not answered and "tool" in llm_request.tools_dict:
            part = types.Part(function_call=types.FunctionCall(name="tool", args={}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Fails(BaseLlm):
    """Is down, for those who ask for an error."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        if (llm_request.contents[-1].parts or [])[0].text in KINDS:
            raise ConnectionError("down")
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="done")]))


class Leaves(BaseLlm):
    """Raises by itself."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        said = (llm_request.contents[-1].parts or [])[0].text
        if said in KINDS:
            raise KINDS[said]()
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="done")]))


RAN: Counter[tuple[str, str]] = Counter()
"""How often `fine` has run, by app and session."""


def fine(tool_context: ToolContext) -> str:
    """Do it."""
    session = tool_context._invocation_context.session  # pyright: ignore[reportPrivateUsage] -- 1.x has no other
    RAN[session.app_name, session.id] += 1
    return "fine"


def failing(tool_context: ToolContext) -> str:
    """Fail where the user asks for an error."""
    content = tool_context.user_content
    if content is not None and (content.parts or [])[0].text in KINDS:
        raise ValueError("broken")
    return "fine"


def leaves(tool_context: ToolContext) -> str:
    act(tool_context)
    return "fine"


async def async_leaves(tool_context: ToolContext) -> str:
    act(tool_context)
    return "fine"


class Tool(BaseTool):
    def __init__(self) -> None:
        super().__init__(name="tool", description="Does it.")

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name=self.name, description=self.description)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        act(tool_context)
        return "fine"


class Shelf(BaseToolset):
    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        act(readonly_context)
        return []

    async def close(self) -> None:
        pass


class Coded(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        act(ctx)
        yield Event(invocation_id=ctx.invocation_id, author=self.name)


def clerk(tool: Any = None, model: BaseLlm | None = None, **options: Any) -> LlmAgent:
    tools: list[Any] = []
    if tool is not None:
        made = tool if isinstance(tool, BaseTool) else FunctionTool(tool)
        made.name = "tool"
        tools = [made]
    return LlmAgent(name="clerk", model=model or Calls(model="calls"), tools=tools, **options)


def predicate(tool_context: ToolContext) -> bool:
    act(tool_context)
    return False


_CALLBACKS: dict[str, Callable[..., LlmAgent]] = {
    "before_agent_callback": clerk,
    "after_agent_callback": clerk,
    "before_model_callback": clerk,
    "after_model_callback": clerk,
    "on_model_error_callback": partial(clerk, None, Fails(model="fails")),
    "before_tool_callback": partial(clerk, fine),
    "after_tool_callback": partial(clerk, fine),
    "on_tool_error_callback": partial(clerk, failing),
}

PLACES: dict[str, Callable[[], BaseAgent]] = {
    **{
        f"{kind} {name}".strip(): (lambda make=make, name=name, how=how: make(**{name: how}))
        for name, make in _CALLBACKS.items()
        for kind, how in (("", callback), ("async", async_callback))
    },
    "tool": lambda: clerk(leaves),
    "async tool": lambda: clerk(async_leaves),
    "long-running tool": lambda: clerk(LongRunningFunctionTool(leaves)),
    "async long-running tool": lambda: clerk(LongRunningFunctionTool(async_leaves)),
    "tool of a class": lambda: clerk(Tool()),
    "predicate": lambda: clerk(FunctionTool(fine, require_confirmation=predicate)),
    "toolset": lambda: LlmAgent(name="clerk", model=Calls(model="calls"), tools=[Shelf()]),
    "instruction": lambda: clerk(instruction=instruction),
    "async instruction": lambda: clerk(instruction=async_instruction),
    "model": lambda: clerk(model=Leaves(model="leaves")),
    "code of an agent": lambda: Coded(name="clerk"),
}

HOOKS: dict[str, Callable[..., LlmAgent]] = {
    "on_user_message_callback": clerk,
    "before_run_callback": clerk,
    "after_run_callback": clerk,
    "on_event_callback": clerk,
    **_CALLBACKS,
}
"""By a hook of plugins: what makes an agent in whose turn it is called."""


def watch(hook: str) -> BasePlugin:
    """Return a plugin, one hook of which raises."""

    async def run(_: BasePlugin, **named: Any) -> None:
        await async_callback(**named)

    return type("Watch", (BasePlugin,), {hook: run})(name="watch")


def failing_node(*, asynchronous: bool) -> Any:
    """Return a graph of google.adk 2, the function of whose only node raises."""
    from google.adk import Workflow

    def node(node_input: str) -> str:
        if node_input in KINDS:
            raise KINDS[node_input]()
        return "fine"

    async def async_node(node_input: str) -> str:
        return node(node_input)

    return Workflow(name="clerk", edges=[("START", async_node if asynchronous else node)])
