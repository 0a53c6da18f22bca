"""Runs a graph: google.adk's own loop over its nodes, of which the workflow runs the agents.

A step ends where a node has: its code waits there until what it logged is kept, and so does what comes behind it.
Nodes beside it go on meanwhile. Where the graph is not kept suspended, it begins at its top, and google.adk passes over
the nodes that have ended, by what the session tells of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event as AdkEvent
from google.adk.events.event_actions import EventActions

from perdure.adk import graph_internals, internals
from perdure.adk.code.adk_code import AdkCode, AdkRun
from perdure.adk.graphs import is_leaf
from perdure.adk.step_contexts import StepContexts
from perdure.journal.events import Event
from perdure.journal.node_runs import NodeRun, ends_node, path_of
from perdure.journal.runs import AgentRun
from perdure.messages.step_log import NextAgent
from perdure.steps.base import Place, StepOutput
from perdure.steps.code.code_runs import PATIENCE_LOGGED_SECONDS, PATIENCE_SHOWN_SECONDS, TURNS, running
from perdure.steps.code.past import Past
from perdure.streams.drafts import Drafts

__all__ = ["GraphRun", "RunSync"]

RunSync = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]
"""Runs a function that is not async, with its arguments."""

_PATIENCE_SECONDS = 240.0
"""How long a step waits for nodes at work; then another one does. Its activity may take ten minutes."""

_PATIENCE_BESIDE_SECONDS = 30.0
"""As long at the most, where agents that the workflow runs may end beside them: only the next step sees that."""

_UNNAMED = (
    "run_node({name}) was called where Perdure did not find in the code that it is: let the tool name the function that"
    " calls it, as a global, a variable around it, or a method of an object that it names; a callback cannot run nodes"
)

_node: ContextVar[str] = ContextVar("the node whose code runs, by its path, and which of its runs that is", default="")

_AskKey = tuple[str, int]
"""The path of an agent's node, and which run of its agent: google.adk may try a node again."""


@dataclass(frozen=True)
class _Asked:
    agent: str
    branch: str | None
    node: NodeRun
    over: asyncio.Future[AgentRun]


