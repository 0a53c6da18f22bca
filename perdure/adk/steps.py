"""The steps of google.adk's agents: each runs ADK's own code over a context made anew from the log."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event as AdkEvent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_confirmation import ToolConfirmation as AdkConfirmation
from google.genai import types

from perdure.adk import callbacks, graph_internals, internals
from perdure.adk.code.adk_code import AdkCode, AdkRun
from perdure.adk.code.graph_runs import GraphRun
from perdure.adk.code.node_tool_runs import begin_tool
from perdure.adk.events import from_adk, plain_state, to_adk
from perdure.adk.graphs import is_graph
from perdure.adk.models import ModelStep, model_step
from perdure.adk.registry import AdkRegistry
from perdure.adk.services import Services
from perdure.adk.session_service import SharedState, StepSession
from perdure.adk.step_contexts import StepContexts
from perdure.adk.tools import agent_tools, delegation_tools, toolsets
from perdure.adk.tools.returned_results import keeping, written
from perdure.adk.tools.tool_responses import as_result, make_plain
from perdure.adk.tools.toolsets import ToolsetDown
from perdure.errors import DefinitionError, error_text
from perdure.journal.credential_questions import credential_requests, parse_credential
from perdure.journal.events import USER, Event
from perdure.journal.tasks import task_branch
from perdure.journal.tool_output import ToolOutput
from perdure.plan.nodes import CustomNode, ToolPlan
from perdure.steps.base import (
    ATTEMPTS_OF_DEFECTS,
    Callback,
    ModelCall,
    ModelFailed,
    Place,
    Snapshot,
    StepOutput,
    StepRefused,
    ToolCall,
    ToolFailed,
    llm_node,
)
from perdure.steps.code.past import Past
from perdure.steps.code.suspended_code import SuspendedCode
from perdure.steps.raised import as_exception_of_task
from perdure.steps.user_code import CodeRunner
from perdure.streams.drafts import Drafts
from perdure.streams.hub import Piece, Writer

_MOST_SHARED = 200
"""Answers whose calls share the state that they write, in one process."""


class AdkSteps:
    """Does the steps of one google.adk app. Implements `Steps`."""

    def __init__(self, registry: AdkRegistry, code: CodeRunner, services: Services) -> None:
        """Serve an app.

        Args:
            registry: The app's code.
            code: Runs the app's code; all of an app's runs on one loop, to which connections of toolsets belong.
            services: Artifacts and memory.
        """
        self._registry = registry
        self._code = code
        self._services = services
        self._contexts = StepContexts(registry, services)
        self._suspended = SuspendedCode(self._begin_code)
        code.at_close(self._suspended.close)
        self._shared: OrderedDict[tuple[object, ...], SharedState] = OrderedDict()
        """What the calls of one answer have written, while they run."""

    async def call_model(self, at: Place, session: Snapshot, call: ModelCall, writer: Writer | None) -> StepOutput:
        """Ask an agent's model, with the callbacks around that."""
        llm_node(session.projection, at, call.plan)
        return await self._code.run_async(self._ask(at, session, call, writer))

    async def _ask(self, at: Place, session: Snapshot, call: ModelCall, writer: Writer | None) -> StepOutput:
        agent = self._contexts.agents(at, session, call.plan).llm_agent_named(at.agent)
        key = f"{_who(at)}:model:{call.index}"
        step, context = await self._contexts.begin(at, session, agent, key, streams=_streams(at, session, writer))
        said = _said(agent, session, at, call.begun_with)
        model_step.set(ModelStep(at.agent, call.index))
        try:
            async for event in internals.model_step(agent, context):
                if event.partial:
                    _tell(writer, await self._contexts.said(at, step, context, event))
                    continue
                internals.save_output(agent, event)
                said = internals.accumulate_output(agent, event, said)
                await step.append_event(step.session, await self._contexts.said(at, step, context, event))
        except DefinitionError:
            raise
        except BaseException as raised:
            error = as_exception_of_task(raised)
            await internals.tell_failure(agent, context, error)
            again = isinstance(error, ToolsetDown)
            text = str(error) if again else error_text(error) + callbacks.noted()
            raise ModelFailed(text, await self._contexts.left(at, agent, step, error), retryable=again) from error
        return await self._contexts.output(at, step, context)

    def prepare_model_call(self, at: Place, session: Snapshot, call: ModelCall) -> None:
        """Do nothing: google.adk's own code makes a request, and callbacks of the user's take part in that."""

    async def callback(
        self,
        at: Place,
        session: Snapshot,
        which: Callback,
        event: Event | None = None,
        drafts: Drafts | None = None,
    ) -> StepOutput:
        """Run the callbacks before or after an agent, those of plugins first; or those of plugins around a turn.

        Or have plugins look at an `event` that the workflow made.
        """
        if event is not None:
            return await self._code.run_async(self._show(at, session, event))
        if which in ("run", "graph", "tool"):
            return await self._code.run_async(self._suspended.run(at, session, drafts))
        running = {"begin": self._begin_turn, "end": self._end_turn}.get(which)
        return await self._code.run_async(running(at, session) if running else self._call_back(at, session, which))

    async def _begin_code(self, at: Place, session: Snapshot, past: Past) -> AdkRun:
        node = past.plan.nodes.get(at.agent)
        if isinstance(node, CustomNode) and node.tool is not None:
            return await begin_tool(at, session, past, node, self._contexts, self._run_sync, self._call_code)
        # ADK finds in a graph's session how far it has come.
        graph = is_graph(self._contexts.agents(at, session).agent(at.agent))
        code = await AdkCode.begin(at, session, past, self._contexts, whole=graph)
        return GraphRun(at, code, self._contexts, self._run_sync) if graph else AdkRun(at, code)

    async def _call_code(self, at: Place, call: ToolCall, step: StepSession, context: InvocationContext) -> ToolOutput:
        assert call.session is not None, "a google.adk tool is given its session"
        return await self._call_tool(at, call, to_adk(_event_of(call.session, call)), step, context)

    async def _call_back(self, at: Place, session: Snapshot, which: Callback) -> StepOutput:
        agent = self._contexts.agents(at, session).agent(at.agent)
        key = f"{_who(at)}:{which}:{len(session.projection.entries)}"
        step, context = await self._contexts.begin(at, session, agent, key)
        try:
            running = internals.before_agent if which == "before" else internals.after_agent
            event = await running(context)
        except BaseException as raised:
            error = as_exception_of_task(raised)
            await internals.tell_failure(agent, context, error)
            if noted := callbacks.noted():
                raise StepRefused(type(error).__name__, f"{error}{noted}") from error
            raise error  # noqa: B904 -- it has its cause
        if event is not None:
            await step.append_event(step.session, await self._contexts.said(at, step, context, event))
        return await self._contexts.output(at, step, context)

    async def _begin_turn(self, at: Place, session: Snapshot) -> StepOutput:
        """Have plugins look at the message that begins a turn, and at the turn.

        ADK: `Runner._handle_new_message`, `Runner._exec_with_plugin`. An answer stays as the person gave it.
        """
        key = f"{at.invocation_id}:begin:{len(session.projection.entries)}"
        step, context = await self._contexts.begin(at, session, self._contexts.agents(at, session).agent(at.agent), key)
        invocation = session.projection.invocations[at.invocation_id]
        answer = session.projection.loggable_answer(invocation)
        begun = any(event.id == invocation.message.id for event in session.projection.own_events)
        given = answer or (None if begun else invocation.message)
        changed = None
        if given is not None and given.content is not None:
            content = given.content.model_copy(deep=True)
            changed = await context.plugin_manager.run_on_user_message_callback(
                user_message=content, invocation_context=context
            )
            if changed is None and content != given.content:
                changed = content
            context.user_content = changed or content
            message = to_adk(given)
            message.content = context.user_content
            step.see(message)
        early = await context.plugin_manager.run_before_run_callback(invocation_context=context)
        if isinstance(early, types.Content):
            event = AdkEvent(invocation_id=at.invocation_id, author="model", content=early)
            # ADK 1 shows that to no plugin.
            event = await self._contexts.seen(context, event) if internals.MAJOR >= 2 else event
            await step.append_event(step.session, event)
        output = await self._contexts.output(at, step, context)
        ended = isinstance(early, types.Content)
        return replace(output, ended=ended, message=changed if answer is None else None)

    async def _end_turn(self, at: Place, session: Snapshot) -> StepOutput:
        """Have plugins look at a turn that has ended, and compact the log."""
        key = f"{at.invocation_id}:end:{len(session.projection.entries)}"
        step, context = await self._contexts.begin(at, session, self._contexts.agents(at, session).agent(at.agent), key)
        try:
            await context.plugin_manager.run_after_run_callback(invocation_context=context)
        except Exception as error:
            await internals.tell_run_failure(context, error)
            raise
        app = self._registry.app.app
        if app.events_compaction_config is not None and not at.scope:
            await internals.compact(app, step.session, step)
        return replace(await self._contexts.output(at, step, context), ended=False)

    async def _show(self, at: Place, session: Snapshot, event: Event) -> StepOutput:
        key = f"{_who(at)}:event:{len(session.projection.entries)}"
        step, context = await self._contexts.begin(at, session, self._contexts.agents(at, session).agent(at.agent), key)
        await step.append_event(step.session, await self._contexts.seen(context, to_adk(event)))
        return await self._contexts.output(at, step, context)

    async def run_tool(self, at: Place, call: ToolCall) -> ToolOutput:
        """Run a tool, with the callbacks around it."""
        return await self._code.run_async(self._run_tool(at, call), end=call.until)

    async def _run_tool(self, at: Place, call: ToolCall) -> ToolOutput:
        session = call.session
        assert session is not None, "a google.adk tool is given its session"
        agent = self._contexts.agents(at, session).llm_agent_named(at.agent)
        key = f"{call.key}{':confirmed' if call.confirmation is not None else ':authorized' if call.authorized else ''}"
        calling = to_adk(_event_of(session, call))
        async with self._sharing(at, session, calling.id, call) as shared:
            step, context = await self._contexts.begin(at, session, agent, key, shared=shared)
            return await self._call_tool(at, call, calling, step, context)

    async def _call_tool(
        self, at: Place, call: ToolCall, calling: AdkEvent, step: StepSession, context: InvocationContext
    ) -> ToolOutput:
        session, agent = call.session, context.agent
        assert session is not None, "a google.adk tool is given its session"
        assert isinstance(agent, LlmAgent), "what has tools is an LLM agent"
        decision = None
        if call.confirmation is not None:
            decision = AdkConfirmation.model_validate(call.confirmation.model_dump(by_alias=True))
        planned = llm_node(session.projection, at, None)[1].tool(call.tool)
        returned = _returned_before(session, at, call)
        try:
            tools = await internals.tools_of(agent, context)
            if call.tool not in tools:
                toolsets.check(agent.name)
            tool = tools.get(call.tool)
            if isinstance(tool, AgentTool):
                logged = plain_state(await self._contexts.state(at, session))
                tools[call.tool] = _set_apart(at, session, call, context, tool, logged)
            if returned is None:
                await call.begin(planned is not None and planned.at_most_once)
            else:
                agent_tools.without_before(context)
            watched = tools.get(call.tool) if returned is not None or _is_looked_at(planned, context) else None
            with keeping(watched, call.id, returned) as run:
                try:
                    event = await internals.run_tool(context, calling, call.id, tools, decision, self._run_sync)
                finally:
                    returned = run.kept
            output = await self._response(at, call, step, context, event)
            return await self._services.credentials.tool(at.key, output, at.agent, call.tool)
        except agent_tools.Asks as asks:
            return await self._services.credentials.tool(at.key, ToolOutput(asks=asks.asked), at.agent, call.tool)
        except BaseException as raised:
            if graph_internals.interrupts(raised):
                raise
            error = as_exception_of_task(raised)
            # ADK tries no tool again; what died with its worker is, and what was not begun.
            await internals.tell_failure(agent, context, error)
            attempts: int | None = ATTEMPTS_OF_DEFECTS if isinstance(error, ToolsetDown) else 1
            if planned is not None and planned.retries and returned is None:
                attempts = None
            left = await self._contexts.left(at, agent, step, error, written(step))
            if returned is not None:
                returned = await self._services.credentials.tool(at.key, returned, at.agent, call.tool)
            left = replace(left, returned=returned)
            text = f"{error}{callbacks.noted()}"
            raise ToolFailed(type(error).__name__, text, left, attempts=attempts) from error

    async def authorize(self, at: Place, session: Snapshot, requests: Sequence[str]) -> StepOutput:
        """Have ADK take up the credentials that a person gave: authorization codes become tokens here."""
        return await self._code.run_async(self._authorize(at, session, requests))

    async def _authorize(self, at: Place, session: Snapshot, requests: Sequence[str]) -> StepOutput:
        key = f"{at.invocation_id}:{at.agent}:authorize:{','.join(requests)}"
        step, context = await self._contexts.begin(at, session, self._contexts.agents(at, session).agent(at.agent), key)
        asked = {call.id: call for call in credential_requests(session.projection.events)}
        for request_id in requests:
            credential = parse_credential(session.projection.answer_to(request_id) or {})
            if credential is not None:
                config = await self._services.credentials.config(at.key, asked[request_id].args or {}, credential)
                await internals.store_credential(context, request_id, config)
        return await self._contexts.output(at, step, context)

    async def _run_sync(self, fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        return await self._code.run(fn, **kwargs)

    async def _response(
        self, at: Place, call: ToolCall, step: StepSession, context: InvocationContext, event: AdkEvent | None
    ) -> ToolOutput:
        session, agent = call.session, context.agent
        assert session is not None, "a google.adk tool is given its session"
        assert isinstance(agent, LlmAgent), "what has tools is an LLM agent"
        if event is None:
            return ToolOutput(state=step.written_past_deltas(), ends_agent=context.end_invocation)
        internals.save_output(agent, event)
        if not _shown_later(at, session):
            event = await self._contexts.seen(context, event)
        result = delegation_tools.take_result(agent, call, event)
        state = make_plain(call.tool, event, step)
        response = step.returned(event)
        after: list[Event] = []
        final = internals.structured_answer(context, event)
        if final is not None:
            internals.save_output(agent, final)
            after.append(step.returned(await self._contexts.said(at, step, context, final)))
        output = ToolOutput(
            content=response.content,
            actions=response.actions,
            after=tuple(after),
            state=state,
            written_over=step.written_over(event),
            ends_agent=context.end_invocation,
            task_result=result,
        )
        return as_result(output)

    async def reconcile(self, at: Place, call: ToolCall) -> ToolOutput:
        """Ask nobody: a google.adk tool has no such function."""
        raise StepRefused("DefinitionError", f"tool {call.tool!r} has no reconcile function")

    async def remind(self, at: Place, call: ToolCall) -> None:
        """Remind nobody: a google.adk tool has no such function."""
        raise StepRefused("DefinitionError", f"tool {call.tool!r} has no reminder")

    async def run_function(self, at: Place, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run nothing: google.adk's apps have no such functions."""
        raise StepRefused("DefinitionError", f"the app has no function {name!r}")

    @asynccontextmanager
    async def _sharing(self, at: Place, session: Snapshot, calling: str, call: ToolCall) -> AsyncGenerator[SharedState]:
        """Share the state with the other calls of an answer that run here at the same time."""
        # On a resume ADK has read the session anew.
        key = (at.key, at.scope, calling, session.projection.invocations[at.invocation_id].settled)
        state = await self._contexts.state(at, session)
        shared, step = self._shared.get(key), (call.id, call.id in session.projection.scopes)
        if shared is None or not shared.join(step, state):
            shared = self._shared[key] = SharedState.of(state, step)
        while len(self._shared) > _MOST_SHARED:
            self._shared.popitem(last=False)
        shared.at_work += 1
        try:
            yield shared
        except BaseException:
            # What it wrote is not kept: who is tried again is not to see it.
            if self._shared.get(key) is shared:
                del self._shared[key]
            raise
        finally:
            shared.at_work -= 1


def _streams(at: Place, session: Snapshot, writer: Writer | None) -> bool:
    """Return whether the model answers piece by piece: by what was asked for, since listeners go with a process."""
    return writer is not None or session.projection.invocations[at.invocation_id].streaming


def _who(at: Place) -> str:
    """Return what tells a run of an agent from others of it that go on beside it."""
    return f"{at.invocation_id}:{at.run or at.agent}"


def _said(agent: LlmAgent, session: Snapshot, at: Place, begun_with: str | None) -> str:
    """Return what the agent said in its run since the user last answered, as its `output_key` gathers it."""
    said = ""
    if begun_with is None or not agent.output_key:
        return said
    events = session.projection.events
    first = next((index for index, event in enumerate(events) if event.id == begun_with), len(events))
    for event in events[first:]:
        if event.author == USER and event.invocation_id == at.invocation_id:
            said = ""
        elif event.author == agent.name and event.branch == at.branch and event.invocation_id == at.invocation_id:
            said = internals.accumulate_output(agent, to_adk(event), said)
    return said


def _returned_before(session: Snapshot, at: Place, call: ToolCall) -> ToolOutput | None:
    """Return what a call's tool returned in an earlier step, where a callback behind it raised."""
    kept = session.projection.invocations[at.invocation_id].kept.get(call.id)
    return kept if kept is not None and kept.awaits_callbacks else None


def _is_looked_at(planned: ToolPlan | None, context: InvocationContext) -> bool:
    """Return whether code behind a tool may raise: of a tool that runs an agent, the agent's log holds that."""
    if planned is not None and (planned.agent is not None or planned.delegates is not None):
        return False
    return bool(getattr(context.agent, "after_tool_callback", None) or context.plugin_manager.plugins)


def _set_apart(
    at: Place, session: Snapshot, call: ToolCall, context: InvocationContext, tool: AgentTool, logged: dict[str, Any]
) -> AgentTool:
    """Return what runs in the place of a tool whose agent the workflow runs; the tool itself for any other.

    The agent's state is what the log has, `logged`, with what has been written since: by other calls, too.
    """
    projection = session.projection
    planned = llm_node(projection, at, None)[1].tool(call.tool)
    if planned is not None and planned.agent is not None:
        scope = projection.scopes.get(call.id)
        if scope is None:
            return agent_tools.asking(tool, logged)
        agent_tools.without_before(context)
        return agent_tools.answered(tool, scope, at.invocation_id)
    if delegation_tools.delegation_of(tool) != "single_turn":
        return tool
    invocation = projection.invocations[at.invocation_id]
    plan = projection.plan_of(invocation)
    assert plan is not None, "an invocation at work has a plan"
    branch = task_branch(at.branch, call.tool, call.id)
    begun = delegation_tools.begun(plan, invocation, at.run, call.tool, branch)
    if begun is None:
        return delegation_tools.asking(tool, logged)
    agent_tools.without_before(context)
    return delegation_tools.told(tool, *begun)


def _shown_later(at: Place, session: Snapshot) -> bool:
    """Return whether plugins look at a tool's response once the workflow has merged it with those of its siblings."""
    plan = session.projection.plan_of(session.projection.invocations[at.invocation_id])
    return plan is not None and plan.adk is not None and plan.adk.watches


def _event_of(session: Snapshot, call: ToolCall) -> Event:
    event = session.projection.event_of_call(call.id)
    assert event is not None, "a call that runs stands in the log"
    return event


def _tell(writer: Writer | None, event: AdkEvent) -> None:
    """Show a part of an answer to those who follow, as ADK has it."""
    if writer is not None:
        whole = from_adk(event)
        writer.add(Piece(whole.text or "", event=whole.to_json()))
