"""Where the work of a session stands, as a state machine of its own: no workflow, no server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from perdure.errors import EffectFailed
from perdure.workflows.run.progress import Progress, RunProgress, Wanted

INVOCATIONS = (0, 1, 2)
one_of_them = st.sampled_from(INVOCATIONS)
calls = st.sampled_from(("call-1", "call-2"))


def failure(step: str = "model") -> EffectFailed:
    return EffectFailed("agent", step, "it broke")


class Steps(RuleBasedStateMachine):
    """Three invocations of one run, in any order of steps; beside them what they have done, in the test's own words."""

    def __init__(self) -> None:
        super().__init__()
        self.run = RunProgress()
        self.progress = [Progress(self.run) for _ in INVOCATIONS]
        self.turn: int | None = None
        self.drained = False
        self.stopped: set[int] = set()
        self.started = 0
        self.under_way: list[tuple[str, int | None, AbstractContextManager[None]]] = []
        self.untold: list[list[EffectFailed]] = [[] for _ in INVOCATIONS]
        self.unlogged: list[dict[str, Callable[[], None]]] = [{} for _ in INVOCATIONS]
        self.kept: list[str] = []

    def enter(self, kind: str, whose: int | None, block: AbstractContextManager[None]) -> None:
        block.__enter__()
        self.under_way.append((kind, whose, block))

    def number(self, kind: str, whose: int | None = None) -> int:
        return sum(known == kind and of == whose for known, of, _ in self.under_way)

    @rule(whose=one_of_them)
    def take_turn(self, whose: int) -> None:
        self.progress[whose].begin_turn()
        self.turn = whose

    @rule()
    def ask_for_an_activity(self) -> None:
        """As `Activities` does: held back or started, by `may_start` alone."""
        if self.run.may_start:
            self.enter("activity", None, self.run.activity())
            self.started += 1
        else:
            self.enter("held", None, self.run.holding())

    @rule()
    def wait_for_room(self) -> None:
        self.enter("preparing", None, self.run.preparing())

    @rule(whose=one_of_them)
    def begin_own_work(self, whose: int) -> None:
        self.enter("own", whose, self.progress[whose].own_work())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), error=st.sampled_from((None, asyncio.CancelledError, EffectFailed)))
    def end_one(self, data: st.DataObject, error: type[BaseException] | None) -> None:
        """What ends by an error, or is cancelled, has ended all the same."""
        index = data.draw(st.integers(0, len(self.under_way) - 1))
        _, _, block = self.under_way.pop(index)
        raised = failure() if error is EffectFailed else error() if error is not None else None
        with suppress(EffectFailed, asyncio.CancelledError):
            assert not block.__exit__(type(raised) if raised else None, raised, None)

    @rule()
    def drain(self) -> None:
        self.run.drain()
        self.drained = True

    @rule(whose=one_of_them)
    def stop(self, whose: int) -> None:
        self.progress[whose].stop()
        self.stopped.add(whose)

    @rule(whose=one_of_them)
    def branch_fails(self, whose: int) -> None:
        failed = failure()
        with pytest.raises(EffectFailed), self.progress[whose].branch():
            raise failed
        self.untold[whose].append(failed)

    @rule(whose=one_of_them)
    def branch_is_cancelled(self, whose: int) -> None:
        with pytest.raises(asyncio.CancelledError), self.progress[whose].branch():
            raise asyncio.CancelledError

    @rule(whose=one_of_them, data=st.data())
    def tell(self, whose: int, data: st.DataObject) -> None:
        """The agent above gets some failures, one that was never a branch's among them."""
        some = [failed for failed in self.untold[whose] if data.draw(st.booleans())]
        self.progress[whose].told([asyncio.CancelledError(), failure(), *some])
        self.untold[whose] = [failed for failed in self.untold[whose] if failed not in some]

    @rule(whose=one_of_them, call_id=calls)
    def tool_returns(self, whose: int, call_id: str) -> None:
        keep = partial(self.kept.append, call_id)
        self.progress[whose].returned(call_id, keep)
        self.unlogged[whose][call_id] = keep

    @rule(whose=one_of_them, call_id=calls)
    def log(self, whose: int, call_id: str) -> None:
        self.progress[whose].logged(call_id)
        self.unlogged[whose].pop(call_id, None)

    @invariant()
    def activities_are_counted(self) -> None:
        at_work = self.number("activity") + self.number("preparing")
        assert self.run.scheduled == self.started
        assert self.run.idle == (at_work == 0)
        assert self.run.holds == (self.number("held") > 0)
        assert self.run.draining == self.drained

    @invariant()
    def a_run_that_hands_over_starts_nothing_but_beside_a_failure_of_the_turn(self) -> None:
        failed = self.turn is not None and bool(self.untold[self.turn])
        assert self.run.may_start == (not self.drained or failed)

    @invariant()
    def each_knows_its_own(self) -> None:
        for whose, progress in enumerate(self.progress):
            assert list(progress.failed) == self.untold[whose]
            assert progress.has_failed == bool(self.untold[whose])
            assert progress.stopping == (whose in self.stopped)
            assert progress.unlogged == self.unlogged[whose]
            assert (progress.idle, progress.scheduled) == (self.run.idle, self.run.scheduled)
            assert progress.hands_over == (self.drained and not self.untold[whose])

    @invariant()
    def nothing_is_at_rest_that_goes_on(self) -> None:
        activities = sum(self.number(kind) for kind in ("activity", "preparing", "held"))
        for whose, progress in enumerate(self.progress):
            own = self.number("own", whose)
            assert progress.at_rest == (activities == 0 and own == 0 and whose not in self.stopped)

    @invariant()
    def who_is_stopped_starts_nothing(self) -> None:
        for whose, progress in enumerate(self.progress):
            if whose in self.stopped:
                with pytest.raises(asyncio.CancelledError):
                    progress.check_stopped()
            else:
                progress.check_stopped()


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.fixture
def run() -> RunProgress:
    return RunProgress()


