"""A session that is taken over does nothing twice that must not be done twice, and keeps a journal of any size."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure.agents import FunctionTool, ToolContext
from perdure.agents.expiry import AnswerWith, FailInvocation
from perdure.journal import packing
from perdure.journal.entries import CallReminded, ToolRan, ToolStarted
from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_RECONCILE, USER
from perdure.journal.questions import is_doubt_request
from perdure.messages.keys import SessionKey
from perdure.rules.in_doubt import Reconciled
from perdure.sessions.lifecycle import Lifecycle
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
    await Lifecycle(user.client).take_over(SessionKey(user.app, "u", "s"))


@pytest.fixture
def small_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_PAYLOAD_BYTES", SMALL)
    monkeypatch.setattr(packing, "MAX_PART_BYTES", 4 * SMALL)


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


async def answers(user: User, tool: str) -> list[object]:
    """Return what the user, or the session for the user, answered a tool's calls."""
    return responses([event for event in await user.events() if event.author == USER], tool)


async def test_a_signal_that_was_refused_is_told_once(client: Client, app_name: str) -> None:
    """Whether the journal that a model call was given tells of it, or the history alone."""
    app = make_app(app_name, agent("clerk", [calls("ask"), calls("ask"), text("done")], [long_running("ask")]))
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
        [first] = await user.open("ask")
        await user.signal("no answer")
        await user.answered({first: {}})
        await user.workflow.signal("unheard_of", "x")
        await user.signal({"id": first, "response": {}})
        await eventually(lambda: told_of(user, 3))
        before = await refusals(user)
        for _ in range(2):
            await take_over(user)
            assert (await user.settled(waiting.id)).status == "waiting"
            assert await refusals(user) == before
        whys = ("the signal takes", "takes the signal function_response", "is answered already")
        assert all(why in told for why, told in zip(whys, before, strict=True)), before
        [second] = await user.open("ask")
        assert (await user.answered({second: {}})).status == "finished"


async def told_of(user: User, count: int) -> bool:
    """Return whether so many signals were not taken; nobody is told when a signal is dealt with."""
    return len(await refusals(user)) == count


async def refusals(user: User) -> list[str]:
    """Return why signals were not taken, oldest first."""
    return [event.error_message or "" for event in await user.events() if event.error_code == "SIGNAL_REFUSED"]


@pytest.mark.parametrize("signalled", [False, True])
async def test_an_answer_behind_the_deadline_is_dropped(client: Client, app_name: str, signalled: bool) -> None:
    """As in the live session, whose own answer was the first; no model call tells of it, since another call is open."""
    tools = [timed(AnswerWith("nobody came"), expires_in=timedelta(seconds=0.5)), long_running("pick")]
    app = make_app(app_name, agent("clerk", [calls("ask", "pick"), text("done")], tools))
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
        [late, other] = [call.id for call in waiting.pending]
        await user.logged("user answers ask")
        if signalled:
            await user.signal({"id": late, "response": {"came": "too late"}})
        await take_over(user)
        assert (await user.settled(waiting.id)).status == "waiting"
        assert (await user.answered({other: {}})).status == "finished"
        assert await answers(user, "ask") == [{"result": "nobody came"}]


async def test_an_answer_behind_a_deadline_that_failed_the_invocation_is_taken(client: Client, app_name: str) -> None:
    """As in the live session: it runs the failed branch on."""
    tools = [timed(FailInvocation(), expires_in=timedelta(seconds=0.5)), long_running("pick")]
    app = make_app(app_name, agent("clerk", [calls("ask", "pick"), text("done")], tools))
    async with serving(client, app) as user:
        await user.create()
        sent = await user.send("a")
        await eventually(lambda: _is(user, sent, "failed"))
        view = await user.invocation(sent)
        [late, other] = [call.id for call in view.pending]
        await take_over(user)
        (before,), (failure,) = view.failures, (await user.settled(sent)).failures
        assert (failure.agent, failure.step) == (before.agent, before.step)
        # History tells the time of the call to some milliseconds, which may be those between two seconds.
        assert failure.cause.startswith("no answer came by the deadline of the call, ")
        await user.signal({"id": late, "response": {"came": "late"}})
        await eventually(lambda: _is(user, sent, "waiting"))
        await take_over(user)
        assert (await user.settled(sent)).status == "waiting"
        assert (await user.answered({other: {}})).status == "finished"
        assert await answers(user, "ask") == [{"came": "late"}]


