"""A session that is taken over does nothing twice that must not be done twice, and keeps a journal of any size."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure import journal
from perdure.agents import FunctionTool
from perdure.events import REQUEST_CONFIRMATION
from perdure.journal import CallReminded, ToolRan, ToolStarted
from perdure.lifecycle import Lifecycle
from tests.workflows.support import (
    Counted,
    Gate,
    User,
    agent,
    calls,
    check_log,
    eventually,
    long_running,
    make_app,
    responses,
    serving,
    text,
)
from tests.workflows.test_at_most_once import Effect, asked, failed, paying
from tests.workflows.test_deadlines import asking, timed
from tests.workflows.test_large_journals import SMALL, loads, noise

pytestmark = pytest.mark.server


async def take_over(user: User) -> None:
    await Lifecycle(user.app, user.client, reenter=False).take_over("u", "s")


@pytest.fixture
def small_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_PAYLOAD_BYTES", SMALL)
    monkeypatch.setattr(journal, "MAX_PART_BYTES", 4 * SMALL)


@pytest.mark.usefixtures("small_payloads")
async def test_a_journal_that_came_in_parts_is_taken_over(small_client: Client, app_name: str) -> None:
    """First one that the run had fetched, then one that the client had sent."""
    texts = [text(noise(600, seed)) for seed in range(9)]
    app = make_app(app_name, agent("clerk", [calls("pick"), *texts, text("picked")], [long_running("pick")]))
    async with serving(small_client, app) as user:
        await user.create(k=1)
        waiting = await user.run("a")
        for number in range(8):
            await user.run(f"m{number}")
        await user.workflow.terminate("a test")
        last = await user.run("m8")
        assert last.status == "finished"
        assert await loads(user) >= 1
        events, log = await user.events(), await user.log()
        for _ in range(2):
            await take_over(user)
            assert await loads(user) == 0
            await user.settled(last.id)
            # What the agent said last, and its end, stood in no slice, so their ids and times are new ones.
            assert (await user.events())[:-2] == events[:-2]
            assert await user.log() == log
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        assert (await user.view()).state == {"k": 1}
        check_log(await user.events())


async def starts(user: User) -> list[ToolStarted]:
    return [entry for entry in (await user.journal()).entries if isinstance(entry, ToolStarted)]


async def test_a_started_at_most_once_tool_is_in_doubt(client: Client, app_name: str) -> None:
    """It is at work as the session is taken over; what it says then reaches nobody."""
    effect = Effect(does="hang")
    async with serving(client, paying(app_name, effect)) as user:
        await user.create()
        invocation = await user.send("a")
        await effect.gate.reached()
        before = await starts(user)
        await take_over(user)
        request = await asked(user, invocation)
        assert await starts(user) == before
        assert len(before) == 1
        effect.gate.open()
        assert (await user.answered({request.id: {"happened": True, "result": 7}})).status == "finished"
        assert responses(await user.events(), "pay") == [{"result": 7}]
        # Behind a slice, and in one.
        await take_over(user)
        assert await starts(user) == before
        assert len(effect.keys) == 1


async def test_a_failed_at_most_once_tool_is_in_doubt(client: Client, app_name: str) -> None:
    effect = Effect(does="raise")
    async with serving(client, paying(app_name, effect)) as user:
        await user.create()
        invocation = await failed(user)
        await user.runner.resume(**user.who, invocation_id=invocation, fresh=True)
        request = await asked(user, invocation)
        effect.does = "return"
        assert (await user.answered({request.id: {"run_again": True}})).status == "finished"
        assert len(effect.keys) == 2
        await take_over(user)
        assert responses(await user.events(), "pay") == [{"paid": 5}]


async def test_a_tool_that_only_asked_for_a_confirmation_has_not_started(client: Client, app_name: str) -> None:
    effect = Effect()

    def must_ask(amount: int) -> bool:
        return amount > 1

    app = paying(app_name, effect, require_confirmation=must_ask)
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
        assert not (await user.journal()).invocations[waiting.id].started
        await take_over(user)
        assert (await user.settled(waiting.id)).status == "waiting"
        [call_id] = await user.open(REQUEST_CONFIRMATION)
        assert (await user.answered({call_id: {"confirmed": True}})).status == "finished"
        assert [call.pending.name for call in (await user.journal()).calls.values()] == [REQUEST_CONFIRMATION]
        assert len(effect.keys) == 1


async def test_what_a_tool_returned_stays_in_the_ledger(client: Client, app_name: str) -> None:
    work = Counted("work")
    clerk = agent("clerk", [calls("work", "ask"), text("done")], [work.once, long_running("ask")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("a")
        before = [entry for entry in (await user.journal()).entries if isinstance(entry, ToolRan)]
        await take_over(user)
        after = [entry for entry in (await user.journal()).entries if isinstance(entry, ToolRan)]
        assert sorted(after, key=repr) == sorted(before, key=repr)
        assert len(before) == 2


async def test_a_reminder_is_not_started_again(client: Client, app_name: str) -> None:
    """Nor is it taken for an answer, nor its timer for something at work."""
    reminded: list[str] = []

    def remind(what: str) -> None:
        reminded.append(what)

    tool = timed(expires_in=timedelta(days=1), remind_in=timedelta(seconds=0.3), reminder=remind)
    async with serving(client, asking(app_name, tool)) as user:
        await user.create()
        waiting = await user.run("a")
        await eventually(lambda: reminded == ["now"])
        await take_over(user)
        entries = (await user.journal()).entries
        assert len([entry for entry in entries if isinstance(entry, CallReminded)]) == 1
        await asyncio.sleep(0.6)
        assert reminded == ["now"]
        assert (await user.settled(waiting.id)).pending[0].deadline is not None
        assert (await user.answered({waiting.pending[0].id: {"ok": 1}})).status == "finished"


async def is_recorded(user: User) -> bool:
    history = await user.workflow.fetch_history()
    return any(event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED for event in history.events)


async def test_a_local_tool_that_returned_does_not_run_again(client: Client, app_name: str) -> None:
    """Its result stands in a marker, with the call that it is of."""
    note, gate = Counted("note", 3), Gate()
    clerk = agent("clerk", [calls("note", "slow"), text("done")], [gate.tool("slow")])
    clerk.tools.append(FunctionTool(note.fn, local=True))
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        await eventually(lambda: is_recorded(user))
        await take_over(user)
        await gate.reached(2)
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert responses(await user.events(), "note") == [{"result": 3}]
        assert len(note.keys) == 1
