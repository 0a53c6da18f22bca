"""All of google.adk's graphs, and of agents as nodes, that is private and that Perdure stands on. Only 2.x has it."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import Any, Literal

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from perdure.adk import internals
from perdure.journal.events import USER
from perdure.journal.node_runs import NodeRun

if internals.MAJOR >= 2:
    _module = "google.adk.workflow."
    _context: Any = importlib.import_module("google.adk.agents.context")
    _errors: Any = importlib.import_module(f"{_module}_errors")
    _interceptor: Any = importlib.import_module(f"{_module}utils._replay_interceptor")
    _building: Any = importlib.import_module(f"{_module}utils._workflow_graph_utils")
    _nodes: Any = importlib.import_module(f"{_module}_base_node")
    _runners: Any = importlib.import_module(f"{_module}_node_runner")
    _tools: Any = importlib.import_module(f"{_module}_tool_node")
    _schedulers: Any = importlib.import_module(f"{_module}_dynamic_node_scheduler")
    _workflows: Any = importlib.import_module(f"{_module}_workflow")
    _wrapper: Any = importlib.import_module(f"{_module}_llm_agent_wrapper")
    _agent_tools: Any = importlib.import_module("google.adk.tools.agent_tool")
    _contents: Any = importlib.import_module("google.adk.utils.content_utils")
    _finishing: Any = importlib.import_module("google.adk.agents.llm.task._finish_task_tool")
    internals.EXPECTED |= {
        _building: {"build_node": ()},
        _context.Context: {"_run_node_internal": ("resume_inputs",)},
        _interceptor: {"create_mock_context": ("parent_ctx", "run_id", "node_path"), "InterceptionResult": ()},
        _nodes.BaseNode: {"_iter_static_children": (), "_run_impl": (), "_validate_input_data": ()},
        _runners: {"_explicit_output_claimer": ()},
        _runners.NodeRunner: {"run": ("resume_inputs",), "_execute_node": ()},
        _schedulers: {"DynamicNodeScheduler": ("state",)},
        _tools: {"_ToolNode": ()},
        _workflows: {"_LoopState": ()},
        _wrapper: {"process_llm_agent_output": ()},
        _agent_tools: {"_SingleTurnAgentTool": (), "_TaskAgentTool": ()},
        _contents: {"to_user_content": ()},
        _errors: {"DynamicNodeFailError": ("message", "error", "error_node_path")},
        _finishing: {"get_output_wrapper_key": ("output_schema",), "is_finish_task_terminal_fr": ()},
    }

_at: ContextVar[Any] = ContextVar("the context of the node that runs", default=None)


def nodes_of(node: Any) -> list[Any]:
    """Return the nodes within a node: a graph's, but the one that begins; of a parallel worker, the one it runs."""
    return list(node._iter_static_children())


def build_node(given: Any) -> Any:
    """Return an agent as google.adk builds it to run it as a node."""
    return _building.build_node(given)


def function_of(node: Any) -> Callable[..., Any]:
    """Return the function that a `FunctionNode` calls."""
    return node._func


def tool_of(node: Any) -> BaseTool | None:
    """Return the tool that a node runs, if it is a node of that kind."""
    return node.tool if internals.MAJOR >= 2 and isinstance(node, _tools._ToolNode) else None


def code_of(node: Any) -> Callable[..., Any]:
    """Return the code of a node whose class is the app's."""
    return node._run_impl


def delegation_of(tool: BaseTool) -> Literal["task", "single_turn"] | None:
    """Return how a tool has a sub-agent work that google.adk gave an agent for that; `None` of other tools."""
    if internals.MAJOR >= 2 and isinstance(tool, _agent_tools._TaskAgentTool):
        return "task"
    return "single_turn" if internals.MAJOR >= 2 and isinstance(tool, _agent_tools._SingleTurnAgentTool) else None


def content_of(agent: Any, node_input: object) -> types.Content:
    """Return what an agent is given as a node, as a user's content; without parts if that is nothing."""
    if node_input is None:
        return types.Content(role=USER, parts=[])
    return _contents.to_user_content(agent._validate_input_data(node_input)).model_copy(update={"role": USER})


