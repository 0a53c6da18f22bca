"""All of google.adk that is private and that Perdure stands on, with what it expects of it.

`check_installed` looks for each name, so that a version of google.adk that moved one is refused by name at start.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App
from google.adk.apps.compaction import _run_compaction_for_sliding_window  # pyright: ignore[reportPrivateUsage]
from google.adk.auth import auth_preprocessor
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.adk.flows.llm_flows import functions
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.adk.tools import function_tool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.version import __version__

from perdure.adk.tools import toolsets
from perdure.errors import DefinitionError
from perdure.steps.debug_lines import log_request

try:
    from google.adk.flows.llm_flows.prompt import _schema  # pyright: ignore[reportPrivateUsage]
except ImportError:
    from google.adk.flows.llm_flows import _output_schema_processor as _schema  # pyright: ignore[reportPrivateUsage]

try:
    from google.adk.utils import _runner_utils
except ImportError:
    _runner_utils: Any = None  # not in 1.x

try:
    from google.adk.flows.llm_flows.tools import _batch_executor
except ImportError:
    _batch_executor: Any = None  # not in all

MAJOR = int(__version__.partition(".")[0])
"""Whose behaviour counts where 1.x and 2.x differ."""

KEEPS_FINISHED = hasattr(_batch_executor, "_keep_completed_responses")
"""Whether it logs what calls responded where another one of the answer failed."""

_WITHOUT_MODEL = ("auth_preprocessor", "request_confirmation", "_confirmation")
"""Request processors that run tools inside of a model step, by the last part of their modules' names."""

_FOR_TOOLS = ("basic", "agent_transfer", "_agent_transfer", "_output_schema_processor", "_schema")
"""Request processors that bring tools, or what tools look at."""

_HOOKS = ("_run_callbacks",) if MAJOR < 2 else ("_run_callbacks", "_run_notification_callbacks")
"""What runs the hooks of all plugins."""

EXPECTED: dict[Any, dict[str, tuple[str, ...]]] = {
    BaseLlmFlow: {
        "_preprocess_async": (),
        "_call_llm_async": (),
        "_postprocess_async": (),
        "_postprocess_handle_function_calls_async": (),
    },
    LlmAgent: {"_llm_flow": (), "_LlmAgent__maybe_save_output_to_state": ()},
    BaseAgent: {"_handle_before_agent_callback": (), "_handle_after_agent_callback": ()},
    Runner: {
        "_new_invocation_context": ("new_message", "run_config", "invocation_id"),
        "_get_output_event": ("original_event", "modified_event", "run_config"),
    },
    functions: {"handle_function_calls_async": ("filters", "tool_confirmation_dict")},
    auth_preprocessor: {"_store_auth_and_collect_resume_targets": ()},
    PluginManager: dict.fromkeys(_HOOKS, ("callback_name",)),
    function_tool: {"_use_sync_callable_runner": ()},
    _schema: {"get_structured_model_response": (), "create_final_model_response_event": ()},
}
"""What Perdure stands on: names, and the parameters that it passes by name."""

if MAJOR >= 2:
    EXPECTED[BaseAgent] |= {"_handle_agent_error_callback": ()}
    EXPECTED[_runner_utils] = {"_notify_run_error": ()}


def check_installed() -> None:
    """Check that the installed google.adk has what Perdure stands on.

    Raises:
        DefinitionError: It lacks something.
    """
    missing = [
        f"{getattr(owner, '__name__', owner)}.{what}"
        for owner, names in EXPECTED.items()
        for name, parameters in names.items()
        for what in _missing(owner, name, parameters)
    ]
    if missing:
        raise DefinitionError(
            f"google-adk {__version__} is not supported: it has no {', '.join(missing)}; install a version that the"
            " extra perdure[adk] allows"
        )


def _missing(owner: Any, name: str, parameters: tuple[str, ...]) -> list[str]:
    found = getattr(owner, name, None)
    if found is None:
        return [name]
    return [f"{name}({parameter}=)" for parameter in parameters if not takes(found, parameter)]


