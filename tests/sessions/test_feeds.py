"""Many who follow one session share the looks into its log; each gets all of it, from where it began."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App
from perdure.errors import SessionNotFound
from perdure.journal.events import Event
from perdure.messages.session import EventsPage
from perdure.sessions import feeds
from perdure.sessions.kept_events import EventBatch
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
            monkeypatch.setattr(feeds, "_KEPT_EVENTS", kept)
            monkeypatch.setattr(feeds, "_KEPT_BYTES", size)
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