@pytest.fixture
def progress(run: RunProgress) -> Progress:
    progress = Progress(run)
    progress.begin_turn()
    return progress


def test_a_run_that_hands_over_awaits_what_is_at_work(run: RunProgress, progress: Progress) -> None:
    with run.activity():
        run.drain()
        assert (run.may_start, progress.hands_over, progress.idle) == (False, True, False)
        with run.holding():
            assert not progress.at_rest
    assert (run.may_start, progress.hands_over, progress.idle) == (False, True, True)


def test_siblings_of_a_failure_are_not_held_back_until_the_agent_above_is_told(
    run: RunProgress, progress: Progress
) -> None:
    """They run to their end or pause in this run: in the next one what failed would run again, without a resume."""
    run.drain()
    failed = failure("tool")
    with pytest.raises(EffectFailed), progress.branch():
        raise failed
    assert (run.may_start, progress.hands_over) == (True, False)
    progress.told([failed])
    assert (run.may_start, progress.hands_over) == (False, True)


def test_a_failure_of_who_only_waits_holds_nothing_open(run: RunProgress, progress: Progress) -> None:
    waiting = Progress(run)
    waiting.fail(failure())
    run.drain()
    assert not run.may_start
    waiting.begin_turn()
    assert run.may_start
    progress.begin_turn()
    assert not run.may_start


def test_an_activity_that_fails_or_is_cancelled_is_no_more_at_work(run: RunProgress, progress: Progress) -> None:
    for error in (failure(), asyncio.CancelledError()):
        with suppress(EffectFailed, asyncio.CancelledError), run.activity():
            raise error
        with suppress(EffectFailed, asyncio.CancelledError), run.holding(), run.preparing():
            raise error
    assert (run.scheduled, run.idle, run.holds, progress.at_rest) == (2, True, False, True)


def test_a_custom_agents_timer_is_work(progress: Progress) -> None:
    with progress.own_work():
        assert not progress.at_rest
    assert progress.at_rest


async def test_an_agent_that_is_given_up_starts_nothing_nor_does_what_it_runs(progress: Progress) -> None:
    above, below, beside = Wanted(), Wanted(), Wanted()

    async def start(*wanted: Wanted) -> bool:
        for one in wanted:
            one.begin()
        try:
            progress.check_stopped()
        except asyncio.CancelledError:
            return False
        return True

    runs = (above,), (above, below), (beside,)
    assert [await asyncio.create_task(start(*run)) for run in runs] == [True, True, True]
    above.given_up = True
    assert [await asyncio.create_task(start(*run)) for run in runs] == [False, False, True]


def test_what_is_stopped_starts_nothing_and_is_never_at_rest(progress: Progress) -> None:
    progress.check_stopped()
    progress.stop()
    with pytest.raises(asyncio.CancelledError):
        progress.check_stopped()
    assert not progress.at_rest


def test_a_result_is_to_be_kept_until_the_journal_holds_it(progress: Progress) -> None:
    kept: list[str] = []
    first, second = partial(kept.append, "call-1"), partial(kept.append, "call-2")
    progress.returned("call-1", first)
    progress.returned("call-2", second)
    seen = progress.unlogged
    progress.logged("call-1")
    progress.logged("of another agent")
    assert progress.unlogged == {"call-2": second}
    assert seen == {"call-1": first, "call-2": second}, "whoever goes through it may log meanwhile"