async def model_step(agent: LlmAgent, context: InvocationContext) -> AsyncGenerator[Event, None]:
    """Ask an agent's model once, without running the tools that it calls; yields the events of it.

    ADK: `BaseLlmFlow._run_one_step_async`, less what it does to resume, which is the workflow's.

    Raises:
        ToolsetDown: A toolset did not tell its tools; the model was not asked.
        Exception: What ADK's code, or the app's, raised.
    """
    flow = agent._llm_flow  # pyright: ignore[reportPrivateUsage]
    _keep(flow, lambda name: name not in _WITHOUT_MODEL)
    vars(flow)["_postprocess_handle_function_calls_async"] = _no_events
    request = LlmRequest()
    toolsets.watch(agent)
    async for event in flow._preprocess_async(context, request):  # pyright: ignore[reportPrivateUsage]
        yield event
    if context.end_invocation:
        return
    toolsets.check(agent.name)
    log_request(request.model or "", request.contents, request.config)
    answer = Event(invocation_id=context.invocation_id, author=agent.name, branch=context.branch)
    answer.id = Event.new_id()
    async for response in flow._call_llm_async(context, request, answer):  # pyright: ignore[reportPrivateUsage]
        async for event in flow._postprocess_async(context, request, response, answer):  # pyright: ignore[reportPrivateUsage]
            yield event
            if MAJOR < 2 or not event.partial:
                answer.id = Event.new_id()


async def _no_events(*_args: object, **_kwargs: object) -> AsyncGenerator[Event, None]:
    for event in ():
        yield event


def _keep(flow: BaseLlmFlow, wanted: Callable[[str], bool]) -> None:
    processors = flow.request_processors
    flow.request_processors = [one for one in processors if wanted(type(one).__module__.rpartition(".")[2])]


async def tools_of(agent: LlmAgent, context: InvocationContext) -> dict[str, BaseTool]:
    """Return the tools that a model of the agent would be offered now, by name; toolsets are asked."""
    flow = agent._llm_flow  # pyright: ignore[reportPrivateUsage]
    _keep(flow, lambda name: name in _FOR_TOOLS)
    if MAJOR >= 2:
        bringing: list[Any] = getattr(flow, "tool_request_processors")  # noqa: B009 -- not in 1.x
        setattr(flow, "tool_request_processors", [one for one in bringing if one.name != "dynamic_instructions"])  # noqa: B010
    request = LlmRequest()
    toolsets.watch(agent)
    async for _ in flow._preprocess_async(context, request):  # pyright: ignore[reportPrivateUsage]
        pass
    return request.tools_dict


async def run_tool(
    context: InvocationContext,
    calling: Event,
    call_id: str,
    tools: dict[str, BaseTool],
    decision: ToolConfirmation | None,
    run_sync: Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]],
) -> Event | None:
    """Run one of an event's calls, with its callbacks; returns its response event, if there is a response.

    Args:
        context: The context.
        calling: The event with the call.
        call_id: The call.
        tools: Tools by name.
        decision: The person's, if the call needed one.
        run_sync: Runs functions that are not async.
    """
    decisions = {call_id: decision} if decision is not None else None
    with sync_calls(run_sync):
        return await functions.handle_function_calls_async(
            context, calling, tools, filters={call_id}, tool_confirmation_dict=decisions
        )


@contextmanager
def sync_calls(run_sync: Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]) -> Generator[None]:
    """Have functions that are not async run elsewhere than on the loop."""
    with function_tool._use_sync_callable_runner(run_sync):  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        yield


def save_output(agent: LlmAgent, event: Event) -> None:
    """Write what an event says under the agent's `output_key`, where ADK does."""
    getattr(agent, "_LlmAgent__maybe_save_output_to_state")(event)  # noqa: B009


def accumulate_output(agent: LlmAgent, event: Event, so_far: str) -> str:
    """Write all that the agent said since its run began under its `output_key`, as ADK 2 does; returns that."""
    accumulate = getattr(agent, "_LlmAgent__maybe_accumulate_streaming_output", None)
    return accumulate(event, so_far) if accumulate is not None else so_far


async def before_agent(context: InvocationContext) -> Event | None:
    """Run the callbacks before a context's agent, those of plugins first."""
    return await _agent_of(context)._handle_before_agent_callback(context)  # pyright: ignore[reportPrivateUsage]


async def after_agent(context: InvocationContext) -> Event | None:
    """Run the callbacks after a context's agent, those of plugins first."""
    return await _agent_of(context)._handle_after_agent_callback(context)  # pyright: ignore[reportPrivateUsage]


def _agent_of(context: InvocationContext) -> BaseAgent:
    assert isinstance(context.agent, BaseAgent), "a step has an agent"
    return context.agent