def interrupts(error: BaseException) -> bool:
    """Return whether google.adk raises this to say that a node waits for a person: nobody but itself may catch it."""
    return internals.MAJOR >= 2 and isinstance(error, _errors.NodeInterruptedError)


def node_failed(name: str, cause: str) -> Exception:
    """Return what google.adk raises where a node fails that code has run."""
    return _errors.DynamicNodeFailError(
        message=f"Dynamic node {name} failed", error=RuntimeError(cause), error_node_path=name
    )


def ends_task(event: Event) -> bool:
    """Return whether a response says that an agent's task has ended."""
    return _finishing.is_finish_task_terminal_fr(event)


def result_key(agent: LlmAgent) -> str | None:
    """Return under which key an agent's task has its result, where that is no object."""
    return _finishing.get_output_wrapper_key(agent.output_schema)


async def run_graph(graph: Any, context: InvocationContext) -> AsyncGenerator[Event, None]:
    """Run a graph from its top: nodes of which the session tells that they have ended are not run.

    Each event is to be in the session before the next is asked for, as its node waits for that.
    ADK: `workflow/_node_runner_utils.py`, `run_node_async`.

    Raises:
        Exception: What a node failed of.
    """
    root: Any = _context.Context(context)
    root._workflow_scheduler = _schedulers.DynamicNodeScheduler(state=_workflows._LoopState())

    async def run() -> None:
        failure: Exception | None = None
        try:
            await root._run_node_internal(graph, node_input=context.user_content)
        except _errors.DynamicNodeFailError as failed:
            failure = failed.error
        if failure is not None:
            # Out here, it keeps its own cause.
            raise failure

    async with aclosing(run_code(run, context)) as events:
        async for event in events:
            yield event


async def run_code(code: Callable[[], Awaitable[None]], context: InvocationContext) -> AsyncGenerator[Event, None]:
    """Run code that runs nodes in a context, up to where one of them asks a person; yields events as `run_graph`.

    Raises:
        Exception: What the code raised.
    """
    bare: Any = context
    queue: asyncio.Queue[tuple[Any, asyncio.Event | None]] = asyncio.Queue()
    bare._event_queue, bare._abort_state.loop = queue, asyncio.get_running_loop()

    async def drive() -> None:
        try:
            await code()
        except _errors.NodeInterruptedError:
            pass
        finally:
            await queue.put((None, None))

    driving = asyncio.create_task(drive())
    try:
        while True:
            event, logged = await queue.get()
            if event is None:
                break
            yield event
            if logged is not None:
                logged.set()
        await driving
    finally:
        driving.cancel()
        await asyncio.wait({driving})


