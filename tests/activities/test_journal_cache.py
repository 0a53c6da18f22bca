"""A worker's copies of journals: whatever is packed or dropped, each call sees the log that it was scheduled with."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from perdure.activities import journal_cache as session
from perdure.activities.journal_cache import JournalCache
from perdure.agents import FunctionTool, LongRunningFunctionTool
from perdure.errors import LogError
from perdure.journal.entries import Entry, EventLogged, SessionCreated
from perdure.journal.events import USER, Event, user_content
from perdure.journal.fold import fold_journal
from perdure.journal.projection import Projection
from perdure.messages.session import JournalSlice
from tests.workflows.support import agent, calls, make_app, serving, text

pytestmark = pytest.mark.server

SESSIONS = ("a", "b", "c")


def journal_of(name: str, length: int) -> tuple[Entry, ...]:
    events = (
        Event(id=f"{name}{n}", author=USER, timestamp=float(n), content=user_content(f"{name} {n}"))
        for n in range(length)
    )
    return (SessionCreated(state={"of": name}), *(EventLogged(event=event) for event in events))


def texts(projection: Projection) -> list[str | None]:
    return [event.text for event in projection.events]


@settings(max_examples=30, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(SESSIONS), st.integers(0, 3)), min_size=1, max_size=20))
@pytest.mark.parametrize("ready", [0, 1])
async def test_packed_copies_are_what_they_were(client: Client, ready: int, calls: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_READY", ready)
        patch.setattr(session, "_IDLE_SECONDS", -1.0)
        cache = JournalCache(client, max_bytes=10_000_000)
        known: dict[str, int] = dict.fromkeys(SESSIONS, 0)
        for name, more in calls:
            whole = journal_of(name, 60)
            since, known[name] = known[name], min(known[name] + more, len(whole))
            # Only what is new is sent, so that the rest must come from the copy.
            part = JournalSlice(offset=since, entries=whole[since : known[name]])
            found = (await cache.at(name, "run", part)).projection
            assert texts(found) == texts(fold_journal(whole[: known[name]]))
            assert len(cache.ready) <= max(ready, 0)


async def test_all_copies_together_stay_within_their_bytes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_READY", 2)
    monkeypatch.setattr(session, "_IDLE_SECONDS", -1.0)
    cache = JournalCache(client, max_bytes=20_000)
    for number in range(50):
        entries = journal_of(f"s{number}", 20)
        await cache.at(f"s{number}", "run", JournalSlice(offset=0, entries=entries))
        assert cache.size <= 20_000
    assert cache.size > 5_000


def ask(question: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending", "question": question}


async def see(cache: JournalCache, name: str, since: int, until: int) -> list[str | None]:
    part = JournalSlice(offset=since, entries=journal_of(name, until)[since:until])
    return texts((await cache.at(name, "run", part)).projection)


async def test_sessions_that_wait_for_a_person_are_packed_soon(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_READY", 1)
    monkeypatch.setattr(session, "_RESTING_SECONDS", -1.0)
    cache = JournalCache(client, max_bytes=10_000_000)
    for name in ("waits", "works", "goes on"):
        await see(cache, name, 0, 3)
    cache.rest("waits", "run")
    cache.rest("goes on", "run")
    cache.rest("elsewhere", "run")
    assert await see(cache, "goes on", 3, 5) == [f"goes on {n}" for n in range(4)]
    assert [name for name, _ in cache.ready] == ["works", "goes on"]
    # The rest of the log is known from the packed copy: nobody could be asked for it.
    assert await see(cache, "waits", 3, 6) == [f"waits {n}" for n in range(5)]


async def test_a_copy_may_be_dropped_while_its_session_waits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_READY", 1)
    cache = JournalCache(client, max_bytes=10_000)
    for number in range(10):
        await see(cache, f"s{number}", 0, 20)
        cache.rest(f"s{number}", "run")
    kept = len(cache.ready)
    assert 1 < kept < 10
    cache.hand_over("s9", "run", "next", 20)
    assert ("s9", "next") in cache.ready
    monkeypatch.setattr(session, "_RESTING_SECONDS", -1.0)
    assert await see(cache, "last", 0, 3) == ["last 0", "last 1"]
    # What was handed over does not wait in its new run.
    assert cache.ready == [("s9", "next"), ("last", "run")]


async def test_who_waits_for_a_log_that_is_long_in_coming_heartbeats(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model call would be taken for lost, and run again, while a long history is read."""
    beats: dict[str, int] = {"asks": 0, "waits": 0}

    async def read_history(*args: object) -> list[Entry]:
        while min(beats.values()) < 3:  # noqa: ASYNC110 -- heartbeats come from elsewhere
            await asyncio.sleep(0.01)
        return list(journal_of("s", 30))

    async def read(name: str) -> list[str | None]:
        environment = ActivityEnvironment()

        def beat(*details: object) -> None:
            beats[name] += 1

        environment.on_heartbeat = beat
        environment.info = replace(environment.info, heartbeat_timeout=timedelta(seconds=0.03))
        return await environment.run(see, cache, "s", 20, 31)

    monkeypatch.setattr(session, "read_archive", read_history)
    cache = JournalCache(client, max_bytes=8_000)
    found = await asyncio.wait_for(asyncio.gather(*map(read, beats)), 10)
    assert found == [[f"s {n}" for n in range(30)]] * 2


