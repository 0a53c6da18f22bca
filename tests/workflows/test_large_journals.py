"""Journals that no payload takes: carried from run to run, brought back and imported part by part."""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from perdure.client import Runner
from perdure.errors import SessionFull, SessionUnreadable
from perdure.journal import entries as journal
from perdure.journal import packing
from perdure.journal.entries import Entry, EventLogged, ResumeAccepted, SessionCreated
from perdure.journal.packing import pack
from perdure.messages.keys import SessionKey
from perdure.messages.session import EXTEND_JOURNAL, LOAD_JOURNAL, JournalPage, SessionInput, Trial
from perdure.recovery.slices import read_archive
from perdure.sessions import lifecycle as lifecycle_module
from perdure.sessions.journal_reader import JournalReader
from perdure.sessions.lifecycle import Lifecycle
from perdure.temporal.task_timeouts import LONG
from perdure.workflows import session as session_module
from perdure.workflows.run import limits
from tests.workflows.custom_agents import Broker
from tests.workflows.support import (
    Counted,
    GatedModel,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    responses,
    serving,
    text,
)
from tests.workflows.test_continue_as_new import ROUNDS, runs
from tests.workflows.test_custom_agents import app_of

pytestmark = pytest.mark.server

SMALL = 3_000
"""What a payload is said to take here, so that a journal outgrows it soon."""


@pytest.fixture
def small_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_PAYLOAD_BYTES", SMALL)
    monkeypatch.setattr(packing, "MAX_PART_BYTES", 4 * SMALL)


def noise(size: int, seed: int = 0) -> str:
    """Return a text that packs badly."""
    return b64encode(random.Random(seed).randbytes(size)).decode()[:size]


async def loads(user: User) -> int:
    """Return how many parts of a journal the session's newest run has fetched."""
    history = await user.workflow.fetch_history()
    names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    return names.count(LOAD_JOURNAL)


async def has_loaded(user: User) -> bool:
    return await loads(user) >= 1


@pytest.mark.usefixtures("small_payloads")
@pytest.mark.parametrize("cached", [0, 100])
async def test_a_run_fetches_the_journal_that_no_payload_takes(
    small_client: Client, app_name: str, cached: int
) -> None:
    tool = Counted("tool", noise(400))
    model = GatedModel([*[calls("tool", "tool")] * ROUNDS, text("done"), text("next")])
    async with serving(small_client, make_app(app_name, agent("clerk", model, [tool.fn])), cached=cached) as user:
        await user.create(k=1)
        followed = user.runner.run_async(**user.who, new_message="a", request_id="r1", state_delta={"temp:t": 1})
        events = [event async for event in followed]
        assert await runs(user) > 1
        # The newest run may be a moment old.
        await eventually(lambda: has_loaded(user))
        assert [event.text for event in events if event.text] == ["done"]
        assert [event.id for event in events] == [event.id for event in (await user.events())[1:]]
        assert len(tool.keys) == len(set(tool.keys)) == 2 * ROUNDS
        assert await user.send("a", request_id="r1") == events[0].invocation_id
        assert (await user.run("b")).status == "finished"
        assert (await user.view()).state == {"k": 1}
        assert [len(request.contents) for request in model.requests] == [*range(1, 2 * ROUNDS + 2, 2), 2 * ROUNDS + 3]


@pytest.mark.usefixtures("small_payloads")
@pytest.mark.parametrize(("kind", "steps"), [("tools", 3), ("functions", 2), ("functions", 3)])
async def test_history_holds_all_that_a_run_hands_over_in_the_middle_of_a_turn(
    client: Client, app_name: str, kind: str, steps: int
) -> None:
    """Else the next run would have to ask the closed one, which workers of today may not be able to replay."""
    tool = Counted("tool", noise(400))
    if kind == "tools":
        app = make_app(app_name, agent("clerk", [*[calls("tool", "tool")] * 6, text("done")], [tool.fn]))
    else:
        decider = agent("decider", [calls("tool"), text("done")], [tool.fn])
        app = app_of(app_name, Broker(name="broker", sub_agents=[decider]))
    async with serving(client, app) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=steps))
        await user.create()
        assert (await user.run(noise(5_000))).status == "finished"
        carried = [start.carried for start in await starts(user) if start.carried is not None]
        assert carried
        for part in carried:
            assert len(await read_archive(client, user.key, part.run_id)) == part.length


