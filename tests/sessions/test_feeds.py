"""Many who follow one session share the looks into its log; each gets all of it, from where it began."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest
from temporalio.client import Client

from perdure.agents import App
from perdure.errors import SessionNotFound
from perdure.journal.events import Event
from perdure.messages.session import EventsPage
from perdure.sessions import feeds
from perdure.sessions.event_batches import EventBatch
from perdure.sessions.feeds import Feeds
from perdure.sessions.follower import Follower
from perdure.sessions.log_reader import LogReader
from tests.workflows.support import Gate, User, agent, calls, make_app, serving, text

pytestmark = pytest.mark.server


def looking(name: str, gate: Gate) -> App:
    return make_app(name, agent("clerk", [calls("look"), text("done")] * 5, [gate.tool("look")]))


async def taken(user: User, since: int, number: int) -> list[Event]:
    """Follow from an offset on until so many events have come."""
    found: list[Event] = []
    async with aclosing(user.runner.event_batches(**user.who, since=since, patience=0.05)) as batches:
        async for batch in batches:
            found += batch.events
            if len(found) >= number:
                break
    return found


async def test_followers_share_looks_and_miss_nothing(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    ask = LogReader.page

    async def counted(self: LogReader, *args: Any, **options: Any) -> EventsPage:
        nonlocal looks
        looks += 1
        return await ask(self, *args, **options)

    gate = Gate()
    async with serving(client, looking(app_name, gate)) as user:
        await user.create()
        monkeypatch.setattr(LogReader, "page", counted)
        following = [asyncio.create_task(taken(user, 0, 5)) for _ in range(50)]
        first = await user.send("a")
        await gate.reached()
        # Whoever comes in between, and whoever has seen a part, share them, too.
        following += [asyncio.create_task(taken(user, since, 5 - since)) for since in (0, 1, 2)]
        gate.open()
        seen = await asyncio.gather(*following)
        monkeypatch.undo()
        await user.settled(first)
        events = await user.events()
        assert seen == [events] * 51 + [events[1:], events[2:]]
        assert looks < 20
        assert await user.runner.event_count(**user.who) == 5


async def test_a_follower_that_is_far_behind_reads_for_itself(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a feed keeps is bounded, by number and by bytes; the newest event it keeps in any case."""
    gate = Gate()
    gate.open()
    async with serving(client, looking(app_name, gate)) as user:
        await user.create()
        await user.run("a")
        events = await user.events()
        for kept, size in ((2, 4_000_000), (1000, 1)):
            monkeypatch.setattr(feeds, "_MOST_EVENTS", kept)
            monkeypatch.setattr(feeds, "_MOST_BYTES", size)
            late = asyncio.create_task(taken(user, 3, 5))
            assert (await taken(user, 0, 4))[:4] == events[:4]
            await user.run("b")
            grown = await user.events()
            assert await taken(user, 0, len(grown)) == grown
            assert await late == grown[3 : 3 + len(await late)]
            events = grown


async def test_all_learn_that_the_session_is_gone(client: Client, app_name: str) -> None:
    gate = Gate()
    async with serving(client, looking(app_name, gate)) as user:
        await user.create()
        following = [asyncio.create_task(taken(user, 0, 9)) for _ in range(3)]
        await asyncio.gather(*(user.runner.event_count(**user.who) for _ in range(3)))
        await user.runner.delete_session(**user.who)
        found = await asyncio.gather(*following, return_exceptions=True)
        assert all(isinstance(error, SessionNotFound) for error in found), found
        with pytest.raises(SessionNotFound):
            await user.runner.event_count(**user.who)


async def test_a_silence_is_told(client: Client, app_name: str) -> None:
    async with serving(client, looking(app_name, Gate())) as user:
        await user.create()
        async with aclosing(user.runner.event_batches(**user.who, patience=0.05)) as batches:
            assert await anext(batches) == EventBatch()
            assert await anext(batches) == EventBatch()


class _Still:
    """Says that the log may have grown when it is told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[None] = asyncio.Queue()

    async def news(self, **_about: Any) -> None:
        await self.asked.get()


async def test_what_is_kept_comes_once_and_not_behind_another_offset_than_the_log_s_end() -> None:
    """Whoever comes with an offset beyond what was read, as from a page of another server, has seen it."""
    events = [Event(id=f"{number}", author="clerk") for number in range(4)]
    log, kept = events[:1], events[1:3]
    follower = _Still()

    async def read(since: int) -> EventsPage:
        return EventsPage(events=tuple(log[since:]), total=len(log), status="running", kept=tuple(kept))

    found = Feeds(lambda key: cast("Follower", follower), lambda key, follower: None)
    async with asyncio.timeout(20):
        first = found.follow("s", 0, page=read, patience=0.05)
        assert await anext(first) == EventBatch(events=tuple(log), kept=tuple(kept))
        log, kept = events[:3], events[3:]
        # The feed has not looked again.
        beyond = found.follow("s", 3, page=read, patience=0.05)
        assert await anext(beyond) == EventBatch()
        follower.asked.put_nowait(None)
        assert await anext(first) == EventBatch(events=tuple(events[1:3]), shown=frozenset("12"), kept=tuple(kept))
        assert await anext(beyond) == EventBatch(kept=tuple(kept))
        # Done again, behind a reset, it came to something else; and once more.
        kept = [events[3].model_copy(update={"author": "cook"})]
        follower.asked.put_nowait(None)
        assert [await anext(first), await anext(beyond)] == [EventBatch(kept=tuple(kept))] * 2
        log, kept = [*events[:3], events[3].model_copy(update={"author": "waiter"})], []
        follower.asked.put_nowait(None)
        assert [await anext(first), await anext(beyond)] == [EventBatch(events=tuple(log[3:]))] * 2
        await first.aclose()
        await beyond.aclose()
