"""Real logs, spoiled in every way of a table: each is refused with its place, or taken and then goes on to an end.

What is taken breaks no reader, comes out of an export as it went in, makes conversations that providers take, and runs
no tool that no model has called.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from itertools import count
from random import Random

import httpx2
import pytest
from fastapi import HTTPException
from temporalio.client import Client

from perdure.api.auth.identity import Identity
from perdure.api.base.attribution import check_log
from perdure.compiler.compile import compile_app
from perdure.errors import InvalidTrajectory, LogError, RequestRefused
from perdure.journal.entries import Entry, InvocationPinned, LogImported, PlanLoaded
from perdure.journal.events import USER, Event
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.packing import pack, unpack
from perdure.journal.projection import Projection
from perdure.journal.questions import target_of
from perdure.messages.keys import SessionKey
from perdure.messages.session import EFFECTS, EVENTS, PENDING, SESSION, PageInput
from perdure.plan.nodes import LlmNode, Plan
from perdure.prove.conversations import refusals
from perdure.steps.prompt import build_contents, without_session_ids
from perdure.trajectories.bare_log import to_journal
from perdure.trajectories.checks import agent_of_import
from perdure.trajectories.export_file import dump_lines, make_header
from perdure.trajectories.given_logs import GivenLog, read_given
from perdure.trajectories.triggered_log import read_triggered_log
from perdure.views.explanation import explain_session
from perdure.views.pages import details, look
from tests.adk_shop import SESSIONS, VERSIONS, Shop
from tests.api.support import Obedient, served
from tests.attacks.mutated_apps import Ran, WillingApp
from tests.attacks.mutations import MUTATIONS, Json, Spoiler, written
from tests.conformance.journals import record
from tests.conformance.logs import all_scenarios, expected_turns, plan_of
from tests.exports import by_hand
from tests.journal.machine import JournalMachine
from tests.workflows.support import User, serving

KEY = SessionKey("shop", "u", "s")
EACH = 8
"""Logs that each mutation spoils."""


@dataclass(frozen=True)
class Original:
    """A real log, whole."""

    name: str
    plan: Plan
    header: str
    """Empty for a bare log."""
    lines: list[Json]

    def spoiled(self, mutation: str, seed: int) -> str:
        """Return it, or its beginning, as text, spoiled; a seed always gives the same."""
        rng = Random(f"{mutation}/{seed}")
        lines = self.lines[: rng.choice((len(self.lines), rng.randint(1, len(self.lines))))]
        names = [*self.plan.nodes, "look", "ask", "refund", "transfer_to_agent"]
        log = Spoiler(json.loads(json.dumps(lines)), rng, _events(), names)
        MUTATIONS[mutation](log)
        return "\n".join(filter(None, (self.header, written(log.lines))))


def _exported(name: str, plan: Plan, entries: Sequence[Entry]) -> Original:
    header = make_header(KEY, fold_journal(entries), journal=True, versions={})
    lines = by_hand(list(dump_lines(header, entries)))
    return Original(name, plan, lines[0], [json.loads(line) for line in lines[1:]])


@cache
def _originals() -> list[Original]:
    found: list[Original] = []
    for scenario in all_scenarios():
        events = [json.loads(event.to_json()) for turn in expected_turns(scenario) for event in turn]
        found.append(Original(scenario.name, plan_of(scenario), "", events))
        found.append(_exported(scenario.name, plan_of(scenario), record(scenario).entries))
    for number in range(20):
        rng = Random(number)
        machine = JournalMachine([rng.randrange(2**16) for _ in range(120)], resumable=bool(number % 3))
        found.append(_exported(f"machine {number}", machine.plan, machine.run()))
    shop = _shop()
    found += [
        Original(name, shop, "", SESSIONS[v][name]["session"]["events"]) for v in VERSIONS for name in SESSIONS[v]
    ]
    return [original for original in found if original.lines]


@cache
def _events() -> list[Json]:
    return [event for original in _originals() if not original.header for event in original.lines]


@cache
def _shop() -> Plan:
    return compile_app(Shop("shop").app)


PLACE = re.compile(r"^(line \d+|event \d+|the last event|the shared state|the state that|the log is empty|this is)\b")


def _fresh_ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"x{next(numbers)}"


def _imported(given: GivenLog) -> tuple[Entry, ...]:
    mark = LogImported(plan_digest=given.plan_digest, timestamp=5.0, bare=given.entries is None, key_salt="s")
    return (*to_journal(given, fresh=_fresh_ids()), mark)


def check_text(text: str, plan: Plan) -> bool:
    """Import a log without a server, and look at it in every way; returns whether it was taken."""
    try:
        given = read_given(text)
        entries = _imported(given)
    except InvalidTrajectory as error:
        _check_refusal(str(error))
        return False
    with contextlib.suppress(HTTPException):
        check_log(Identity("ann"), given)
    session = fold_journal(unpack(pack(entries)))
    assert not session.turns, "something is set going"
    _check_readers(session)
    for journal in (True, False):
        again = _again(session, journal=journal)
        assert [event.to_json() for event in again.events] == [event.to_json() for event in session.events]
    _pin(session, plan)
    _check_readers(session)
    _check_conversations(session, plan)
    with contextlib.suppress(InvalidTrajectory):
        read_triggered_log(
            given.shown_events(), state=given.state, allow_pending_calls=True, fresh=_fresh_ids(), now=5.0
        )
    return True


def _check_refusal(words: str) -> None:
    assert PLACE.search(words), f"it does not say where: {words}"
    assert len(words) < 5_000, "it repeats what it refuses"


def _check_readers(session: Projection) -> None:
    """Every look at a session has an answer that can be written."""
    for name in (SESSION, PENDING):
        look(session, KEY, name).model_dump_json()
    for name in (EVENTS, EFFECTS):
        look(session, KEY, name, PageInput()).model_dump_json()
    assert details(session).encode()
    explain_session(session, KEY).model_dump_json()


def _again(session: Projection, *, journal: bool) -> Projection:
    """Return what a session's export is, imported."""
    header = make_header(KEY, session, journal=journal, versions={})
    return fold_journal(_imported(read_given(list(dump_lines(header, session.entries)))))


