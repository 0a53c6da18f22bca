"""Runs a custom agent's code, up to the sub-agents that it waits for, which the workflow runs.

Where the code is not kept suspended there, as after a restart, it runs from its top once more, and is given what it had
logged, and what its sub-agents logged, as it comes to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event as AdkEvent

from perdure.adk import internals
from perdure.adk.code.code_sessions import CodeSession, Places, PlayedLog
from perdure.adk.events import to_adk
from perdure.adk.registry import AdkRegistry
from perdure.adk.step_contexts import StepContexts
from perdure.adk.supported import runs_itself
from perdure.errors import EffectFailed, error_text
from perdure.journal.entries import Entry, FailureCaught
from perdure.journal.events import Event
from perdure.journal.run_tree import build_runs
from perdure.journal.runs import AgentRun
from perdure.messages.step_log import NextAgent
from perdure.steps.base import CodeFailed, Place, Snapshot, StepOutput, StepRefused

_GRACE_SECONDS = 5.0
"""What code that is ended gets to clean up."""

TURNS = 20
"""Turns of the loop in which what an agent's code has begun besides comes to its sub-agents, too."""

_Key = tuple[str, int]
"""A sub-agent's name, and which run of it since the last checkpoint."""


class SubAgentFailed(RuntimeError):
    """A sub-agent of a custom agent, or an agent in a graph, failed, and its retries did not help."""

    def __init__(self, failure: FailureCaught) -> None:
        """Tell of the first of its failures."""
        first = failure.failures[0]
        super().__init__(str(EffectFailed(first.agent, first.step, first.cause)))


@dataclass(frozen=True)
class Past:
    """What the journal tells of a custom agent's run."""

    entries: Sequence[Entry]
    """Of the session's whole journal, which grows."""
    length: int
    """What there was of it as the step was scheduled."""
    run: AgentRun
    places: Places
    over: dict[_Key, AgentRun]
    """Runs of sub-agents that came to an end since the last checkpoint."""

    @classmethod
    def of(cls, at: Place, session: Snapshot) -> Past:
        """Look for the run in the session's journal.

        Raises:
            StepRefused: Its place in the tree cannot be named.
        """
        projection = session.projection
        invocation = projection.invocations[at.invocation_id]
        plan = projection.plan_of(invocation)
        assert plan is not None, "an invocation at work has a plan"
        root = build_runs(plan, invocation.agent or plan.root.name, invocation.entries)
        run = next((run for run in _tree(root) if at.run and run.path == at.run), None)
        if run is None:
            raise StepRefused(
                "DefinitionError", f"agent {at.agent!r} runs within too many others; have fewer of them in each other"
            )
        entries = (session.around or projection).entries
        over = {(one.agent, one.nth): one for one in run.children if one.ended or one.failure is not None}
        return cls(entries, len(entries), run, Places(entries, at), over)


def _tree(run: AgentRun) -> Iterator[AgentRun]:
    yield run
    for child in run.children:
        yield from _tree(child)


@dataclass(frozen=True)
class Code:
    """An agent's code with what it works with."""

    agent: BaseAgent
    context: InvocationContext
    session: CodeSession
    log: PlayedLog
    registry: AdkRegistry

    def runs(self, agent: BaseAgent, context: InvocationContext) -> bool:
        """Return whether the workflow runs an agent that the code wants to run in a context."""
        return context.session is self.session.session and self.registry.runs_below(self.agent.name, agent)

    async def events(self) -> AsyncGenerator[object, None]:
        """Run the code."""
        run: Any = self.agent.run_async if runs_itself(self.agent) else getattr(self.agent, "_run_async_impl")  # noqa: B009
        async with aclosing(run(self.context)) as events:
            async for event in events:
                yield event


running: ContextVar[CodeRun | None] = ContextVar("the custom agent whose code runs", default=None)


