"""The ways in which a run is cut: replays, continue-as-new, prefixes of its journal, killed workers."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from perdure.errors import InvocationFailed, PerdureError, error_text
from perdure.journal.entries import Entry, EventLogged, FailureCaught, InvocationSettled
from perdure.journal.events import Event
from perdure.journal.fold import fold_journal
from perdure.journal.projection import SHARED
from perdure.journal.unusable_answers import is_refused
from perdure.messages.session import Trial
from perdure.messages.shared_state import ShareStateInput, state_workflow_id
from perdure.plan.nodes import Plan
from perdure.prove.bare_logs import NOT_PENDING, BareCut, bare_cuts, fails_amid, without_pending
from perdure.prove.done import done_in
from perdure.prove.ledger import Kill, Ledger, When
from perdure.prove.outcome import (
    Check,
    Key,
    Order,
    Outcome,
    Repeated,
    authors_of,
    differences,
    plan_in,
    repeats,
)
from perdure.prove.player import Player, accepted_at
from perdure.prove.process import Source, Work, WorkerProcess
from perdure.prove.scenario import ProofScenario
from perdure.sessions.lifecycle import whole_steps
from perdure.sessions.shared_state import share_state

_P = TypeVar("_P")
_Way = tuple[Callable[..., Coroutine[Any, Any, "Cut"]], "int | BareCut"]
"""How to go on from a cut, and which cut."""

FEWER_STEPS = "this run had fewer steps: code that waits for several things at once takes some together"

Mode = Literal["prefix", "kill", "continue-as-new", "replay"]


@dataclass(frozen=True)
class Cut:
    """The outcome of one cut."""

    where: str
    """Such as `killed at the end of step 3`."""
    problems: tuple[str, ...] = ()
    repeated: tuple[Repeated, ...] = ()
    allowed: tuple[str, ...] = ()
    """Differences that only a cut of the bare log may have, and that this one has."""
    skipped: str | None = None
    """Why nothing was cut here."""


@dataclass
class Stage:
    """The server, the app and the reference that every run of one scenario needs."""

    client: Client
    source: Source
    scenario: ProofScenario
    folder: Path
    """Where the ledgers are kept."""
    slots: asyncio.Semaphore
    """Runs at a time."""
    timeout: float
    """Seconds that a run may take. One that hangs has failed."""
    dead_after: float
    """Seconds after which a killed worker counts as dead."""
    most_cuts: int | None = None
    """Cut points that are tried; `None` is all."""
    steps: int | None = None
    """Steps an activity may take; `None` is as the app says."""
    check: Check | None = None
    reference: Outcome = field(default_factory=Outcome)

    @property
    def plan(self) -> Plan:
        """The plan of the uninterrupted run."""
        plan = plan_in(self.reference.journal)
        assert plan is not None, "the uninterrupted run loaded no plan"
        return plan

    @property
    def order(self) -> Order | None:
        """How to put events in order, where agents may interleave."""
        compare = self.scenario.compare
        return None if compare == "ordered" else Order(authors_of(self.plan), gathered=compare == "gathered")

    def chosen(self, points: Sequence[_P]) -> Sequence[_P]:
        """Return the cut points that are tried, spread evenly over all."""
        if self.most_cuts is None or self.most_cuts >= len(points):
            return points
        return [points[index * len(points) // self.most_cuts] for index in range(self.most_cuts)]

    def new_name(self) -> str:
        """Return a name for an app of its own: it is the task queue's, which runs must not share."""
        return f"proof_{uuid.uuid4().hex[:12]}"

    def work(self, app_name: str, *, cached: bool = True, kill: Kill | None = None) -> Work:
        """Return the work of a worker process."""
        return Work(
            source=self.source,
            app_name=app_name,
            address=self.client.service_client.config.target_host,
            namespace=self.client.namespace,
            ledger=self.folder / f"{app_name}.jsonl",
            cached=cached,
            kill=kill,
            steps=self.steps,
        )

    async def run(
        self, *, cached: bool = True, kill: Kill | None = None, trial: Trial | None = None, like: Outcome | None = None
    ) -> Outcome:
        """Run the whole scenario once, in worker processes of its own."""
        work = self.work(self.new_name(), cached=cached, kill=kill)
        player = Player(self.client, work.app_name, trial=trial)
        async with self.slots, AsyncExitStack() as stack:
            process = await stack.enter_async_context(WorkerProcess(work))
            supervisor = asyncio.create_task(_restart(stack, process, self.work(work.app_name)))
            await self.play(player, supervisor, self._whole(player, like))
            alive = not supervisor.done()
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)
        ledger = Ledger(work.ledger)
        player.outcome.steps, player.outcome.notes = ledger.steps, ledger.notes
        if kill is not None and alive and not ended_before(player.outcome, kill.step):
            player.outcome.problems.append("the worker was never killed")
        return player.outcome

    async def _whole(self, player: Player, like: Outcome | None) -> None:
        await player.runner.create_session(**player.who, state=self.scenario.state)
        await player.play(self.scenario.turns, like)
        await player.finish()
        await player.count_history()

    async def play(self, player: Player, supervisor: asyncio.Task[None], run: Coroutine[Any, Any, None]) -> None:
        """Play until the run is over, or its worker cannot be started."""
        playing = asyncio.create_task(run)
        try:
            async with asyncio.timeout(self.timeout):
                await asyncio.wait({playing, supervisor}, return_when=asyncio.FIRST_COMPLETED)
                if supervisor.done() and not supervisor.cancelled():
                    supervisor.result()
                await playing
        except TimeoutError:
            player.outcome.problems.append(
                f"turn {len(player.outcome.turns) + 1} was not over after {self.timeout:g} s"
            )
        except (PerdureError, RPCError) as error:
            player.outcome.problems.append(error_text(error))
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    def judge(self, where: str, outcome: Outcome, *, killed: bool = False) -> Cut:
        """Return how a whole run differs from the uninterrupted one."""
        problems = differences(self.reference, outcome, self.order)
        if self.check is not None:
            problems += self.check(outcome)
        repeated, wrong = repeats(outcome.steps, killed=killed)
        return Cut(where, tuple(problems + wrong), tuple(repeated))


