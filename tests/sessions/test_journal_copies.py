"""Journals are read from histories: no workflow is asked, no worker has to be there, and nothing is read twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from temporalio.client import Client

from perdure.config import ConnectionConfig, connect
from perdure.errors import SessionUnreadable
from perdure.journal.entries import AnswerLogged, CallExpired, Entry, SessionCreated
from perdure.journal.packing import pack
from perdure.messages.keys import SessionKey
from perdure.messages.session import SessionInput
from perdure.recovery.slices import in_order
from perdure.sessions import journal_copies
from perdure.sessions.journal_copies import JournalCopies, _Copy  # pyright: ignore[reportPrivateUsage]
from perdure.sessions.pending import Wanted, find_waiting
from tests.workflows.support import User, agent, calls, long_running, make_app, serving, text

FORWARD, NEWEST, DESCRIBE = (
    "get_workflow_execution_history",
    "get_workflow_execution_history_reverse",
    "describe_workflow_execution",
)


def created(*names: str) -> tuple[Entry, ...]:
    return tuple(SessionCreated(state={"name": name}) for name in names)


@pytest.mark.parametrize(
    ("parts", "length", "behind"),
    [
        ([(0, "ab"), (2, "c")], 3, []),
        ([(2, "c"), (0, "ab")], 3, []),
        ([(0, "ab"), (1, "bc"), (0, "abc")], 3, []),
        ([(0, "a"), (2, "c")], 1, [2]),
        ([(3, "d"), (0, "a"), (1, "bc")], 4, []),
        ([(1, "b")], 0, [1]),
    ],
)
def test_parts_are_put_in_order_and_what_lies_behind_a_gap_waits(
    parts: list[tuple[int, str]], length: int, behind: list[int]
) -> None:
    entries, left = in_order([(offset, created(*names)) for offset, names in parts])
    assert entries == list(created(*"abcd"[:length]))
    assert [offset for offset, _ in left] == behind


@pytest.fixture
async def counted(temporal_server: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Client, Counter[str]]:
    """Return a client of its own, and the requests that it sends, by name."""
    client, sent = (
        await connect(ConnectionConfig(address=temporal_server, namespace="default", tls=False)),
        Counter[str](),
    )
    service = client.service_client
    real: Any = service._rpc_call  # pyright: ignore[reportPrivateUsage] -- each request goes through it

    async def count(rpc: str, *args: Any, **kwargs: Any) -> Any:
        sent[rpc] += 1
        return await real(rpc, *args, **kwargs)

    monkeypatch.setattr(service, "_rpc_call", count)
    return client, sent


@pytest.mark.server
async def test_a_session_is_read_without_a_worker(
    client: Client, counted: tuple[Client, Counter[str]], app_name: str
) -> None:
    app = make_app(app_name, agent("asker", [calls("ask"), text("thanks")], [long_running("ask")]))
    async with serving(client, app) as user:
        await user.create(colour="red")
        invocation = await user.run("a")
        log = await user.log()
    reader = User(counted[0], app_name)
    assert (await reader.view()).state == {"colour": "red"}
    assert await reader.log() == log
    assert (await reader.invocation(invocation.id)).status == "waiting"
    assert list(await reader.pending()) == ["ask"]
    page = await find_waiting(counted[0], Wanted(app=app_name))
    assert [call.name for _, call in page.calls] == ["ask"]
    assert not page.unanswered
    explained = await reader.runner.explain(**reader.who)
    assert explained.status == "waiting"
    assert not counted[1]["query_workflow"]


@pytest.mark.server
async def test_what_was_read_is_not_read_again(
    client: Client, counted: tuple[Client, Counter[str]], app_name: str
) -> None:
    reading, sent = counted
    app = make_app(app_name, agent("talker", [text(str(turn)) for turn in range(30)]))
    async with serving(client, app) as user:
        await user.create()
        for turn in range(20):
            await user.run(str(turn))
        copies = JournalCopies(reading)
        # Many who come at once read once.
        found = await asyncio.gather(*(copies.read(user.key) for _ in range(10)))
        events = len(found[0][0].events)
        assert events == 60
        assert (sent[FORWARD], sent[DESCRIBE]) == (1, 10)
        sent.clear()
        await copies.read(user.key)
        assert +sent == {DESCRIBE: 1}
        await user.run("again")
        sent.clear()
        assert len((await copies.read(user.key))[0].events) == events + 3
        assert +sent == {DESCRIBE: 1, NEWEST: sent[NEWEST]}
        assert 1 <= sent[NEWEST] <= 2


@pytest.mark.server
async def test_copies_are_bounded_in_bytes(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("talker", [text("hello")]))
    copies = JournalCopies(client, max_bytes=100)
    async with serving(client, app) as user:
        for name in "ab":
            other = user.other(session_id=name)
            await other.create()
            await other.run("hi")
        read = [(await copies.read(user.other(session_id=name).key))[0] for name in "aba"]
        assert read[0] is not read[2], "the first copy had to go"
        assert [len(projection.events) for projection in read] == [3, 3, 3]


@pytest.mark.server
async def test_a_copy_that_is_being_read_is_not_gone_on_with(client: Client) -> None:
    """A run continues as new while somebody reads what it left: both would fold into one journal."""
    entries = created(*map(str, range(300)))
    first = _Copy(client, "app/u/s", "run-1", None)
    async with first.lock:
        second = _Copy(client, "app/u/s", "run-2", first)
        getattr(second, "_take_over")("run-1")  # noqa: B009 -- what it does with the event of its start
        apply = [getattr(copy, "_apply") for copy in (first, second)]  # noqa: B009 -- as above
        await asyncio.gather(apply[0]([(0, entries[:200])]), apply[1]([(0, entries)]))
    assert (first.length, second.length) == (200, 300)
    assert second.projection.entries == list(entries)


@pytest.mark.server
async def test_a_reader_that_gives_up_leaves_what_was_read(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads many sessions waits some seconds for each: a long one comes a part at a time, and comes in the end."""
    monkeypatch.setattr(journal_copies, "_PAGE", 7)
    monkeypatch.setattr(journal_copies, "_LONG_PART", 1)
    async with serving(client, make_app(app_name, agent("talker", [text("hello")] * 12))) as user:
        await user.create()
        for turn in range(12):
            await user.run(f"m{turn}")
        whole, *_ = await JournalCopies(client).read(user.key)
        copies = JournalCopies(client)
        kept = getattr(copies, "_copies")  # noqa: B009 -- how far the copy is
        given_up = 0
        for length in range(1, len(whole.entries), 4):
            reading = asyncio.create_task(copies.read(user.key))
            while not reading.done() and (user.key not in kept or kept[user.key].length < length):  # noqa: ASYNC110 -- a step at a time
                await asyncio.sleep(0)
            given_up += reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert kept[user.key].length >= length
        assert given_up > 5
        found, *_ = await copies.read(user.key)
        assert found.entries == whole.entries
        assert found.events == whole.events


