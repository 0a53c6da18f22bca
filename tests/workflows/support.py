"""What the tests of running sessions share: tools that a test holds and lets go, small apps, a user of a session."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowHistory, WorkflowQueryFailedError
from temporalio.common import RetryPolicy
from temporalio.service import RPCError

from perdure.agents import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig, ToolContext
from perdure.agents.adk_app import AnyApp
from perdure.agents.custom import BaseAgent
from perdure.agents.tools import FunctionTool
from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.journal.entries import Entry
from perdure.journal.events import USER, Event
from perdure.journal.fold import fold_journal
from perdure.journal.projection import Projection
from perdure.messages.keys import SessionKey
from perdure.messages.session import JOURNAL, InvocationView, JournalPage, PageInput, SessionView
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.recovery.slices import read_archive
from perdure.streams.hub import TokenHub
from perdure.worker import create_workers

ONCE = RetryPolicy(maximum_attempts=1)
PENDING = {"status": "pending"}
_PATIENCE = 40.0
"""Seconds after which what a test waits for has failed to come. Without a cache Temporal's core loses a workflow task
now and then, which is given again after ten."""

ON_END: list[Callable[[Client, AnyApp], Awaitable[None]]] = []
"""Called when an app has been served to its end; `tests/replay/features.py` records what is there then."""


class Gate:
    """Where tools and models wait until the test lets them go. They come from other threads and loops."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.keys: list[str] = []
        """Idempotency keys of the calls that came, in order."""
        self.cancelled = 0

    def open(self) -> None:
        self._open.set()

    async def reached(self, times: int = 1) -> None:
        await eventually(lambda: len(self.keys) >= times)

    async def pass_through(self, key: str) -> None:
        self.keys.append(key)
        deadline = time.monotonic() + _PATIENCE
        try:
            while not self._open.is_set():
                assert time.monotonic() < deadline, "the test never opened the gate"
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def tool(self, name: str, returns: Any = "done", *, sync: bool = False) -> Callable[..., Any]:
        """Return a function that waits at the gate."""

        async def run(tool_context: ToolContext) -> Any:
            await self.pass_through(tool_context.idempotency_key)
            return returns

        def run_sync(tool_context: ToolContext) -> Any:
            self.keys.append(tool_context.idempotency_key)
            assert self._open.wait(_PATIENCE), "the test never opened the gate"
            return returns

        return named(run_sync if sync else run, name)


class Counted:
    """A tool that counts its calls, keeps their keys, and fails as often as it is told to."""

    def __init__(self, name: str, returns: Any = "done", *, fail: int = 0) -> None:
        self.keys: list[str] = []
        self.fail = fail

        def run(tool_context: ToolContext) -> Any:
            self.keys.append(tool_context.idempotency_key)
            if len(self.keys) <= self.fail:
                raise RuntimeError(f"call {len(self.keys)} of {name} fails")
            return returns

        self.fn = named(run, name)

    @property
    def once(self) -> FunctionTool:
        """The tool without retries."""
        return FunctionTool(self.fn, retry=ONCE)


class GatedModel(ScriptedModel):
    """A scripted model, some of whose steps wait at a gate; it keeps what it was asked."""

    def __init__(self, steps: Sequence[Mapping[str, Any]], gates: Mapping[int, Gate] | None = None) -> None:
        super().__init__(steps)
        self.steps_as_given = steps
        self._gates = gates or {}
        self.requests: list[LlmRequest] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(llm_request)
        gate = self._gates.get(llm_request.call_index)
        if gate is not None:
            await gate.pass_through(f"{llm_request.agent}/{llm_request.call_index}")
        async for response in super().generate_content_async(llm_request, stream):
            yield response


def named(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"Do {name}."
    return fn


def long_running(name: str, returns: Any = PENDING) -> LongRunningFunctionTool:
    def run() -> Any:
        return returns

    return LongRunningFunctionTool(named(run, name), retry=ONCE)


def calls(*names: str, **args: Any) -> dict[str, Any]:
    """Return a model's step that calls tools."""
    return {"calls": [{"name": name, "args": args} for name in names]}


def text(words: str) -> dict[str, Any]:
    return {"text": words}


def agent(
    name: str,
    script: Sequence[Mapping[str, Any]] | BaseLlm,
    tools: Sequence[Callable[..., Any] | FunctionTool] = (),
    **fields: Any,
) -> LlmAgent:
    model = script if isinstance(script, BaseLlm) else ScriptedModel(script)
    return LlmAgent(name=name, model=model, tools=list(tools), **fields)


def make_app(name: str, root: BaseAgent, *, resumable: bool = True) -> App:
    return App(name=name, root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable))