def route_nodes(route: Callable[[Any, Any, str, Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
    """Have each run of a node pass by.

    Args:
        route: Is given the node, its runner, the path of its run, and what runs it; returns the node's context.
    """
    runner = _runners.NodeRunner
    run_node, execute = runner.run, runner._execute_node

    @functools.wraps(run_node)
    async def run(self: Any, node_input: Any = None, *, resume_inputs: dict[str, Any] | None = None) -> Any:
        above = self._parent_ctx.node_path
        path = f"{above}/{self._node.name}@{self.run_id}" if above else f"{self._node.name}@{self.run_id}"
        return await route(self._node, self, path, lambda: run_node(self, node_input, resume_inputs=resume_inputs))

    @functools.wraps(execute)
    async def execute_node(self: Any, ctx: Any, node_input: Any) -> None:
        token = _at.set(ctx)
        try:
            await execute(self, ctx, node_input)
        finally:
            with suppress(ValueError):  # Ended by garbage collection, in the context of whoever runs then.
                _at.reset(token)

    setattr(runner, "run", run)  # noqa: B010 -- pyright
    setattr(runner, "_execute_node", execute_node)  # noqa: B010 -- pyright


def may_run(runner: Any) -> bool:
    """Return whether what a node says is heard by anybody."""
    return runner._parent_ctx._invocation_context._event_queue is not None


def is_replayed(runner: Any) -> bool:
    """Return whether google.adk passes over a node that has ended: not of those that a tool runs itself."""
    return runner._parent_ctx._workflow_scheduler is not None


def ended_with(runner: Any, path: str, output: Any = None, route: Any = None) -> Any:
    """Return the context of a node that has ended before."""
    result = _interceptor.InterceptionResult(should_run=False, output=output, route=route)
    return _interceptor.create_mock_context(
        parent_ctx=runner._parent_ctx,
        node=runner._node,
        run_id=runner.run_id,
        result=result,
        ancestors=[],
        node_path=path,
        branch=runner._parent_ctx._invocation_context.branch,
    )


def node_run(session: Session) -> NodeRun | None:
    """Return as what an agent runs, whose run begins now; `None` if it is no node."""
    ctx = _at.get()
    if ctx is None:
        return None
    claimer = _runners._explicit_output_claimer(ctx)
    given = next((event for event in reversed(session.events) if _is_input(event, ctx.node_path)), None)
    return NodeRun(
        path=ctx.node_path,
        input=given.content.model_copy(deep=True) if given is not None and given.content is not None else None,
        output_for=tuple(ctx._output_for_ancestors),
        output_branch=None if claimer is None else claimer._invocation_context.branch or "",
        scope=ctx.isolation_scope,
        answers=isinstance(ctx.node, LlmAgent) and getattr(ctx.node, "mode", None) == "single_turn",
    )


def _is_input(event: Event, path: str) -> bool:
    return event.author == USER and getattr(event, "node_info").path == path  # noqa: B009 -- not in 1.x


def begin_step(session: Session, context: InvocationContext, node: NodeRun, agent: object, *, after: str) -> None:
    """Let a step's code see its session as an agent does that runs as a node, or for one that does.

    Args:
        session: The step's session.
        context: Its context.
        node: The node.
        agent: The agent that is the node.
        after: The event behind which the node's run began, by id.
    """
    bare: Any = context
    bare.node_path, bare.isolation_scope = node.path, node.scope
    if node.input is not None and getattr(agent, "mode", None) == "task":
        # Behind the call by which it was given, which google.adk finds in the log.
        context.user_content = node.input.model_copy(deep=True)
    elif node.input is not None:
        given: Any = Event(author=USER, content=node.input.model_copy(deep=True), branch=context.branch)
        given.node_info.path, given.isolation_scope = node.path, node.scope
        at = next((index for index, event in enumerate(session.events, 1) if event.id == after), 0)
        session.events.insert(at, given)


def take_output(agent: object, event: Event, node: NodeRun) -> Event:
    """Make what an agent said its node's output, where it is that; returns the event.

    ADK: `run_llm_agent_as_node`, `NodeRunner._enrich_event`.

    Args:
        agent: The agent that is the node.
        event: The event.
        node: The node.

    Raises:
        Exception: It is not what the agent's schema says.
    """
    changed: Any = event
    if node.answers and isinstance(agent, LlmAgent):
        _wrapper.process_llm_agent_output(agent, _Deltas(event), event)
    changed.node_info.path = node.path
    if event.partial:
        # Of one that is logged the workflow says so.
        changed.isolation_scope = node.scope
    if changed.output is not None:
        changed.node_info.output_for = [node.path, *node.output_for]
        if node.output_branch is not None and not event.get_function_responses():
            event.branch = node.output_branch or None
    return event


def promote(agent: object, event: Event, node: NodeRun) -> bool:
    """Make what a remote agent answers its node's output; returns whether it was that. ADK: `RemoteA2aAgent._run_impl`.

    Args:
        agent: The agent that is the node.
        event: What it says.
        node: The node.
    """
    promoting = getattr(agent, "_promote_response_to_output", None)
    if promoting is None:
        return False
    changed: Any = event
    # It takes those for its own which say so.
    changed.node_info.path = node.path
    return bool(promoting(event, node.path))


def as_logged(event: Event) -> Event:
    """Return a node's event as it is logged: what is its message is not repeated as its output. ADK: `Runner`."""
    given: Any = event
    if given.node_info.message_as_output and event.content is not None:
        return event.model_copy(update={"output": None})
    return event


class _Deltas:
    """Of a context, what takes an output under the agent's `output_key`."""

    def __init__(self, event: Event) -> None:
        self.actions = event.actions
