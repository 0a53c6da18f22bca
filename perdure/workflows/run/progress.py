"""Where the work of a session stands: what is under way, what has failed, what the journal does not hold yet.

Plain state machines. Whoever waits for a change does so by a condition over them; nobody else writes what they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from perdure.errors import EffectFailed


class RunProgress:
    """Counts the activities of one run of the workflow, and says whether another may start before it hands over."""

    def __init__(self) -> None:
        self._scheduled = 0
        self._busy = 0
        self._held = 0
        self._draining = False
        self._plans = 0
        self._local = 0
        self._turn: Progress | None = None

    @property
    def scheduled(self) -> int:
        """Activities that were ever started."""
        return self._scheduled

    @property
    def idle(self) -> bool:
        """No activity is at work, nor waits for a workflow task that has room for it."""
        return self._busy == 0

    @property
    def holds(self) -> bool:
        """An activity is held back."""
        return self._held > 0

    @property
    def draining(self) -> bool:
        """The run is about to continue as new: what runs is awaited, nothing new is started."""
        return self._draining

    @property
    def loads_plan(self) -> bool:
        """A local activity asks this worker for the plan: the workflow task goes on for that moment."""
        return self._plans > 0

    @property
    def runs_local(self) -> bool:
        """A local tool is at work in the workflow task."""
        return self._local > 0

    @property
    def may_start(self) -> bool:
        """An activity may start: the run goes on, or a branch has failed and its siblings run to their end or pause."""
        return not self._draining or (self._turn is not None and self._turn.has_failed)

    def drain(self) -> None:
        """Start nothing new from here on, and for good: the next run goes on."""
        self._draining = True

    def begin_turn(self, progress: Progress) -> None:
        """Take note whose turn it is: its failures are those that let activities start."""
        self._turn = progress

    @contextmanager
    def activity(self) -> Generator[None]:
        """Count an activity as at work inside of the block."""
        self._scheduled += 1
        with self.preparing():
            yield

    @contextmanager
    def preparing(self) -> Generator[None]:
        """Count as at work inside of the block, before an activity is started."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    @contextmanager
    def loading_plan(self) -> Generator[None]:
        """Count this worker as asked for the plan inside of the block."""
        self._plans += 1
        try:
            yield
        finally:
            self._plans -= 1

    @contextmanager
    def running_local(self) -> Generator[None]:
        """Count a local tool as at work inside of the block."""
        self._local += 1
        try:
            yield
        finally:
            self._local -= 1

    @contextmanager
    def holding(self) -> Generator[None]:
        """Count an activity as held back inside of the block."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1


class Wanted:
    """Whether an agent that another one's code runs is still wanted: that code may give it up."""

    def __init__(self) -> None:
        self.given_up = False

    def begin(self) -> None:
        """Let this hold for the task that runs, and for what that begins."""
        _above.set((*_above.get(), self))


_above: ContextVar[tuple[Wanted, ...]] = ContextVar("agents that others' code runs, outermost first", default=())


class Progress:
    """How far one invocation is, as one of those that share a run's activities."""

    def __init__(self, run: RunProgress) -> None:
        """Begin, with nothing under way."""
        self._run = run
        self._stopping = False
        self._failed: list[EffectFailed] = []
        self._own_work = 0
        self._unlogged: dict[str, Callable[[], None]] = {}

    def begin_turn(self) -> None:
        """Take the turn: no other invocation is at work."""
        self._run.begin_turn(self)

    # Failures of branches, until the agent above them gets them.

    @property
    def failed(self) -> Sequence[EffectFailed]:
        """Failures of branches that are not told to the agent above them yet, since siblings go on."""
        return tuple(self._failed)

    @property
    def has_failed(self) -> bool:
        """A branch has failed, and the agent above is not told yet."""
        return bool(self._failed)

    def fail(self, failure: EffectFailed) -> None:
        """Take note that a branch has failed: its siblings run to their end or pause, and are not held back."""
        self._failed.append(failure)

    def told(self, failures: Iterable[BaseException]) -> None:
        """Count failures no longer as those of branches, since the agent above gets them and may deal with them."""
        for failure in failures:
            if isinstance(failure, EffectFailed) and failure in self._failed:
                self._failed.remove(failure)

    @contextmanager
    def branch(self) -> Generator[None]:
        """Take note of a failure at once, where siblings that wait or are held back keep the agent above from it."""
        try:
            yield
        except EffectFailed as failure:
            self.fail(failure)
            raise

    # Stops.

    @property
    def stopping(self) -> bool:
        """Nothing new is started any more; what finishes all the same is kept."""
        return self._stopping

    def stop(self) -> None:
        """Start nothing new from here on, and for good."""
        self._stopping = True

    def check_stopped(self) -> None:
        """Raise `CancelledError` if the invocation is being stopped, or the agent that asks is given up.

        Called before anything new is started.
        """
        if self._stopping or any(wanted.given_up for wanted in _above.get()):
            raise asyncio.CancelledError

    # Whether it is at work.

    @property
    def at_rest(self) -> bool:
        """Nothing is under way: no activity, at work or held back, no custom agent's timer, and no stop."""
        return not self._stopping and self._run.idle and not self._run.holds and self._own_work == 0

    @property
    def hands_over(self) -> bool:
        """The next run goes on with it. Not where a branch has failed: it would run again without anybody's resume."""
        return self._run.draining and not self._failed

    @property
    def idle(self) -> bool:
        """No activity is at work; some may be held back."""
        return self._run.idle

    @property
    def scheduled(self) -> int:
        """Activities that the run ever started."""
        return self._run.scheduled

    @contextmanager
    def own_work(self) -> Generator[None]:
        """Count a custom agent as at work inside of the block: its code waits for a timer of its own."""
        self._own_work += 1
        try:
            yield
        finally:
            self._own_work -= 1

    # What the journal does not hold yet.

    @property
    def unlogged(self) -> Mapping[str, Callable[[], None]]:
        """What journals the results of tools whose siblings are still to run, by call id: no event holds them yet."""
        return dict(self._unlogged)

    def returned(self, call_id: str, keep: Callable[[], None]) -> None:
        """Take note of a tool's result that is still to be logged; `keep` journals it without that."""
        self._unlogged[call_id] = keep

    def logged(self, call_id: str) -> None:
        """Take note that the journal holds a call's result."""
        self._unlogged.pop(call_id, None)