@asynccontextmanager
async def serving(
    client: Client, app: AnyApp, *, cached: int = 100, streams: TokenHub | None = None, **config: Any
) -> AsyncGenerator[User]:
    """Run a worker for an app; with `cached=0` it replays a session from the start at every step and look."""
    settings = WorkerConfig(
        max_cached_workflows=cached,
        graceful_shutdown_timeout=timedelta(milliseconds=100),
        fail_workflows_on_defects=True,
        **config,
    )
    (worker,) = create_workers(client, [app], settings, streams=streams)
    async with worker:
        yield User(client, app.name)
        defects = f"WorkflowType = '{app.name}' AND ExecutionStatus = 'Failed'"
        assert not [run.id async for run in client.list_workflows(defects)], "a session's workflow failed"
        await check_kept(client, app)
        for listener in ON_END:
            await listener(client, app)


async def check_kept(client: Client, app: AnyApp) -> None:
    """Check that the histories of an app's sessions hold the journals that their workflows have."""
    runs = client.list_workflows(f"WorkflowType = '{app.name}' AND ExecutionStatus = 'Running'")
    for session in [run.id async for run in runs]:
        await eventually(partial(_is_kept, client, session))


async def _is_kept(client: Client, session: str) -> bool:
    kept = await read_archive(client, session, None)
    query = client.get_workflow_handle(session).query
    try:
        page = await query("journal", PageInput(), result_type=JournalPage, rpc_timeout=timedelta(seconds=5))
    except (WorkflowQueryFailedError, RPCError):
        # It takes a step, or its journal is on its way.
        return True
    assert page.carried is not None or list(page.entries)[: len(kept)] == kept[: len(page.entries)]
    return len(kept) >= page.total


