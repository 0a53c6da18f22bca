"""The hub: readers get each answer from its beginning and without a gap, and neither they nor writers wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from perdure.streams import hub as hub_module
from perdure.streams.hub import Draft, News, Piece, Subscription, TokenHub, Writer

SESSION = "app/u/s"


def draft(id: str = "e1", attempt: int = 1, session: str = SESSION, offset: int = 0) -> Draft:
    return Draft(session=session, id=id, attempt=attempt, offset=offset, author="clerk", invocation_id="i1")


def began(hub: TokenHub, id: str = "e1", session: str = SESSION) -> Writer:
    writer = hub.begin(draft(id, session=session))
    assert writer is not None
    return writer


def texts(news: Sequence[News]) -> list[str]:
    return ["".join(piece.text for piece in one.pieces) for one in news]


async def next_news(subscription: Subscription) -> list[News]:
    async with asyncio.timeout(5):
        await subscription.changed()
    return subscription.take()


async def test_nothing_is_written_where_nobody_reads() -> None:
    hub = TokenHub()
    assert hub.begin(draft()) is None
    reader = hub.subscribe("app/u/other")
    assert hub.begin(draft()) is None
    reader.add(SESSION)
    assert hub.wanted() == {SESSION, "app/u/other"}
    assert hub.begin(draft()) is not None
    reader.close()
    assert hub.wanted() == set()
    assert hub.begin(draft("e2")) is None


async def test_a_reader_takes_what_it_has_not_had_and_learns_of_the_end() -> None:
    hub = TokenHub()
    reader = hub.subscribe(SESSION)
    writer = began(hub)
    writer.add(Piece("Hel"), Piece("lo"))
    [news] = await next_news(reader)
    assert (texts([news]), news.draft, news.ended) == (["Hello"], draft(), False)
    assert reader.take() == []
    writer.add(Piece(" you"))
    writer.end()
    writer.add(Piece("never"))
    [news] = await next_news(reader)
    assert (texts([news]), news.ended) == ([" you"], True)
    writer.end()
    assert reader.take() == []


async def test_one_who_comes_later_gets_the_answer_from_its_beginning() -> None:
    hub = TokenHub()
    hub.subscribe(SESSION)
    writer = began(hub)
    writer.add(Piece("Hello "))
    late = hub.subscribe(SESSION)
    writer.add(Piece("you"))
    assert texts(late.take()) == ["Hello you"]


async def test_one_who_comes_after_the_end_gets_nothing_since_the_log_has_it() -> None:
    hub = TokenHub()
    hub.subscribe(SESSION)
    writer = began(hub)
    writer.add(Piece("Hello"))
    writer.end()
    assert hub.subscribe(SESSION).take() == []


async def test_a_draft_is_not_begun_twice() -> None:
    """A second connection with the same worker tells of what the first one told."""
    hub = TokenHub()
    hub.subscribe(SESSION)
    began(hub).end()
    assert hub.begin(draft()) is None
    assert hub.begin(draft(attempt=2)) is not None


async def test_readers_see_their_own_sessions_only() -> None:
    hub = TokenHub()
    mine, other = hub.subscribe(SESSION), hub.subscribe("app/u2/s")
    began(hub).add(Piece("secret"))
    assert texts(mine.take()) == ["secret"]
    assert other.take() == []
    mine.drop(SESSION)
    began(hub, "e2", session="app/u2/s").add(Piece("theirs"))
    assert mine.take() == []
    assert texts(other.take()) == ["theirs"]


async def test_memory_is_bounded_and_what_is_shown_stays_a_beginning() -> None:
    hub = TokenHub(max_bytes=3000)
    reader = hub.subscribe(SESSION)
    first, second = began(hub), began(hub, "e2")
    first.add(Piece("a" * 1000))
    second.add(Piece("b" * 1000))
    second.add(Piece("c" * 1000))
    second.add(Piece("d"))
    assert texts(reader.take()) == ["a" * 1000, "b" * 1000]
    # What has ended makes room.
    first.end()
    began(hub, "e3").add(Piece("e" * 1000))
    assert texts(reader.take()) == ["e" * 1000]


async def test_one_huge_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_MAX_DRAFT_BYTES", 500)
    hub = TokenHub()
    reader = hub.subscribe(SESSION)
    writer = began(hub)
    writer.add(Piece("x" * 300))
    writer.add(Piece("y" * 300))
    writer.add(Piece("z"))
    assert texts(reader.take()) == ["x" * 300]


async def test_what_has_ended_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_LINGER_SECONDS", 0.0)
    hub = TokenHub()
    reader = hub.subscribe(SESSION)
    writer = began(hub)
    writer.add(Piece("gone"))
    writer.end()
    began(hub, "e2").add(Piece("new"))
    assert texts(reader.take()) == ["new"]


async def test_many_threads_write_and_a_reader_misses_nothing() -> None:
    hub = TokenHub()
    reader = hub.subscribe(SESSION)

    def write(number: int) -> None:
        writer = began(hub, f"e{number}")
        for word in range(500):
            writer.add(Piece(f"{word} "))
        writer.end()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    found: dict[str, str] = {}
    ended: set[str] = set()
    while len(ended) < len(threads):
        for news in await next_news(reader):
            found[news.draft.id] = found.get(news.draft.id, "") + texts([news])[0]
            ended |= {news.draft.id} if news.ended else set()
    assert set(found.values()) == {"".join(f"{word} " for word in range(500))}


def test_a_reader_whose_loop_is_closed_holds_up_nobody() -> None:
    hub = TokenHub()

    async def subscribe() -> Subscription:
        return hub.subscribe(SESSION)

    asyncio.run(subscribe())
    began(hub).add(Piece("into the void"))
