"""Partial events keep step with the log, whatever order things arrive in."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from perdure.journal.events import Event
from perdure.streams.hub import Draft, Piece, TokenHub
from perdure.streams.partials import ATTEMPT, Partials
from tests.streams.support import written
from tests.streams.test_hub import SESSION


def write(hub: TokenHub, text: str, id: str = "e1", attempt: int = 1, offset: int = 0, invocation: str = "i1") -> None:
    """Write a whole answer, as one piece."""
    draft = Draft(
        session=SESSION, id=id, attempt=attempt, offset=offset, author="clerk", invocation_id=invocation, branch="a.b"
    )
    writer = hub.begin(draft)
    assert writer is not None
    writer.add(Piece("hm", thought=True), Piece(text[:1]), Piece(text[1:]))
    writer.end()


async def shown(partials: Partials, since: int, seconds: float = 0.2) -> tuple[list[Event], bool]:
    """Return what is shown until there is news of the log, here after some seconds; and whether it did not wait."""
    ended = False

    async def news() -> None:
        nonlocal ended
        await asyncio.sleep(seconds)
        ended = True

    async with aclosing(partials.until(news(), since)) as events:
        found = [event async for event in events]
    return found, not ended


async def test_pieces_are_parts_and_name_where_they_belong() -> None:
    hub = TokenHub()
    partials = Partials(hub.subscribe(SESSION))
    write(hub, "Oslo", attempt=3)
    [event], hurried = await shown(partials, 0)
    assert [(part.text, part.thought) for part in event.parts] == [("hm", True), ("Oslo", None)]
    assert (event.id, event.author, event.branch, event.invocation_id) == ("e1", "clerk", "a.b", "i1")
    assert (event.partial, event.custom_metadata, hurried) == (True, {ATTEMPT: 3}, False)
    assert event.is_final_response() is False
    partials.close()
    assert hub.wanted() == set()


async def test_pieces_wait_for_what_the_model_had_seen_and_the_log_is_looked_at_once_for_it() -> None:
    hub = TokenHub()
    partials = Partials(hub.subscribe(SESSION))
    write(hub, "Oslo", offset=2)
    assert await shown(partials, 1, seconds=5) == ([], True)
    # That look was too early; the next one comes when it comes.
    assert await shown(partials, 1) == ([], False)
    found, hurried = await shown(partials, 2)
    assert (written(found), hurried) == (["[Oslo]"], False)


async def test_no_piece_comes_behind_its_own_event() -> None:
    hub = TokenHub()
    partials = Partials(hub.subscribe(SESSION))
    draft = Draft(session=SESSION, id="e1", attempt=1, offset=9, author="clerk", invocation_id="i1")
    writer = hub.begin(draft)
    assert writer is not None
    writer.add(Piece("Oslo"))
    assert partials.logged(Event(id="e0")) == []
    # What came until then comes before it, whatever the log was looked at for.
    assert written(partials.logged(Event(id="e1"))) == ["[Oslo]"]
    writer.add(Piece("late"))
    assert await shown(partials, 10) == ([], False)


async def test_no_piece_comes_of_an_attempt_that_another_has_taken_over_from() -> None:
    """A worker that is cut off from Temporal goes on for a while, as another tries again."""
    hub = TokenHub()
    partials = Partials(hub.subscribe(SESSION))
    write(hub, "second", attempt=2)
    assert written((await shown(partials, 0))[0]) == ["[second]"]
    write(hub, "first", attempt=1)
    assert await shown(partials, 0) == ([], False)
    write(hub, "third", attempt=3)
    assert written((await shown(partials, 0))[0]) == ["[third]"]


async def test_one_who_follows_an_invocation_is_told_of_no_other() -> None:
    hub = TokenHub()
    partials = Partials(hub.subscribe(SESSION), "i2")
    write(hub, "theirs")
    write(hub, "mine", id="e2", invocation="i2")
    assert written((await shown(partials, 0))[0]) == ["[mine]"]


async def test_one_who_waited_since_before_a_message_gets_what_was_written_for_it_and_nothing_older() -> None:
    """Also where that is complete already; of the rest, the log has it."""
    hub = TokenHub()
    waited = hub.subscribe(SESSION)
    write(hub, "older", offset=3)
    write(hub, "quick", id="e2", offset=6)
    waited.skip_ended(5)
    assert written((await shown(Partials(waited), 9))[0]) == ["[quick]"]


async def test_without_a_hub_only_the_log_is_waited_for() -> None:
    partials = Partials(None)
    partials.logged(Event(id="e1"))
    assert await shown(partials, 0, seconds=0.01) == ([], False)
    partials.close()


async def test_failing_to_look_at_the_log_is_told() -> None:
    async def news() -> None:
        raise ConnectionError("Temporal is away")

    partials = Partials(TokenHub().subscribe(SESSION))
    async with aclosing(partials.until(news(), 0)) as events:
        with pytest.raises(ConnectionError, match="Temporal is away"):
            await anext(events)
