"""One run of a custom agent's code: up to what it waits for, and on from there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from perdure.errors import EffectFailed
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import ActivityKept, Failure, FailureCaught
from perdure.journal.events import Event
from perdure.journal.runs import AgentRun
from perdure.messages.step_log import CodeFailure, NextAgent, NextCall
from perdure.steps.base import CodeFailed, Place, StepOutput
from perdure.steps.code.agent_code import Code
from perdure.steps.code.failures import Failures
from perdure.steps.code.own_tasks import OwnTasks
from perdure.steps.code.parts import Parts
from perdure.steps.code.past import Answer, Key, Past, call_key, run_key
from perdure.steps.raised import as_exception
from perdure.streams.drafts import Drafts

_GRACE_SECONDS = 5.0
"""What code that is ended gets to clean up."""

TURNS = 20
"""Turns of the loop in which what an agent's code has begun besides comes to its sub-agents, too."""

_PATIENCE_SECONDS = 3600.0
"""How long a step waits for code that is at work; then another one does. Its activity may take two hours."""

_PATIENCE_BESIDE_SECONDS = 30.0
"""As long at the most, where something that the workflow runs may end beside it: only the next step sees that."""

PATIENCE_LOGGED_SECONDS = 2.0
"""As long, where it has logged what others wait to see."""

PATIENCE_SHOWN_SECONDS = 0.2
"""As long, where parts of what it says behind that are to be shown."""

_LOOK_SECONDS = 15.0
"""How often a step looks whether the code is still at work."""

_LONG_SLEEP_SECONDS = 60.0
"""A longer one of the code's is a timer of the workflow's: no step is open meanwhile."""

_MOST_SECONDS_BETWEEN_TIMERS = 60.0

_MOST_HELD_BYTES = 500_000
"""What one step returns of it, but for a single event, or a single call, that is larger."""

CodeT = TypeVar("CodeT", bound=Code)


@dataclass(frozen=True)
class Asked:
    """Something that the code waits for, and that the workflow runs."""

    what: NextAgent | NextCall
    over: asyncio.Future[Answer]


running: ContextVar[CodeRun[Any] | None] = ContextVar("the custom agent whose code runs", default=None)