@pytest.mark.server
async def test_whoever_sent_reads_it_back_at_once(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("asker", [calls("ask"), text("a"), text("b")], [long_running("ask")]))
    async with serving(client, app) as user:
        await user.create()
        for number in range(10):
            event = await user.runner.change_state(**user.who, state_delta={"number": number})
            assert (await user.view()).state["number"] == number
            assert (await user.events())[-1].id == event.id
        first = await user.run("a")
        [call] = (await user.pending()).values()
        queued = [await user.send(str(number)) for number in range(5)]
        assert [(await user.invocation(id)).id for id in queued] == queued
        await user.answer({call: "yes"})
        assert not await user.pending(first.id)


@pytest.mark.server
async def test_who_signals_reads_what_came_of_it(client: Client, app_name: str) -> None:
    """Of a signal nobody is told when it is taken; where no worker is up, a reader does not wait for one."""
    app = make_app(app_name, agent("asker", [calls("ask"), text("thanks")] * 6, [long_running("ask")]))
    async with serving(client, app) as user:
        await user.create()
        for _ in range(5):
            invocation = await user.run("a")
            [call] = (await user.pending()).values()
            await user.signal({"id": call, "response": {"ok": 1}})
            assert (await user.settled(invocation.id)).status == "finished"
        await user.run("a")
        [call] = (await user.pending()).values()
    await user.signal({"id": call, "response": {"ok": 1}})
    async with asyncio.timeout(10):
        assert list(await user.pending()) == ["ask"]


@pytest.mark.server
async def test_a_closed_session_is_read_as_it_will_go_on(
    client: Client, counted: tuple[Client, Counter[str]], app_name: str
) -> None:
    """What was sent to it when no worker was there counts, and is read from its history once."""
    app = make_app(app_name, agent("asker", [calls("ask"), text("thanks"), text("again")], [long_running("ask")]))
    async with serving(client, app) as user:
        await user.create()
        await user.run("a")
        [call] = (await user.pending()).values()
    reader = User(counted[0], app_name)
    await user.signal({"id": call, "response": {"ok": 1}})
    assert list(await reader.pending()) == ["ask"], "a run that is open takes it up itself"
    await user.workflow.terminate()
    closed = await reader.events()
    assert not await reader.pending()
    copies = JournalCopies(counted[0])
    for requests in ({DESCRIBE: 1, FORWARD: 2}, {DESCRIBE: 1}):
        counted[1].clear()
        projection, *_ = await copies.read(reader.key, closed=True)
        assert +counted[1] == requests
        assert projection.events == closed
    async with serving(client, app):
        await user.run("b")
        assert (await user.events())[: len(closed)] == closed
        assert not await user.pending()


@pytest.mark.server
async def test_a_history_that_is_no_journal_is_unreadable(client: Client, app_name: str) -> None:
    """As of another version: its entries do not fit each other. Whoever reads many sessions passes it over."""
    odd = (AnswerLogged(event_id="none", timestamp=1.0), CallExpired(call_id="none"))
    given = SessionInput(journal=pack((SessionCreated(state={}), *odd)))
    key = SessionKey(app_name, "u", "odd")
    await client.start_workflow(app_name, given, id=key.workflow_id, task_queue=app_name)
    with pytest.raises(SessionUnreadable, match="cannot be read"):
        await JournalCopies(client).read(key.workflow_id)