class GraphRun(AdkRun):
    """One run of a graph, from its top to its end, or to where all that is left of it waits for answers."""

    def __init__(self, at: Place, code: AdkCode, contexts: StepContexts, run_sync: RunSync) -> None:
        super().__init__(at, code)
        self._contexts = contexts
        self._run_sync = run_sync
        self._one_by_one = asyncio.Lock()
        """Functions that are not async run in the order in which nodes begin, as on google.adk's loop."""
        self._agents: dict[_AskKey, _Asked] = {}
        """Agents that nodes wait for."""
        self._asks: Counter[str] = Counter()
        self._known: dict[str, list[Event]] = {}
        """What nodes had logged, by path, since the graph's last begin: one that runs again logs it no second time."""
        self._held: dict[str, AdkEvent] = {}
        """What the journal has of nodes that have not ended, by id: google.adk sees it as they come to it again."""
        self._passed: set[str] = set()
        """Nodes that ended in an earlier run of this invocation and left no event that tells so."""
        self._at_work: set[str] = set()
        """Nodes whose code runs, by path."""
        self._runs: Counter[str] = Counter()
        """How often each node was to run, by path: also those that are passed over."""
        self._gates: dict[str, asyncio.Future[None]] = {}
        """Nodes that have ended, and wait until that is kept."""
        self._news_told: set[str | _AskKey] = set()
        """Gates and agents that a step has told of."""
        self._done: list[str] = []
        self._empty_steps = 0

    async def go_on(self, past: Past, drafts: Drafts | None = None) -> StepOutput:
        """Let the graph run until a node ends, or it waits for nothing but agents; returns what it has logged since.

        Args:
            past: What the journal tells of its run.
            drafts: Get the parts of what nodes say; the last ones, until the next step.

        Raises:
            CodeFailed: A node failed.
        """
        self._past = past
        self._parts.drafts = drafts
        if self._task is None:
            self._begin(past)
        assert self._task is not None, "it has begun"
        for path in [path for path in self._gates if path in self._news_told]:
            self._gates.pop(path).set_result(None)
            self._news_told.discard(path)
        for key, asked in list(self._agents.items()):
            run = self._run_of(key)
            if run is not None and (run.ended or run.failure is not None):
                del self._agents[key]
                asked.over.set_result(run)
        await self._until_news(self._task)
        return await self._output()

    def _begin(self, past: Past) -> None:
        logged = defaultdict[str, list[Event]](list)
        for event in past.run.own:
            logged[path_of(event)].append(event)
        self._known = {path: list(_of_last_attempt(events)) for path, events in logged.items()}
        self._passed = {path_of(event) for event in past.places.marks}
        self._own, self._checkpoints = len(past.run.own), past.run.checkpoints
        self._hold_back(past, logged)
        self._parts.begin(past, {self._place(path): len(events) for path, events in logged.items()})
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._changed.set())

    def _hold_back(self, past: Past, logged: Mapping[str, list[Event]]) -> None:
        """Keep from google.adk what nodes logged that have not ended: it would take some for nodes that have."""
        at_work = {run.node.path for run in past.run.children if run.node is not None and not _has_ended(run)}
        at_work |= {path for path, events in logged.items() if path not in self._passed and not _tells(events)}
        shown = self.code.session.session.events
        invocation = self._at.invocation_id
        for index, event in enumerate(list(shown)):
            info: Any = getattr(event, "node_info")  # noqa: B009 -- not in 1.x
            if event.invocation_id == invocation and info.path in at_work:
                self._held[event.id] = event
            elif event.invocation_id == invocation and event.actions.transfer_to_agent:
                # The workflow has run whom it handed over to.
                shown[index] = event.model_copy(update={"actions": _stays(event.actions)})
        shown[:] = [event for event in shown if event.id not in self._held]

    def _show_held(self, id: str) -> None:
        event = self._held.pop(id, None)
        if event is not None:
            self.code.session.session.events.append(event)

    def _place(self, path: str) -> str:
        """Return where a node's events come from, since the graph's last begin."""
        return f"{self._checkpoints}:{path}"

    def _patience(self) -> float:
        if self.code.holds:
            return PATIENCE_SHOWN_SECONDS if self._parts.waits else PATIENCE_LOGGED_SECONDS
        if not self._agents:
            return _PATIENCE_SECONDS
        # No more doublings than it takes: there may be thousands of such steps.
        return min(2.0 ** min(self._empty_steps, 10), _PATIENCE_BESIDE_SECONDS)

    async def _until_news(self, task: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not task.done():
            self._changed.clear()
            if self._news() or not self._works():
                # What else comes of this moment comes with it.
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                if self._news() or (self._agents and not self._works()):
                    return
            left = began + self._patience() - loop.time()
            if left <= 0:
                return
            if not self._changed.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)

    def _news(self) -> bool:
        return any(one not in self._news_told for one in [*self._gates, *self._agents])

    def _works(self) -> bool:
        """Return whether the code of a node runs that does not wait for another node."""
        waiting = [*self._gates, *(path for path, _ in self._agents)]
        return any(
            path not in self._gates and not any(below.startswith(f"{path}/") for below in waiting)
            for path in self._at_work
        )

    async def _output(self) -> StepOutput:
        await self._check()
        over = not self.suspended
        agents = tuple(self._next_agents())
        goes_on = not over and bool(self._gates or self._works())
        told = self._news()
        self._news_told.update(self._agents, self._gates)
        done, self._done = tuple(self._done), []
        self._own += len(done)
        self._told = (self._own, self._checkpoints)
        self._empty_steps = 0 if self.code.holds or done or told else self._empty_steps + 1
        output = await self.code.output()
        self._parts.waits = False
        return replace(output, agents=agents, failed=self._failure(), done=done, goes_on=goes_on)

    def _again(self, error: BaseException) -> tuple[int, ...]:
        # The graph may have run others anew.
        return ()

    def _next_agents(self) -> Iterator[NextAgent]:
        """Yield all agents that nodes wait for; the workflow knows which of them it has begun."""
        counts = Counter(run.agent for run in self._past.run.children)
        for key, asked in self._agents.items():
            known = self._run_of(key)
            if known is None:
                counts[asked.agent] += 1
            nth = counts[asked.agent] if known is None else known.nth
            yield NextAgent(agent=asked.agent, nth=nth, branch=asked.branch, node=asked.node)

    async def _events(self) -> AsyncGenerator[object, None]:
        code = self.code
        with internals.sync_calls(self._in_thread):
            async with aclosing(graph_internals.run_graph(code.agent, code.context)) as events:
                async for event in events:
                    yield event

    async def _in_thread(self, fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        async with self._one_by_one:
            result = await self._run_sync(fn, kwargs)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # It was waited for all the same; but its node is given up, and nobody takes its events.
            raise asyncio.CancelledError
        return result

    async def _take(self, event: object) -> None:
        """Log an event of a node, unless it is an agent's, or logged already."""
        assert isinstance(event, AdkEvent), "google.adk has looked"
        path = _node_path(event)
        if event.partial:
            if not self._known.get(path):
                part = await self.code.part(event)
                self._parts.show(part, self._place(path), before=self.code.held)
                self._changed.set()
            return
        if event.id in self._given or self._is_bookkeeping(event) or await self._is_known(event):
            return
        id = self._parts.logged(event.author, self._place(path))
        event = await self._contexts.seen(self.code.context, event)
        await self.code.session.log(graph_internals.as_logged(event), id)
        # What it says is shown before it has ended.
        self._changed.set()

    def _is_bookkeeping(self, event: AdkEvent) -> bool:
        """Return whether an event says only what the journal knows: of a resumable app.

        Checkpoints; and the output of an agent that has ended since the graph's last begin. Behind an answer, which is
        where it begins anew, google.adk logs the outputs of nodes that it passes over once more.
        """
        if event.actions.agent_state is not None or event.actions.end_of_agent:
            return True
        node: Any = event
        path = node.node_info.path if node.output is not None else None
        return any(run.node is not None and run.node.path == path for run in self._past.run.children)

    async def _is_known(self, event: AdkEvent) -> bool:
        known = self._known.get(_node_path(event))
        if known:
            self._show_held(known.pop(0).id)
            return True
        self._own += 1
        self.code.log.logged()
        return False

    async def run_node(self, node: Any, runner: Any, path: str, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a node, unless it has ended."""
        self._runs[path] += 1
        token = _node.set(f"{path}#{self._runs[path]}")
        try:
            return await self._run_node(node, runner, path, run)
        finally:
            _node.reset(token)

    def place(self) -> str:
        """Return where its code is, as it is when that runs again: in which node, since which begin of the graph."""
        return self._place(_node.get())

    async def _run_node(self, node: Any, runner: Any, path: str, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a node; one of the app's code waits at its end until what it logged is kept."""
        if not is_leaf(node):
            return await run()
        if path in self._passed:
            return graph_internals.ended_with(runner, path)
        self._at_work.add(path)
        try:
            context = await run()
            if context.error is None and not context.interrupt_ids:
                if context.output is None and context.route is None:
                    self._done.append(path)
                gate = self._gates[path] = asyncio.get_running_loop().create_future()
                self._changed.set()
                await gate
            return context
        finally:
            self._at_work.discard(path)
            self._gates.pop(path, None)
            self._changed.set()

    def events_of(self, agent: BaseAgent, context: InvocationContext) -> AsyncGenerator[AdkEvent, None] | None:
        """Return the events of an agent's run, which the workflow runs; `None` if google.adk is to run it."""
        node = graph_internals.node_run(context.session) if self.code.runs(agent, context) else None
        return self._events_of_node(agent.name, context.branch, node) if node is not None else None

    async def _events_of_node(self, name: str, branch: str | None, node: NodeRun) -> AsyncGenerator[AdkEvent, None]:
        self._asks[node.path] += 1
        key = (node.path, self._asks[node.path])
        run = self._run_of(key)
        if run is None or not (run.ended or run.failure is not None):
            asked = _Asked(name, branch, node, asyncio.get_running_loop().create_future())
            self._agents[key] = asked
            self._changed.set()
            try:
                run = await asked.over
            finally:
                # The graph may have given it up, by a timeout of its node.
                self._agents.pop(key, None)
                self._changed.set()
        for event in list(run.log):
            self._given.add(event.id)
            self._show_held(event.id)
            if path_of(event) != node.path:
                # Of a node underneath, whose output is its own.
                await self._show(self._past.places.of_event.get(event.id, 0))
                continue
            shown: Any = self.code.as_given(event)
            # The workflow has waited for its answers, and has run whom it handed over to.
            shown.long_running_tool_ids = None
            shown.actions = _stays(shown.actions)
            try:
                yield shown
            finally:
                await self._show(self._past.places.of_event.get(event.id, 0))
        await self._show(self._past.places.of_end.get(run.path, 0))
        if run.failure is not None:
            raise self._met(run.failure)

    def _run_of(self, key: _AskKey) -> AgentRun | None:
        """Return the run of an agent that the journal has."""
        path, number = key
        runs = [run for run in self._past.run.children if run.node is not None and run.node.path == path]
        return runs[number - 1] if number <= len(runs) else None


def _stays(actions: EventActions) -> EventActions:
    """Return actions without the transfer, of which google.adk would run the agent once more."""
    return actions.model_copy(update={"transfer_to_agent": None})


def _node_path(event: AdkEvent) -> str:
    """Return the path of the node that says an event; empty if none does."""
    return getattr(event, "node_info").path or ""  # noqa: B009 -- not in 1.x


def _has_ended(run: AgentRun) -> bool:
    """Return whether an agent's run has; a log from elsewhere may tell so by its output only."""
    return run.ended or any(map(ends_node, run.log))


def _tells(events: Sequence[Event]) -> bool:
    """Return whether a node's events tell that it has ended, or that it asks."""
    last = events[-1]
    if last.error_code is not None or last.long_running_tool_ids:
        return bool(last.long_running_tool_ids)
    return any(map(ends_node, _of_last_attempt(events)))


def _of_last_attempt(events: Sequence[Event]) -> Sequence[Event]:
    """Return what a node logged behind its last failure, and its last question: its code begins anew behind these."""
    for index in range(len(events), 0, -1):
        if events[index - 1].error_code is not None or events[index - 1].long_running_tool_ids:
            return events[index:]
    return events


async def _route(node: Any, runner: Any, path: str, run: Callable[[], Awaitable[Any]]) -> Any:
    code = running.get()
    if isinstance(code, GraphRun):
        return await code.run_node(node, runner, path, run)
    if not graph_internals.may_run(runner):
        raise RuntimeError(_UNNAMED.format(name=node.name))
    return await run()


if internals.MAJOR >= 2:
    graph_internals.route_nodes(_route)