def _pin(session: Projection, plan: Plan) -> None:
    """Have the invocations go on in the app, as far as they fit it."""
    apply_entry(session, PlanLoaded(plan=plan, digest=plan.digest))
    for invocation in list(session.invocations.values()):
        with contextlib.suppress(LogError):
            agent = agent_of_import(session, plan, invocation)
            pinned = InvocationPinned(invocation_id=invocation.id, agent=agent, plan=plan.digest, timestamp=6.0)
            apply_entry(session, pinned)


def _check_conversations(session: Projection, plan: Plan) -> None:
    """R12 and R13: what any agent's model would be asked, on any branch, is taken by every provider."""
    for agent in (node.name for node in plan.nodes.values() if isinstance(node, LlmNode)):
        for branch in {None, *(event.branch for event in session.events)}:
            contents = build_contents(session.events, agent=agent, branch=branch, include_contents="default")
            assert refusals(contents, by_id=True) == []
            assert refusals(without_session_ids(contents), by_id=False) == []


def _told(original: Original, mutation: str, seed: int, text: str) -> str:
    return f"in the log of {original.name!r}, spoiled by {mutation!r} with seed {seed}:\n{text[:20_000]}"


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_spoiled_log_is_refused_with_its_place_or_read_like_any_other(mutation: str) -> None:
    rng = Random(mutation)
    for seed in range(EACH):
        original = rng.choice(_originals())
        text = original.spoiled(mutation, seed)
        try:
            check_text(text, original.plan)
        except Exception as error:
            error.add_note(_told(original, mutation, seed, text))
            raise


def test_the_originals_are_taken() -> None:
    """Else it would be no wonder that those which are spoiled are refused."""
    for original in _originals()[::6]:
        assert check_text("\n".join(filter(None, (original.header, written(original.lines)))), original.plan)


APPS = (
    *("lro_parallel_then_summary", "confirm_in_sequence", "next_message_locked_in_the_middle", "sequential_in_loop"),
    *("two_invocations_pending", "custom_in_loop", "confirm_not_resumable", "loop_exit_loop"),
)
"""Scenarios whose apps go on with what was taken."""

RUN = 60
"""Spoiled logs that a server gets."""

AT_ONCE = 8
PATIENCE = 60.0
"""Seconds that a turn may take on a busy machine; a session that is stuck takes for ever."""


@dataclass
class Stage:
    """The apps, their workers and their API."""

    client: Client
    apps: dict[str, WillingApp]
    http: httpx2.AsyncClient