async def starts(user: User) -> list[SessionInput]:
    """Return what each of the session's runs started with, the newest first."""
    found: list[SessionInput] = []
    for history in await user.histories():
        payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
        (given,) = await user.client.data_converter.decode(payloads, [SessionInput])
        found.insert(0, given)
    return found


@pytest.mark.usefixtures("small_payloads")
async def test_answers_messages_and_signals_wait_for_the_journal(
    small_client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A brought-back session takes nothing before it knows what it holds, and loses nothing that comes meanwhile."""
    script = [calls("pick"), calls("choose"), *[text(noise(600, seed)) for seed in range(8)], text("chosen"), text("x")]
    tools = [long_running("pick"), long_running("choose")]
    app = make_app(app_name, agent("clerk", script, tools))
    async with serving(small_client, app) as user:
        await user.create()
        first, second = await user.run("a"), await user.run("b")
        for number in range(8):
            await user.run(f"m{number}")
        await user.workflow.terminate("a test")
        answering = [
            asyncio.create_task(user.answer({first.pending[0].id: {"ok": 1}})),
            asyncio.create_task(user.answer({second.pending[0].id: {"ok": 2}})),
        ]
        await asyncio.gather(*answering)
        assert await loads(user) > 1
        for invocation in (first, second):
            assert (await user.settled(invocation.id)).status == "finished"
        events = await user.events()
        assert responses([event for event in events if event.author == "user"], "pick") == [{"ok": 1}]
        assert responses([event for event in events if event.author == "user"], "choose") == [{"ok": 2}]
        assert len([event for event in events if event.text and len(event.text) == 600]) == 8


@pytest.mark.usefixtures("small_payloads")
async def test_a_session_closed_while_it_fetches_its_journal_is_brought_back(
    small_client: Client, app_name: str
) -> None:
    script = [*[text(noise(600, seed)) for seed in range(8)], text("last")]
    app = make_app(app_name, agent("clerk", script))
    async with serving(small_client, app) as user:
        await user.create()
        for number in range(8):
            await user.run(f"m{number}")
        before = await user.events()
        length = len(await Lifecycle(small_client).read_journal(SessionKey(app_name, "u", "s")))
        await user.workflow.terminate("a test")
        described = await user.workflow.describe()
    # Nobody serves the app, so the run that is brought back has no time to fetch anything.
    reference = {"run_id": described.run_id, "length": length}
    start = SessionInput.model_validate({"carried": reference, "interrupted": "terminated"})
    await Lifecycle(small_client).start(SessionKey(app_name, "u", "s"), start, again=True)
    await user.workflow.terminate("once more")
    async with serving(small_client, app):
        assert (await user.run("m8")).status == "finished"
        after = await user.events()
        assert after[: len(before)] == before
        assert after[-2].text == "last"


async def test_a_run_that_carries_a_journal_does_not_hand_over_at_once(small_client: Client, app_name: str) -> None:
    """The server suggests to continue as new all the time once the journal stands in the history."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MAX_PAYLOAD_BYTES", SMALL)
        script = [text(noise(2_000, seed)) for seed in range(30)]
        async with serving(small_client, make_app(app_name, agent("clerk", script))) as user:
            await user.create()
            for number in range(30):
                assert (await user.run(f"m{number}")).status == "finished"
            assert 1 < await runs(user) < 10
            assert len(await user.events()) == 90


@pytest.mark.usefixtures("small_payloads")
async def test_restore_sends_a_large_journal_in_parts(client: Client, app_name: str) -> None:
    script = [calls("pick"), *[text(noise(600, seed)) for seed in range(8)], text("picked")]
    app = make_app(app_name, agent("clerk", script, [long_running("pick")]))
    lifecycle = Lifecycle(client)
    async with serving(client, app) as user:
        await user.create(k=1)
        waiting = await user.run("a")
        for number in range(8):
            await user.run(f"m{number}")
        entries = await lifecycle.read_journal(SessionKey(app_name, "u", "s"))
        assert len(pack(entries)) > 2 * SMALL
        other = user.other(session_id="copy")
        await lifecycle.restore(SessionKey(app_name, "u", "copy"), entries)
        assert await other.events() == await user.events()
        assert (await other.answered({waiting.pending[0].id: {}})).status == "finished"
        assert (await other.view()).state == {"k": 1}