def ended_before(outcome: Outcome, step: int) -> bool:
    """Return whether a run came to its end without a step: it cannot be killed there."""
    return len(outcome.steps) < step


async def _restart(stack: AsyncExitStack, process: WorkerProcess, again: Work) -> None:
    """Start a new worker as soon as the first one has killed itself."""
    await process.killed()
    await stack.enter_async_context(WorkerProcess(again))


async def replay(stage: Stage) -> list[Cut]:
    """Run without a workflow cache: every workflow task replays the history so far."""
    outcome = await stage.run(cached=False, like=stage.reference)
    cut = stage.judge("without a cache", outcome)
    return [cut, *(Cut(f"workflow task {number}") for number in range(2, outcome.workflow_tasks + 1))]


async def continue_as_new(stage: Stage) -> list[Cut]:
    """Run with a continue-as-new after every step."""
    outcome = await stage.run(trial=Trial(steps_per_run=1), like=stage.reference)
    cut = stage.judge("continued as new after every step", outcome)
    return [cut, *(Cut(f"run {number}") for number in range(3, outcome.runs + 1))]


async def kill(stage: Stage) -> list[Cut]:
    """Kill the worker at each step: as it starts, and as it has ended but is not reported."""

    async def one(number: int, when: When) -> Cut:
        trial = Trial(dead_after=stage.dead_after)
        outcome = await stage.run(kill=Kill(number, when), trial=trial, like=stage.reference)
        cut = stage.judge(f"killed at the {when} of step {number}", outcome, killed=True)
        missed = not cut.problems and ended_before(outcome, number)
        return replace(cut, skipped=FEWER_STEPS) if missed else cut

    whens: tuple[When, ...] = ("start", "end")
    points: list[tuple[int, When]] = [
        (number, when) for number in range(1, len(stage.reference.steps) + 1) for when in whens
    ]
    return list(await asyncio.gather(*(one(*point) for point in stage.chosen(points))))