async def _is(user: User, invocation_id: str, status: str) -> bool:
    return await user.status(invocation_id) == status


async def test_a_question_about_a_call_is_asked_once(client: Client, app_name: str) -> None:
    """No model call tells that it was asked, nor any other event; it keeps its id, and its answer is taken."""
    effect = Effect(does="hang")
    app = paying(app_name, effect, heartbeat_timeout=timedelta(seconds=1), timeout=timedelta(seconds=1.5))
    async with serving(client, app) as user:
        await user.create()
        invocation = await user.send("a")
        request = await asked(user, invocation)
        before = [event.content for event in await user.events() if is_doubt_request(event)]
        for _ in range(2):
            await take_over(user)
            assert await asked(user, invocation) == request.model_copy(update={"since": mock.ANY})
        assert [event.content for event in await user.events() if is_doubt_request(event)] == before
        effect.does = "return"
        effect.gate.open()
        await user.answer({request.id: {"run_again": True}})
        await user.settled(invocation)
        await take_over(user)
        assert (await user.settled(invocation)).status == "finished"
        assert responses(await user.events(), "pay") == [{"paid": 5}]
        assert len(effect.keys) == 2


async def test_an_answer_to_a_question_that_nothing_tells_of_is_taken(client: Client, app_name: str) -> None:
    """It waits for another question's answer, so that no model call follows it."""
    first, second = Effect(does="hang"), Effect("send", does="hang")
    short: dict[str, Any] = {"heartbeat_timeout": timedelta(seconds=1), "timeout": timedelta(seconds=1.5)}
    clerk = agent("clerk", [calls("pay", "send", amount=5), text("done")], [e.tool(**short) for e in (first, second)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await eventually(lambda: _asks(user, 2))
        requests = {
            call.args["originalFunctionCall"]["name"]: call.id for call in (await user.invocation(invocation)).pending
        }
        await user.answer({requests["pay"]: {"happened": True, "result": 7}})
        await take_over(user)
        view = await user.settled(invocation)
        assert (view.status, [call.id for call in view.pending]) == ("waiting", [requests["send"]])
        assert (await user.answered({requests["send"]: {"happened": False}})).status == "finished"
        assert responses(await user.events(), "pay") == [{"result": 7}]
        assert await answers(user, REQUEST_RECONCILE) == [{"happened": True, "result": 7}, {"happened": False}]
        assert (len(first.keys), len(second.keys)) == (1, 1)


async def _asks(user: User, times: int) -> bool:
    return len([call for view in (await user.view()).invocations for call in view.pending]) == times


async def test_what_a_reconcile_function_knew_is_not_asked_again(client: Client, app_name: str) -> None:
    effect, known = Effect(does="hang"), list[str]()

    def reconcile(tool_context: ToolContext) -> Reconciled:
        known.append(tool_context.idempotency_key)
        return Reconciled(happened=True, result=3)

    tool = effect.tool(reconcile, heartbeat_timeout=timedelta(seconds=1), timeout=timedelta(seconds=1.5))
    gate = Gate()
    app = make_app(app_name, agent("clerk", [calls("pay", "slow"), text("done")], [tool, gate.tool("slow")]))
    async with serving(client, app) as user:
        await user.create()
        invocation = await user.send("a")
        await eventually(lambda: len(known) == 1)
        await eventually(lambda: _reconciled(user))
        await take_over(user)
        await gate.reached(2)
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert responses(await user.events(), "pay") == [{"result": 3}]
        assert (len(known), len(effect.keys)) == (1, 1)


async def _reconciled(user: User) -> bool:
    events = (await user.workflow.fetch_history()).events
    return any(event.HasField("activity_task_completed_event_attributes") for event in events[-8:])