class CodeRun:
    """One run of an agent's code: under way in a task of its own, where nothing tells it of steps."""

    def __init__(self, at: Place, code: Code, contexts: StepContexts) -> None:
        self._at = at
        self._code = code
        self._contexts = contexts
        self._past: Past
        self._past_own: list[Event] = []
        self._forgets = False
        """It has logged a checkpoint since it began: what was before that is not given to it."""
        self._begun: Counter[str] = Counter()
        self._asked: dict[_Key, Asked] = {}
        self._given: set[str] = set()
        """Events of sub-agents that the code was given."""
        self._own = 0
        """Events of its own since the last checkpoint."""
        self._checkpoints = 0
        self._told = (0, 0)
        """Events of its own, and checkpoints, that its last step has returned: it may go on in between."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        code.session.is_known = self._is_known

    @property
    def suspended(self) -> bool:
        """Whether it has still to go on."""
        return self._task is not None and not self._task.done()

    def fits(self, past: Past) -> bool:
        """Return whether the journal has what the code has logged, and no more of it."""
        return (len(past.run.own), past.run.checkpoints) == self._told

    async def go_on(self, past: Past) -> StepOutput:
        """Let the code run until it waits for nothing but sub-agents, or ends; returns what it has logged since.

        Raises:
            CodeFailed: It raised.
        """
        self._past, self._forgets = past, False
        if self._task is None:
            self._past_own, self._checkpoints = list(past.run.own), past.run.checkpoints
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(lambda _: self._changed.set())
        if all(key in past.over for key in self._asked):
            for key, asked in self._asked.items():
                asked.run.set_result(past.over[key])
            self._asked.clear()
        while not self._task.done() and not await self._waits():
            self._changed.clear()
            await self._changed.wait()
        return await self._output()

    async def _waits(self) -> bool:
        """Return whether the code waits for sub-agents, once what it gathers had time to ask for them."""
        for _ in range(TURNS if self._asked else 0):
            await asyncio.sleep(0)
        assert self._task is not None, "it runs"
        return bool(self._asked) and not self._task.done()

    async def close(self) -> None:
        """End the code where it is."""
        if self._task is not None:
            self._task.cancel()
            # Code may swallow that.
            await asyncio.wait({self._task}, timeout=_GRACE_SECONDS)

    async def _output(self) -> StepOutput:
        code = self._code
        await self._check()
        # All of one moment: the code may go on meanwhile, and the next step returns what it does.
        self._told, taken = (self._own, self._checkpoints), len(code.session.logged)
        agents = tuple(
            NextAgent(agent=name, nth=nth, branch=one.branch)
            for (name, nth), one in self._asked.items()
            if self._over((name, nth)) is None
        )
        output = await self._contexts.output(self._at, code.session, code.context)
        del code.session.logged[:taken]
        return replace(output, agents=agents, passes_on=self._error is not None)

    async def _check(self) -> None:
        """Check that the code has not raised what is its own."""
        code, error = self._code, self._error
        if isinstance(error, Exception) and not isinstance(error, SubAgentFailed):
            await internals.tell_failure(code.agent, code.context, error)
            left = await self._contexts.left(self._at, code.agent, code.session, error)
            raise CodeFailed(type(error).__name__, str(error), left) from error

    async def _run(self) -> None:
        running.set(self)
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    await self._take(event)
            await self._show_all()
        except Exception as error:
            self._error = error
        except (SystemExit, KeyboardInterrupt) as error:
            self._error = RuntimeError(f"the code asked the process to exit: {error_text(error)}")

    def _events(self) -> AsyncGenerator[object, None]:
        return self._code.events()

    async def _take(self, event: object) -> None:
        """Log an event that the code yielded, unless it is a sub-agent's, or logged already."""
        agent = self._code.agent
        if not isinstance(event, AdkEvent):
            raise TypeError(
                f"the code of agent {agent.name!r} yielded {type(event).__name__!r}, where google.adk takes an Event"
            )
        if event.partial or event.id in self._given or await self._is_known(event):
            return
        event.author = event.author or agent.name
        await self._code.session.log(await self._contexts.seen(self._code.context, event))

    async def _is_known(self, event: AdkEvent) -> bool:
        if event.actions.agent_state is not None or event.actions.end_of_agent:
            self._past_own.clear()
            self._begun.clear()
            self._forgets, self._own = True, 0
            self._checkpoints += 1
        else:
            self._own += 1
            if self._past_own:
                await self._show(self._past.places.of_event.get(self._past_own.pop(0).id, 0))
                return True
        await self._show_all()
        self._code.log.logged()
        return False

    async def _show(self, length: int) -> None:
        await self._code.log.to(self._past.entries, length)

    async def _show_all(self) -> None:
        """Show the code all that the session has by now: it is where it has not been before."""
        await self._show(self._past.length)

    def events_of(self, agent: BaseAgent, context: InvocationContext) -> AsyncGenerator[AdkEvent, None] | None:
        """Return the events of a sub-agent's run, which the workflow runs; `None` if google.adk is to run it."""
        return self._events_of(agent.name, context.branch) if self._code.runs(agent, context) else None

    def _over(self, key: _Key) -> AgentRun | None:
        """Return a sub-agent's run that came to an end, if it is one since the last checkpoint."""
        return self._past.over.get(key) if not self._forgets else None

    async def _events_of(self, name: str, branch: str | None) -> AsyncGenerator[AdkEvent, None]:
        self._begun[name] += 1
        key = (name, self._begun[name])
        run = self._over(key)
        if run is None:
            await self._show_all()
            asked = self._asked[key] = Asked(branch, asyncio.get_running_loop().create_future())
            self._changed.set()
            try:
                run = await asked.run
            finally:
                # The code may have given it up, by a timeout of its own.
                self._asked.pop(key, None)
        places = self._past.places
        for event in list(run.log):
            self._given.add(event.id)
            try:
                yield to_adk(event)
            finally:
                await self._show(places.of_event.get(event.id, 0))
        await self._show(places.of_end.get(run.path, 0))
        if run.failure is not None:
            raise SubAgentFailed(run.failure)


@dataclass(frozen=True)
class Asked:
    """A sub-agent that the code waits for."""

    branch: str | None
    run: asyncio.Future[AgentRun]


def _route(agent: BaseAgent, context: InvocationContext) -> AsyncGenerator[AdkEvent, None] | None:
    code = running.get()
    return code.events_of(agent, context) if code is not None else None


internals.route_agents(_route)