async def prefix(stage: Stage) -> list[Cut]:
    """Start fresh sessions from every prefix of the journal, and of the bare event log, and go on from there."""
    bare = bare_cuts(stage.reference, stage.scenario.state, resumable=stage.plan.resumable)
    skipped = [Cut(_after_event(cut), skipped=cut.skipped) for cut in bare if cut.skipped]
    ways: list[_Way] = [(_continue, length) for length in stage.chosen(_cut_points(stage))]
    ways += [(_drive, cut) for cut in stage.chosen([cut for cut in bare if not cut.skipped])]
    return [*await _in_fresh_sessions(stage, ways), *skipped]


async def _in_fresh_sessions(stage: Stage, ways: Sequence[_Way]) -> list[Cut]:
    """Go each way in a session of its own, all of them in one worker process."""
    work = stage.work(stage.new_name())
    shares = stage.plan.shared_state or any(key.startswith(SHARED) for key in stage.reference.state)
    # Sessions that share state must not meet.
    shared = asyncio.Lock() if shares else None
    async with WorkerProcess(work) as process:
        ended = asyncio.create_task(process.killed())

        async def one(go: Callable[..., Coroutine[Any, Any, Cut]], where: int | BareCut) -> Cut:
            async with stage.slots, shared or _free():
                return await go(stage, work, ended, where, shared=shared is not None)

        try:
            return list(await asyncio.gather(*(one(*way) for way in ways)))
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)


@asynccontextmanager
async def _free() -> AsyncGenerator[None]:
    yield


def _cut_points(stage: Stage) -> list[int]:
    """Return after how many entries the journal is cut: everywhere, if what is cut off can be resumed."""
    reference = stage.reference
    if not stage.plan.resumable:
        return [length for length in dict.fromkeys((1, *reference.turn_ends))]
    points: list[int] = []
    start = 1
    for end in reference.turn_ends:
        accepted = accepted_at(reference.journal, start)
        # What a user sends is accepted whole, though it may take several entries.
        points += [length for length in range(start, end) if length == start or accepted is None or length > accepted]
        start = end
    points = [length for length in points if not _is_amid_failing(reference.journal, length)]
    return [*dict.fromkeys((*points, len(reference.journal)))]


def _is_amid_failing(journal: Sequence[Entry], length: int) -> bool:
    """Return whether a failure is being told of here, which is done at once: by a refused model, or a custom agent.

    Or by a node of a graph, before its invocation has failed of that.
    """
    if fails_amid(_of_open_invocation(journal[:length])):
        return True
    last, following = journal[length - 1], journal[length : length + 1]
    if isinstance(last, EventLogged) and is_refused(last.event):
        return any(isinstance(entry, InvocationSettled) for entry in following)
    if not isinstance(last, FailureCaught):
        return False
    return not last.failures or any(isinstance(entry, FailureCaught) for entry in following)


def _of_open_invocation(journal: Sequence[Entry]) -> list[Event]:
    """Return what the invocation has logged that has not come to its end."""
    logged: list[Event] = []
    for entry in journal:
        if isinstance(entry, InvocationSettled) and entry.status != "waiting":
            logged.clear()
        elif isinstance(entry, EventLogged):
            logged.append(entry.event)
    return logged