@pytest.mark.usefixtures("small_payloads")
async def test_who_dies_while_taking_over_leaves_it_to_the_next(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log stands in the history of the run before, and the new run knows which."""
    script = [calls("pick"), *[text(noise(600, seed)) for seed in range(12)], text("picked")]
    app = make_app(app_name, agent("clerk", script, [long_running("pick")]))
    async with serving(client, app) as user:
        await user.create(k=1)
        waiting = await user.run("a")
        for number in range(12):
            await user.run(f"m{number}")
        log = await user.log()
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle_module, "_send_part", _die)
            with pytest.raises(ConnectionResetError):
                await user.runner.resume(**user.who, invocation_id=waiting.id, fresh=True)
        history = await user.workflow.fetch_history()
        assert not any(event.HasField("activity_task_scheduled_event_attributes") for event in history.events)
        await user.runner.resume(**user.who, invocation_id=waiting.id, fresh=True)
        assert await user.log() == log
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        # Its memo goes on to all runs that follow, and harms none of them.
        await user.runner.resume(**user.who, invocation_id=waiting.id, fresh=True)
        assert (await user.log())[: len(log)] == log


async def test_who_was_taken_over_once_is_told_if_that_fails(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log has arrived, so nothing more of the first one is sent, for which it would take a worker."""
    app = make_app(app_name, agent("clerk", [text("hi"), text("ho")]))
    async with serving(client, app) as user:
        await user.create()
        await user.run("a")
        await Lifecycle(client).take_over(SessionKey(user.app, "u", "s"))
        await user.run("b")
    newest, salvage = (await user.workflow.describe()).run_id, JournalReader.salvage

    async def failing(reader: JournalReader, id: str, run_id: str, *rest: Any) -> Any:
        if run_id == newest:
            raise SessionUnreadable("a gap")
        return await salvage(reader, id, run_id, *rest)

    monkeypatch.setattr(JournalReader, "salvage", failing)
    with pytest.raises(SessionUnreadable, match="a gap"):
        await asyncio.wait_for(Lifecycle(client).take_over(SessionKey(user.app, "u", "s")), 20)


async def test_history_holds_what_waited_for_room(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that waits for a workflow task with room may be held back as the run hands over."""
    monkeypatch.setattr(limits, "_MAX_BYTES", 5_000_000)
    seeds = iter(range(99))

    def look() -> str:
        return noise(900_000, next(seeds))

    async with serving(
        client, make_app(app_name, agent("clerk", [*[calls("look")] * 5, text("done")], [look]))
    ) as user:
        await user.create()
        assert (await user.settled(await user.send("a"), patience=60)).status == "finished"
        carried = [start.carried for start in await starts(user) if start.carried is not None]
        assert carried
        for part in carried:
            assert len(await read_archive(client, user.key, part.run_id)) == part.length


async def _die(*_: object) -> bool:
    raise ConnectionResetError


async def test_a_part_that_does_not_fold_is_refused_and_harms_nobody(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("hi")]))
    async with serving(client, app) as user:
        lifecycle = Lifecycle(client)
        await lifecycle.start(
            SessionKey(app_name, "u", "s"), SessionInput(journal=pack([SessionCreated()]), length=3), again=False
        )

        async def extend(page: JournalPage) -> Any:
            handle: Any = user.workflow
            return await handle.execute_update(EXTEND_JOURNAL, page, result_type=int)

        bad: list[Entry] = [EventLogged.model_validate({"event": {"author": "clerk"}})]
        resume: Entry = ResumeAccepted(invocation_id="e-none")
        for page in (
            JournalPage(packed="no journal", offset=1, total=3),
            JournalPage(packed=pack(bad), offset=2, total=3),
            JournalPage(packed=pack([*bad, resume]), offset=1, total=3),
        ):
            with pytest.raises(WorkflowUpdateFailedError):
                await extend(page)
        sending = asyncio.create_task(user.send("hello"))
        assert await extend(JournalPage(packed=pack([*bad, *bad]), offset=1, total=3)) == 3
        assert (await user.settled(await sending)).status == "finished"
        with pytest.raises(WorkflowUpdateFailedError):
            await extend(JournalPage(packed=pack(bad), offset=3, total=4))
        # What was refused is no part of the journal either where it is read out of the history.
        lifecycle_entries = await lifecycle.read_journal(SessionKey(app_name, "u", "s"))
        archived = await read_archive(client, user.key, None)
        assert archived == lifecycle_entries[: len(archived)]
        assert len(archived) >= 3


async def test_a_cancellation_while_the_journal_comes_in_keeps_the_session(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("hi")]))
    async with serving(client, app) as user:
        lifecycle = Lifecycle(client)
        await lifecycle.start(
            SessionKey(app_name, "u", "s"), SessionInput(journal=pack([SessionCreated()]), length=2), again=False
        )
        await user.workflow.cancel()
        sending = asyncio.create_task(user.send("hello"))
        await asyncio.sleep(0.3)
        event = EventLogged.model_validate({"event": {"author": "clerk"}})
        page = JournalPage(packed=pack([event]), offset=1, total=2)
        handle: Any = user.workflow
        await handle.execute_update(EXTEND_JOURNAL, page, result_type=int)
        assert (await user.settled(await sending)).status in ("stopped", "finished")


async def test_a_full_session_refuses_messages_and_takes_answers(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(app_name, agent("clerk", [calls("pick"), text("picked")], [long_running("pick")]))
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
        await user.workflow.terminate("a test")
        monkeypatch.setattr(packing, "MAX_PAYLOAD_BYTES", 100)
        monkeypatch.setattr(limits, "_MAX_BYTES", 1_000)
        with pytest.raises(SessionFull, match="export it"):
            await user.send("b")
        monkeypatch.undo()
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"


@pytest.mark.parametrize(
    ("carried", "more"), [(2_000_000, 2_000_000), (39_900_000, 4_000_000), (45_000_000, 4_000_000)]
)
def test_a_run_with_a_large_journal_gets_some_way_before_it_hands_over(
    monkeypatch: pytest.MonkeyPatch, carried: float, more: float
) -> None:
    """Temporal suggests to hand over from its start; one that did so at once would do nothing else for ever."""
    size = carried
    info = SimpleNamespace(
        task_timeout=LONG,
        get_current_history_size=lambda: size,
        get_current_history_length=lambda: 100,
        is_continue_as_new_suggested=lambda: True,
    )
    monkeypatch.setattr(limits.workflow, "info", lambda: info)
    run = limits.RunLimits()
    run.carried()
    size = carried + more - 1
    assert not run.reached
    size += 1
    assert run.reached


def test_where_a_history_is_long_nothing_is_packed_in_vain() -> None:
    assert session_module.INLINE_HISTORY_BYTES > 4 * journal.MAX_PAYLOAD_BYTES


@pytest.mark.timeout(240)
async def test_twenty_megabytes_of_events_go_on(client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In real sizes: brought in, carried into the next run, and shown to a model."""
    # Without the deadlock detector, which gives a step 2 s by the clock: a busy machine is no matter here.
    monkeypatch.setenv("TEMPORAL_DEBUG", "1")
    model = GatedModel([calls("pick"), text("next")])
    app = make_app(app_name, agent("clerk", model, [long_running("pick")]))
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
        lifecycle = Lifecycle(client)
        entries = await lifecycle.read_journal(SessionKey(app_name, "u", "s"))
        ids = {"author": "clerk", "invocation_id": waiting.id}
        for number in range(4_000):
            content = {"role": "model", "parts": [{"text": noise(5_000, number)}]}
            entries.append(EventLogged.model_validate({"event": {"id": f"n{number}", "content": content, **ids}}))
        large = user.other(session_id="large")
        await lifecycle.restore(SessionKey(app_name, "u", "large"), entries)
        assert (await large.runner.get_session(**large.who)).event_count == 4_003
        # A cancellation makes the run continue as new; what waits is stopped.
        await large.workflow.cancel()
        await eventually(lambda: stopped(large, waiting.id), patience=90)
        assert (await large.run("b")).status == "finished"
        assert await runs(large) == 2
        assert len(model.requests[-1].contents) > 4_000


async def stopped(user: User, invocation: str) -> bool:
    return await user.status(invocation) == "stopped"