_run_async = BaseAgent.run_async


def route_agents(route: Callable[[BaseAgent, InvocationContext], AsyncGenerator[Event, None] | None]) -> None:
    """Have each run of an agent ask first who runs it.

    Args:
        route: Returns the events of the agent's run in this context, or `None` to have google.adk run it.
    """

    @functools.wraps(_run_async)
    async def run_async(self: BaseAgent, parent_context: InvocationContext) -> AsyncGenerator[Event, None]:
        routed = route(self, parent_context)
        async with aclosing(_run_async(self, parent_context) if routed is None else routed) as events:
            async for event in events:
                yield event

    setattr(BaseAgent, "run_async", run_async)  # noqa: B010 -- its type says that it is final


def route_plugins(seen: Callable[[BasePlugin], object]) -> None:
    """Have google.adk call the hooks of what stands for a plugin.

    Args:
        seen: Returns that, with the plugin's name and hooks.
    """
    for name in _HOOKS:
        setattr(PluginManager, name, _routed(getattr(PluginManager, name), seen))


def _routed(run: Callable[..., Awaitable[Any]], seen: Callable[[BasePlugin], object]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(run)
    async def run_hooks(self: PluginManager, callback_name: str, **kwargs: Any) -> Any:
        return await run(SimpleNamespace(plugins=[seen(plugin) for plugin in self.plugins]), callback_name, **kwargs)

    return run_hooks


async def tell_failure(agent: BaseAgent, context: InvocationContext, error: Exception) -> None:
    """Tell plugins that an agent has failed, those above it with it, and the run: in 2.x, which has hooks for that."""
    # A graph is none.
    above: BaseAgent | None = agent if isinstance(cast(object, agent), BaseAgent) else None
    while above is not None and MAJOR >= 2:
        context.agent = above
        await above._handle_agent_error_callback(context, error)  # pyright: ignore[reportPrivateUsage]
        above = above.parent_agent
    await tell_run_failure(context, error)


async def tell_run_failure(context: InvocationContext, error: Exception) -> None:
    """Tell plugins that a run has failed."""
    if MAJOR >= 2:
        await _runner_utils._notify_run_error(context.plugin_manager, context, error)  # pyright: ignore[reportPrivateUsage]


async def seen_by_plugins(runner: Runner, context: InvocationContext, event: Event) -> Event:
    """Return an event as plugins want it to be logged and shown."""
    changed = await context.plugin_manager.run_on_event_callback(invocation_context=context, event=event)
    return runner._get_output_event(  # pyright: ignore[reportPrivateUsage]
        original_event=event, modified_event=changed, run_config=context.run_config
    )


async def compact(app: App, session: Session, service: BaseSessionService) -> None:
    """Append summaries of what the app wants to have compacted behind a turn."""
    # A model step has looked at the tokens by then.
    skip = {"skip_token_compaction": True} if takes(_run_compaction_for_sliding_window, "skip_token_compaction") else {}
    compacting: Any = _run_compaction_for_sliding_window(app, session, service, **skip)
    if MAJOR < 2:
        await compacting
        return
    async for event in compacting:
        await service.append_event(session=session, event=event)


async def store_credential(context: InvocationContext, request_id: str, config: AuthConfig) -> None:
    """Put a credential that a person gave into the state, where tools look for it; a code is exchanged for a token.

    Args:
        context: The context.
        request_id: The question, by id, which the session's log has.
        config: The question's auth config, completed by the credential.

    Raises:
        Exception: What ADK's code raised.
    """
    response = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    given = {request_id: response}
    await auth_preprocessor._store_auth_and_collect_resume_targets(  # pyright: ignore[reportPrivateUsage]
        context.session.events, {request_id}, given, cast(Any, context.session.state)
    )


def new_context(runner: Runner, **fields: Any) -> InvocationContext:
    """Return an invocation's context, as a runner makes it."""
    session = fields.pop("session")
    return runner._new_invocation_context(session, **fields)  # pyright: ignore[reportPrivateUsage]


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name."""
    return name in inspect.signature(function).parameters


def structured_answer(context: InvocationContext, response: Event) -> Event | None:
    """Return the answer that ADK makes of a call of `set_model_response`, if it was one that fits the schema."""
    answer = _schema.get_structured_model_response(response)
    return _schema.create_final_model_response_event(context, answer) if answer else None