class CodeRun(Generic[CodeT]):
    """One run of an agent's code: under way in a task of its own, where nothing tells it of steps."""

    def __init__(self, at: Place, code: CodeT) -> None:
        self.code = code
        self._at = at
        self._past: Past
        self._past_own: list[Event] = []
        self._past_over: set[Key] = set()
        self._retraces = True
        """It has still to come to the end of what the journal had of it as it began."""
        self._forgets = False
        """It has logged a checkpoint since the step began: what was before that is not given to it."""
        self._begun: Counter[Key] = Counter()
        """What it has asked for since the last checkpoint."""
        self._asked: dict[Key, Asked] = {}
        self._told_of: set[Key] = set()
        """Of these, what a step has told of."""
        self._given: set[str] = set()
        """Events of sub-agents that the code was given."""
        self._own = 0
        """Events of its own since the last checkpoint."""
        self._checkpoints = 0
        self._told = (0, 0)
        """Events of its own, and checkpoints, that its last step has returned: it may go on in between."""
        self._failures = Failures()
        self._tasks = OwnTasks()
        self._empty_steps = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._error: Exception | None = None
        self._parts = Parts(at)
        self._full: asyncio.Future[None] | None = None
        """Done once a step has returned what the code has logged: it waits for that."""
        code.is_known = self._is_known
        code.is_given = self._given.__contains__

    @property
    def suspended(self) -> bool:
        """Whether it has still to go on."""
        return self._task is not None and not self._task.done()

    def fits(self, past: Past) -> bool:
        """Return whether the journal has what the code has logged, and no more of it."""
        return (len(past.run.own), past.run.checkpoints) == self._told

    async def go_on(self, past: Past, drafts: Drafts | None = None) -> StepOutput:
        """Let the code run until it waits for something new, or ends; returns what it has logged since.

        Args:
            past: What the journal tells of its run.
            drafts: Get the parts of what it says; the last ones, until the next step.

        Raises:
            CodeFailed: It raised.
        """
        self._past, self._forgets = past, False
        self._parts.drafts = drafts
        if self._task is None:
            self._parts.begin(past, {})
            self._past_own, self._past_over = list(past.run.own), set(past.over)
            self._checkpoints = past.run.checkpoints
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(lambda _: self._changed.set())
        for key, asked in list(self._asked.items()):
            if key in past.over and not asked.over.done():
                self._drop(key)
                asked.over.set_result(past.over[key])
        await self._until_news(self._task)
        return await self._output()

    async def _until_news(self, task: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not task.done():
            self._changed.clear()
            await _let_others_ask()
            if task.done() or self._full is not None or self._asked.keys() - self._told_of:
                return
            if (self._asked or self._sleeps_long()) and not self._works():
                return
            left = began + self._patience() - loop.time()
            if left <= 0:
                return
            if not self._changed.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), min(left, _LOOK_SECONDS))

    def _works(self) -> bool:
        return self._tasks.are_at_work([asked.over for asked in self._asked.values()])

    def _sleeps_long(self) -> bool:
        return (self._tasks.next_timer() or 0.0) > _LONG_SLEEP_SECONDS

    def _patience(self) -> float:
        if self.code.holds:
            return PATIENCE_SHOWN_SECONDS if self._parts.waits else PATIENCE_LOGGED_SECONDS
        # No more doublings than it takes: there may be thousands of such steps.
        beside = min(2.0 ** min(self._empty_steps, 10), _PATIENCE_BESIDE_SECONDS)
        return beside if self._asked else _PATIENCE_SECONDS

    async def close(self) -> None:
        """End the code where it is."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            # Code may swallow that.
            await asyncio.wait({self._task}, timeout=_GRACE_SECONDS)
        self._let_go()

    def _let_go(self) -> None:
        """End what the code has left behind that waits for what nobody runs any more."""
        for asked in self._asked.values():
            asked.over.cancel()

    async def _output(self) -> StepOutput:
        await self._check()
        # All of one moment: the code may go on meanwhile, and the next step returns what it does.
        self._told = (self._own, self._checkpoints)
        waits = bool(self._asked) or self._sleeps_long()
        goes_on = self.suspended and (self._full is not None or not waits or self._works())
        told = self._asked.keys() - self._told_of or self.code.holds
        self._empty_steps = 0 if told else self._empty_steps + 1
        self._told_of.update(self._asked)
        asked = [one.what for one in self._asked.values()]
        agents = tuple(one for one in asked if isinstance(one, NextAgent))
        calls = tuple(one for one in asked if isinstance(one, NextCall))
        wakes_in = self._wakes_in() if self.suspended and not goes_on else None
        if self._full is not None:
            self._full.set_result(None)
            self._full = None
        output = await self.code.output()
        self._parts.waits = False
        if not self.suspended:
            self._let_go()
        return replace(output, agents=agents, calls=calls, failed=self._failure(), goes_on=goes_on, wakes_in=wakes_in)

    def _wakes_in(self) -> float | None:
        timer = self._tasks.next_timer()
        # A library may have timers of its own, which lead to nothing.
        least = min(2.0**self._empty_steps, _MOST_SECONDS_BETWEEN_TIMERS) if self._empty_steps > 1 else 0.001
        return None if timer is None else max(timer, least)

    async def _check(self) -> None:
        """Check that the code has not raised what is its own."""
        error = self._error
        if isinstance(error, Exception) and self._failure() is None:
            left = await self.code.left(error)
            raise CodeFailed(type(error).__name__, self.code.told(error), left) from error

    def _failure(self) -> CodeFailure | None:
        """Return the failure of another step by which the code has ended, if it is one."""
        error = self._error
        entry = self._failures.entry_of(error) if error is not None else None
        if error is not None and entry is not None:
            return CodeFailure(failures=entry.failures, silent=entry.silent, again=self._again(error))
        if not isinstance(error, EffectFailed):
            return None
        failure = Failure(agent=error.agent, step=error.step, cause=error.cause)
        return CodeFailure(failures=(failure,), silent=error.silent, again=self._again(error))

    def _again(self, error: BaseException) -> tuple[int, ...]:
        return self._failures.again(error)

    async def _run(self) -> None:
        running.set(self)
        self._tasks.begin()
        self._failures.begin()
        try:
            await self._show_rest()
            async with aclosing(self._events()) as events:
                async for event in events:
                    await self._take(event)
            await self._show_all()
        except BaseException as error:
            if not self._closed:
                self._error = as_exception(error)
        finally:
            self._parts.end()

    def _events(self) -> AsyncGenerator[object, None]:
        return self.code.events()

    async def _take(self, event: object) -> None:
        """Log an event that the code yielded, unless it is a sub-agent's, or logged already."""
        taken = self.code.checked(event)
        if taken.id and taken.id in self._given:
            # Behind its `yield` the code may look for it in the session, before it asks for the next.
            await self._show(self._past.places.of_event.get(taken.id, 0))
            return
        if taken.partial:
            await self._tell(taken)
            return
        id = self._parts.logged(taken.author, str(self._checkpoints))
        if await self._is_known(taken):
            return
        await self.code.keep(taken, id)
        if self.code.holds > _MOST_HELD_BYTES:
            await self._until_returned()

    async def _tell(self, event: Any) -> None:
        """Show a part of an event, unless it was shown before the code ran from its top again."""
        if not self._retraces:
            self._parts.show(await self.code.part(event), str(self._checkpoints), before=self.code.held)
            self._changed.set()

    async def _until_returned(self) -> None:
        """Wait until a step has returned what the code has logged: there is no room for more."""
        self._full = self._full or asyncio.get_running_loop().create_future()
        self._changed.set()
        # Others of its tasks may wait for the same.
        await asyncio.wait([self._full])

    async def _is_known(self, event: Any) -> bool:
        """Return whether the log has an event of the code's own already."""
        is_state = event.actions.agent_state is not None or event.actions.end_of_agent
        if is_state:
            await self._until_nothing_is_asked()
            self._failures.forget()
        self._failures.go_on()
        if is_state:
            self._past_own.clear()
            self._past_over.clear()
            self._begun.clear()
            self._forgets, self._own = True, 0
            self._checkpoints += 1
        else:
            self._own += 1
            if self._past_own:
                await self._show(self._past.places.of_event.get(self._past_own.pop(0).id, 0))
                await self._show_rest()
                return True
        await self._show_all()
        if not self.code.hides(event):
            self.code.log.logged()
        return False

    async def _until_nothing_is_asked(self) -> None:
        """Wait until what the code asks for besides is over: a checkpoint forgets what was begun before it."""
        await _let_others_ask()
        while self._asked:
            await asyncio.wait([asked.over for asked in self._asked.values()])

    async def _show(self, length: int) -> None:
        await self.code.log.to(self._past.entries, length)

    async def _show_all(self) -> None:
        """Show the code all that the session has by now: it is where it has not been before."""
        await self._show(self._past.length)

    async def _show_rest(self) -> None:
        """Where it comes to the end of what it had done before: show what others have done since, such as a resume."""
        if self._retraces and not self._past_own and not self._past_over:
            self._retraces = False
            await self._show_all()

    async def run_agent(self, name: str, branch: str | None) -> AsyncGenerator[Any, None]:
        """Have the workflow run a sub-agent; yields its events.

        Raises:
            Exception: It failed.
        """
        self._failures.go_on()
        nth = self._count(run_key(name, 0))
        run = await self._answer(run_key(name, nth), NextAgent(agent=name, nth=nth, branch=branch))
        assert isinstance(run, AgentRun), "what came of an agent is its run"
        places = self._past.places
        for event in list(run.log):
            self._given.add(event.id)
            try:
                yield self.code.as_given(event)
            finally:
                await self._show(places.of_event.get(event.id, 0))
        await self._show(places.of_end.get(run.path, 0))
        await self._pass(run_key(name, nth))
        if run.failure is not None:
            raise self._met(run.failure)

    async def call(self, call: NextCall) -> ActivityKept:
        """Have the workflow run a function; returns its result.

        Args:
            call: The function, with its arguments; which call it is is found here.

        Raises:
            Exception: It failed.
        """
        self._failures.go_on()
        nth = self._count(call_key(call.name, call.arguments, 0))
        size = payload_size(call)
        while self._asked and size + self._asked_bytes() > _MOST_HELD_BYTES:
            await asyncio.wait([one.over for one in self._asked.values()], return_when=asyncio.FIRST_COMPLETED)
        if size + self.code.holds > _MOST_HELD_BYTES and self.code.holds:
            await self._until_returned()
        key = call_key(call.name, call.arguments, nth)
        kept = await self._answer(key, call.model_copy(update={"nth": nth}))
        await self._pass(key)
        if isinstance(kept, FailureCaught):
            raise self._met(kept)
        assert isinstance(kept, ActivityKept), "what came of a function is its result"
        return kept

    def _asked_bytes(self) -> int:
        return sum(payload_size(one.what) for one in self._asked.values() if isinstance(one.what, NextCall))

    def _count(self, key: Key) -> int:
        self._begun[key] += 1
        return self._begun[key]

    async def _answer(self, key: Key, what: NextAgent | NextCall) -> Answer:
        answer = self._past.over.get(key) if not self._forgets else None
        if answer is not None:
            return answer
        await self._show_all()
        asked = self._asked[key] = Asked(what, asyncio.get_running_loop().create_future())
        self._changed.set()
        try:
            return await asked.over
        finally:
            # The code may have given it up, by a timeout of its own.
            self._drop(key)

    async def _pass(self, key: Key) -> None:
        self._past_over.discard(key)
        await self._show_rest()

    def _drop(self, key: Key) -> None:
        if self._asked.pop(key, None) is not None:
            self._told_of.discard(key)
            self._changed.set()

    def _met(self, failure: FailureCaught) -> Exception:
        error = self.code.failed(failure)
        self._failures.met(error, failure, self._past.number_of(failure))
        return error


async def _let_others_ask() -> None:
    """Let what the code gathers ask, too, in the same moment."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