async def test_what_a_history_lacks_is_not_waited_for_for_ever(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_MOST_SECONDS", 0.3)
    async with serving(client, make_app(app_name, agent("clerk", [text("done")]))) as user:
        await user.create()
        await user.run("a")
        run_id = (await user.workflow.describe()).run_id
        cache = JournalCache(client, max_bytes=1_000_000)
        part = JournalSlice(offset=100, entries=journal_of("a", 1))
        with pytest.raises(LogError, match="of the 100 journal entries that this step is to see"):
            await ActivityEnvironment().run(cache.at, user.key, run_id, part)


async def test_what_is_offered_is_taken_while_the_log_is_asked_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it waited for the answer, it could take in a copy that was evicted meanwhile, uncounted."""
    asked, answered = asyncio.Event(), asyncio.Event()

    async def read_history(*args: object) -> list[Entry]:
        asked.set()
        await answered.wait()
        return list(journal_of("s", 30))

    monkeypatch.setattr(session, "read_archive", read_history)
    cache = JournalCache(client, max_bytes=8_000)
    reading = asyncio.create_task(ActivityEnvironment().run(see, cache, "s", 20, 31))
    await asyncio.wait_for(asked.wait(), 5)
    cache.offer("s", "run", JournalSlice(offset=0, entries=journal_of("s", 20)[:20]))
    assert cache.size > 2_000
    for number in range(10):
        await see(cache, f"other{number}", 0, 10)
    assert ("s", "run") not in cache.ready
    answered.set()
    assert await reading == [f"s {n}" for n in range(30)]
    await see(cache, "last", 0, 2)
    assert cache.size <= 8_000


async def test_no_call_packs_more_than_a_few_copies(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = JournalCache(client, max_bytes=10_000_000)
    for number in range(150):
        await see(cache, f"s{number}", 0, 3)
    monkeypatch.setattr(session, "_IDLE_SECONDS", -1.0)
    lengths: list[int] = []
    for _ in range(20):
        await see(cache, "s149", 3, 3)
        lengths.append(len(cache.ready))
    assert lengths == [max(length, 100) for length in range(145, 45, -5)]


@pytest.mark.parametrize(
    ("tool", "waits"),
    [
        pytest.param(LongRunningFunctionTool(ask), True, id="long-running"),
        pytest.param(FunctionTool(ask, require_confirmation=True), True, id="confirmation"),
        pytest.param(FunctionTool(ask), False, id="neither"),
    ],
)
async def test_a_worker_knows_which_sessions_wait_for_a_person(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, tool: FunctionTool, waits: bool
) -> None:
    rested: list[str] = []

    def rest(self: JournalCache, workflow_id: str, run_id: str) -> None:
        rested.append(workflow_id)

    monkeypatch.setattr(JournalCache, "rest", rest)
    clerk = agent("clerk", [calls("ask", question="May I?"), text("done")], [tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        result = await user.run("go")
        assert result.status == ("waiting" if waits else "finished")
        assert rested == ([user.workflow.id] if waits else [])
