"""What a step carries of the journal: packed, with what entries have in common, where that saves a quarter."""

from __future__ import annotations

import asyncio
import random
import string
from contextlib import suppress

import pytest
from temporalio.exceptions import ActivityError

from perdure.errors import EffectFailed
from perdure.journal.entries import EventLogged
from perdure.journal.events import Event, user_content
from perdure.journal.fold import fold_journal
from perdure.workflows.run.slices import Carrier

NOISE = "".join(random.Random(1).choices(string.ascii_letters + string.digits + "-_", k=5000))


@pytest.mark.parametrize(
    ("text", "packed"), [("a few words", True), ("many words " * 300, True), (NOISE, False), (NOISE * 60, True)]
)
def test_a_slice_is_packed_where_that_saves_a_quarter(text: str, packed: bool) -> None:
    entry = EventLogged(event=Event(id="1", author="a", invocation_id="e-1", content=user_content(text)))
    part = Carrier(0).slice(fold_journal((entry,)))
    assert (part.packed is not None) == packed
    assert part.unpacked() == (entry,)
    assert part.length == 1


def test_a_page_is_on_its_way_from_the_moment_it_is_begun() -> None:
    """Not only once its activity waits for room: the run may hand over in between."""
    entries = tuple(EventLogged(event=Event(id=str(n), author="a", invocation_id="e-1")) for n in range(3))
    journal, carrier = fold_journal(entries), Carrier(0)
    assert carrier.take(journal) == [(0, 3)]
    carrier.begin((0, 1))
    carrier.leave(1, 3)
    assert carrier.waits((0, 1))
    assert carrier.take(journal, under_way=True) == [(1, 3), (0, 1)]
    # Who took it writes it down, though its activity is given up.
    carrier.end((0, 1))
    assert carrier.take(journal, under_way=True) == []


@pytest.mark.parametrize("scheduled", [True, False])
def test_a_page_is_taken_back_unless_its_activity_was_scheduled(scheduled: bool) -> None:
    journal, carrier = fold_journal((EventLogged(event=Event(id="1", author="a", invocation_id="e-1")),)), Carrier(0)
    carrier.take(journal)
    witness = carrier.begin((0, 1))
    if scheduled:
        witness.starting()
    carrier.end((0, 1))
    assert carrier.take(journal, under_way=True) == ([] if scheduled else [(0, 1)])


def test_what_was_too_large_for_a_slice_is_written_down_though_the_next_one_fits() -> None:
    noise = "".join(random.Random(2).choices(string.ascii_letters + string.digits + "-_", k=2_000_000))
    large = EventLogged(event=Event(id="1", author="a", invocation_id="e-1", content=user_content(noise)))
    small = EventLogged(event=Event(id="2", author="a", invocation_id="e-1"))
    carrier = Carrier(0)
    assert not carrier.slice(fold_journal((large,))).unpacked()
    journal = fold_journal((large, small))
    assert carrier.slice(journal).unpacked() == (small,)
    assert carrier.take(journal) == [(0, 1)]


def ended(scheduled: int) -> ActivityError:
    return ActivityError(
        "cancelled",
        scheduled_event_id=scheduled,
        started_event_id=0,
        identity="",
        activity_type="a",
        activity_id="1",
        retry_state=None,
    )


def cancelled(cause: BaseException | None) -> asyncio.CancelledError:
    error = asyncio.CancelledError()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (None, False),
        (cancelled(None), True),
        (cancelled(ended(0)), True),
        (cancelled(ended(7)), False),
        (ended(0), True),
        (ended(7), False),
        (EffectFailed("a", "model", "it failed"), False),
    ],
    ids=str,
)
def test_what_never_came_into_the_history_is_taken_back(error: BaseException | None, left: bool) -> None:
    """Though its activity was scheduled: what is cancelled in the same workflow task, the server never hears of."""
    journal = fold_journal((EventLogged(event=Event(id="1", author="a", invocation_id="e-1")),))
    carrier, told = Carrier(0), list[bool]()
    carrier.left = lambda: told.append(carrier.leaves)
    with (
        suppress(asyncio.CancelledError, ActivityError, EffectFailed),
        carrier.under_way(carrier.slice(journal)) as witness,
    ):
        witness.starting()
        if error is not None:
            raise error
    assert (carrier.leaves, True in told) == (left, left)
    assert carrier.take(journal) == ([(0, 1)] if left else [])