@pytest.fixture(scope="module")
async def stage(client: Client) -> AsyncGenerator[Stage]:
    scenarios = {scenario.name: scenario for scenario in all_scenarios()}
    apps = {name: WillingApp(scenarios[name], f"app_{uuid.uuid4().hex[:8]}") for name in APPS}
    definitions = [made.app for made in apps.values()]
    async with AsyncExitStack() as stack:
        for app in definitions:
            await stack.enter_async_context(serving(client, app))
        api = await stack.enter_async_context(served(client, definitions[0], Obedient(), apps=definitions))
        yield Stage(client, apps, api.http)


class Story:
    """What becomes of one spoiled log on a server."""

    def __init__(self, stage: Stage, original: Original, text: str) -> None:
        self._stage = stage
        self._made = stage.apps[original.name]
        self._bare = not original.header
        self._text = text
        self._user = User(stage.client, self._made.app.name, "ann", uuid.uuid4().hex)
        self._allowed = set[str]()
        """Calls of the log that somebody has let run."""

    async def tell(self) -> bool:
        """Bring it in, let everything in it go on, and say something; returns whether it was taken."""
        if self._bare:
            await self._begin_with_events()
        path = f"/v1/apps/{self._made.app.name}/users/ann/imports"
        answer = await self._stage.http.post(
            path, content=self._text.encode(), params={"sessionId": self._user.who["session_id"]}
        )
        assert answer.status_code in (201, 400), answer.text
        if answer.status_code == 400:
            _check_refusal(answer.json()["detail"])
            return False
        imported = {call.id for event in await self._events() for call in event.get_function_calls()}
        async with asyncio.timeout(PATIENCE):
            await self._go_on()
            view = await self._user.run("hello")
        assert view.status in ("finished", "waiting"), view
        self._check_runs(imported, await self._events())
        return True

    async def _begin_with_events(self) -> None:
        """As ADK's clients create a session that has a past."""
        body = f'{{"sessionId":"{uuid.uuid4().hex}","events":[{",".join(self._text.splitlines())}]}}'
        answer = await self._stage.http.post(
            f"/apps/{self._made.app.name}/users/ann/sessions",
            content=body.encode(),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code in (200, 400, 422), answer.text

    async def _events(self) -> list[Event]:
        return [event async for event in self._user.runner.events(**self._user.who)]

    async def _go_on(self) -> None:
        """Answer what waits, and resume what can be resumed: each comes to an end, or is refused with a reason."""
        for invocation in (await self._user.view()).invocations:
            pending = {call.id: call for call in invocation.pending}
            with contextlib.suppress(RequestRefused):
                if pending:
                    self._allowed |= {str(target_of(call.args)) for call in pending.values()}
                    await self._user.answered({call_id: {"confirmed": True} for call_id in pending})
                elif invocation.resumable:
                    await self._user.resumed(invocation.id)
            view = await self._user.settled(invocation.id)
            assert all(failure.cause for failure in view.failures), view

    def _check_runs(self, imported: set[str | None], events: Sequence[Event]) -> None:
        """No tool ran that no model has called, or that the log says was called and nobody has let run."""
        called = {call.id: call for event in events if event.author != USER for call in event.get_function_calls()}
        for ran in self._made.runs[self._user.who["session_id"]]:
            assert ran.call_id in called, ran
            call = called[ran.call_id]
            assert Ran(ran.call_id, call.name or "", call.args or {}) == ran
            assert ran.call_id not in imported - self._allowed, ran


@pytest.mark.server
async def test_a_spoiled_log_that_is_taken_goes_on_to_an_end(stage: Stage) -> None:
    rng, slots, taken = Random(RUN), asyncio.Semaphore(AT_ONCE), list[bool]()

    async def tell(original: Original, mutation: str, seed: int) -> None:
        text = original.spoiled(mutation, seed)
        try:
            async with slots:
                taken.append(await Story(stage, original, text).tell())
        except Exception as error:
            error.add_note(_told(original, mutation, seed, text))
            raise

    originals = [original for original in _originals() if original.name in APPS]
    async with asyncio.TaskGroup() as group:
        for seed in range(RUN):
            group.create_task(tell(rng.choice(originals), rng.choice(list(MUTATIONS)), seed))
    assert sum(taken) > RUN / 5
    assert [problem for made in stage.apps.values() for problem in made.problems] == []