async def _continue(stage: Stage, work: Work, ended: asyncio.Task[None], length: int, *, shared: bool) -> Cut:
    reference, turns = stage.reference, stage.scenario.turns
    entries = reference.journal[:length]
    player = Player(stage.client, work.app_name, session_id=f"cut-{length}")
    done = done_in(whole_steps(entries), reference.steps)
    Ledger(work.ledger).runs_before(player.key.workflow_id, _by_tool(done))
    complete = sum(end <= length for end in reference.turn_ends)
    start = reference.turn_ends[complete - 1] if complete else 1
    accepted = accepted_at(reference.journal, start) if complete < len(turns) else None

    async def run() -> None:
        if shared:
            await _share(stage.client, work.app_name, entries, player.key.workflow_id)
        await player.lifecycle.restore(player.key, entries, interrupted="cut off")
        if complete:
            player.outcome.answered = list(reference.answered[:complete])
            before = len(player.outcome.turns)
            player.outcome.turns += [[] for _ in range(complete - before)]
            player.outcome.failed += reference.failed[:complete]
            player.outcome.turn_ends += reference.turn_ends[:complete]
            # All that stands in the log so far was appended by the turns before.
            player.outcome.turns[-1] = [event async for event in player.runner.events(**player.who)]
        if accepted is not None and accepted < length:
            await player.catch_up()
            player.outcome.answered.append(reference.answered[complete])
            await player.note()
        await player.play(turns[len(player.outcome.turns) :], reference)
        await player.finish()

    await stage.play(player, ended, run())
    ledger = Ledger(work.ledger)
    player.outcome.steps = [step for step in ledger.steps if step.workflow == player.key.workflow_id]
    problems = differences(reference, player.outcome, stage.order, done)
    repeated, wrong = repeats(player.outcome.steps, killed=False)
    return Cut(f"cut after journal entry {length}", tuple(problems + wrong), tuple(repeated))


async def _drive(stage: Stage, work: Work, ended: asyncio.Task[None], cut: BareCut, *, shared: bool) -> Cut:
    reference = stage.reference
    player = Player(stage.client, work.app_name, session_id=f"log-{cut.length}")
    counts = _by_tool(cut.done)
    counts.update({f"model of {agent}": count for agent, count in cut.failed_calls.items()})
    Ledger(work.ledger).runs_before(player.key.workflow_id, counts)

    async def run() -> None:
        if shared:
            await _share(stage.client, work.app_name, cut.entries, player.key.workflow_id)
        state = stage.scenario.state
        resumed = await player.runner.resume_from(cut.log, **player.who, state=state, allow_pending_calls=True)
        player.outcome.turns = [[] for _ in range(cut.turn)]
        player.outcome.answered = list(reference.answered[: cut.turn + 1])
        with suppress(InvocationFailed):
            async for _ in player.runner.follow(
                **player.who, invocation_id=resumed.invocation.id, since=resumed.offset
            ):
                pass
        await player.note()
        await player.play(stage.scenario.turns[cut.turn + 1 :], reference)
        await player.finish()

    await stage.play(player, ended, run())
    outcome, allowed = player.outcome, cut.allowed
    outcome.steps = [step for step in Ledger(work.ledger).steps if step.workflow == player.key.workflow_id]
    problems = differences(reference, outcome, stage.order, cut.done)
    if problems and cut.cut_off:
        wanted, got = (without_pending(one, cut.cut_off) for one in (reference, outcome))
        if not differences(wanted, got, stage.order, cut.done):
            problems, allowed = [], (*allowed, NOT_PENDING)
    repeated, wrong = repeats(outcome.steps, killed=False)
    return Cut(_after_event(cut), tuple(problems + wrong), tuple(repeated), allowed)


def _after_event(cut: BareCut) -> str:
    return f"bare log cut after event {cut.length}"


def _by_tool(done: Counter[Key]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (what, _), count in done.items():
        kind, _, name = what.partition(" ")
        if kind == "tool":
            counts[name] += count
    return counts


async def _share(client: Client, app_name: str, entries: Sequence[Entry], cut: str) -> None:
    """Bring the state that sessions share to where it was at the cut."""
    for user_id in (None, "u"):
        with suppress(RPCError):
            await client.get_workflow_handle(state_workflow_id(app_name, user_id)).terminate("a cut starts over")
    state = fold_journal(entries).shared_state()
    if state:
        request = ShareStateInput(user_id="u", write_id=cut, delta=state)
        await share_state(client, app_name, request)


MODES: dict[Mode, Callable[[Stage], Coroutine[Any, Any, list[Cut]]]] = {
    "prefix": prefix,
    "kill": kill,
    "continue-as-new": continue_as_new,
    "replay": replay,
}