class User:
    """A user of one session."""

    def __init__(self, client: Client, app: str, user_id: str = "u", session_id: str = "s") -> None:
        self.client = client
        self.app = app
        self.runner = Runner(app, client)
        self.who: dict[str, Any] = {"user_id": user_id, "session_id": session_id}
        self.key = SessionKey(app, user_id, session_id).workflow_id
        self.tells_progress = False
        """Calls are answered more than once, as ADK's apps that nothing pauses take it."""

    def other(self, user_id: str = "u", session_id: str = "s") -> User:
        return User(self.client, self.app, user_id, session_id)

    @property
    def workflow(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(self.key)

    async def histories(self) -> list[WorkflowHistory]:
        """Return the history of each of the session's runs, the first one first: each names the one before."""
        found: list[WorkflowHistory] = []
        handle = self.workflow
        while True:
            found.insert(0, await handle.fetch_history())
            started = found[0].events[0].workflow_execution_started_event_attributes
            if not started.continued_execution_run_id:
                return found
            handle = self.client.get_workflow_handle(self.key, run_id=started.continued_execution_run_id)

    async def create(self, **state: Any) -> SessionView:
        return await self.runner.create_session(**self.who, state=state)

    async def send(self, message: str, **options: Any) -> str:
        """Send a message; returns the invocation's id at once."""
        result = await self.runner.send_message(**self.who, message=message, **options)
        return result.invocation.id

    async def run(self, message: str, **options: Any) -> InvocationView:
        """Send a message and wait until its invocation settles."""
        return await self.settled(await self.send(message, **options))

    async def answer(self, responses: Mapping[str, Any], **options: Any) -> InvocationView:
        """Answer calls; returns at once."""
        result = await self.runner.respond(**self.who, responses=responses, **options)
        return result.invocation

    async def answered(self, responses: Mapping[str, Any]) -> InvocationView:
        """Answer calls and wait until the invocation settles."""
        return await self.settled((await self.answer(responses)).id)

    async def resume(self, invocation_id: str) -> InvocationView:
        """Resume; returns at once."""
        return (await self.runner.resume(**self.who, invocation_id=invocation_id)).invocation

    async def resumed(self, invocation_id: str) -> InvocationView:
        """Resume and wait until the invocation settles."""
        return await self.settled((await self.resume(invocation_id)).id)

    async def stop(self, invocation_id: str, **options: Any) -> InvocationView:
        return (await self.runner.stop(**self.who, invocation_id=invocation_id, **options)).invocation

    async def signal(self, value: Any) -> None:
        await self.workflow.signal("function_response", value)

    async def view(self) -> SessionView:
        return await self.runner.get_session(**self.who)

    async def invocation(self, invocation_id: str) -> InvocationView:
        return await self.runner.invocation(**self.who, invocation_id=invocation_id)

    async def status(self, invocation_id: str) -> str:
        return (await self.invocation(invocation_id)).status

    async def settled(self, invocation_id: str, *, patience: float = _PATIENCE) -> InvocationView:
        """Wait until an invocation waits or ends."""
        view: InvocationView | None = None

        async def look() -> bool:
            nonlocal view
            view = await self.invocation(invocation_id)
            return view.status not in ("queued", "running")

        await eventually(look, patience)
        assert view is not None
        return view

    async def open(self, *tools: str, invocation_id: str | None = None) -> list[str]:
        """Wait until calls of these tools are open; returns their ids."""
        found: dict[str, str] = {}

        async def all_open() -> bool:
            found.update(await self.pending(invocation_id))
            return all(tool in found for tool in tools)

        await eventually(all_open)
        return [found[tool] for tool in tools]

    async def pending(self, invocation_id: str | None = None) -> dict[str, str]:
        """Return the ids of the session's open calls, by tool."""
        return {
            call.name: call.id
            for view in (await self.view()).invocations
            if invocation_id in (None, view.id)
            for call in view.pending
        }

    async def events(self) -> list[Event]:
        """Return the log, after a check that it is one."""
        events = [event async for event in self.runner.events(**self.who)]
        check_log(events, tells_progress=self.tells_progress)
        return events

    async def log(self, invocation_id: str | None = None) -> list[str]:
        """Return the log in short, checkpoints and ends left out."""
        events = [event for event in await self.events() if invocation_id in (None, event.invocation_id)]
        return [line for event in events for line in short(event)]

    async def logged(self, line: str, times: int = 1) -> None:
        """Wait until a line stands in the log."""

        async def look() -> bool:
            return (await self.log()).count(line) >= times

        await eventually(look)

    async def journal(self) -> Projection:
        """Return the projection, folded from the whole journal."""
        return fold_journal(await read_entries(self.workflow))


async def read_entries(workflow: WorkflowHandle[Any, Any]) -> list[Entry]:
    """Return a session's whole journal, also what readers of its events do not see."""
    entries: list[Entry] = []
    while True:
        page = await workflow.query(JOURNAL, PageInput(since=len(entries)), result_type=JournalPage)
        entries += page.entries
        if len(entries) >= page.total:
            return entries


def short(event: Event) -> list[str]:
    """Return an event in a few words; nothing for a checkpoint or an end."""
    called = ", ".join(call.name or "" for call in event.get_function_calls())
    responded = ", ".join(response.name or "" for response in event.get_function_responses())
    found = [f"{event.author}: {event.text}"] if event.text else []
    found += [f"{event.author} calls {called}"] if called else []
    found += [f"{event.author} {'answers' if event.author == USER else 'got'} {responded}"] if responded else []
    return found


def responses(events: Sequence[Event], tool: str) -> list[Any]:
    """Return every response to a tool's calls, in log order."""
    return [r.response for event in events for r in event.get_function_responses() if r.name == tool]


def check_log(events: Sequence[Event], *, tells_progress: bool = False) -> None:
    """Check what holds of every log: no id twice, no response without its call, none twice, no answer too early."""
    ids = [event.id for event in events]
    assert len(ids) == len(set(ids)), "an event was logged twice"
    called: set[str | None] = set()
    seen: set[tuple[bool, str | None]] = set()
    asked: set[str | None] = set()
    for event in events:
        called.update(call.id for call in event.get_function_calls())
        for response in event.get_function_responses():
            assert response.id in called, f"a response to {response.name} without its call"
            key = (event.author == USER, response.id)
            if event.author == USER:
                assert key not in seen or tells_progress, f"the user's answer to {response.name} was logged twice"
            else:
                # Only a tool that a person let run, by a word or a credential, responds a second time.
                assert key not in seen or response.id in asked, f"{response.name} responded twice"
                assert (True, response.id) not in seen, f"{response.name} responded after the user's answer"
            seen.add(key)
        asked.update(event.actions.requested_tool_confirmations)
        asked.update(event.actions.requested_auth_configs)


async def eventually(condition: Callable[[], bool | Awaitable[bool]], patience: float = _PATIENCE) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It does not within some seconds.
    """
    deadline = time.monotonic() + patience
    pause = 0.02
    while True:
        held = condition()
        if held if isinstance(held, bool) else await held:
            return
        assert time.monotonic() < deadline, "what the test waits for did not come"
        await asyncio.sleep(pause)
        # Without a cache each look is a replay.
        pause = min(pause * 1.3, 0.3)
