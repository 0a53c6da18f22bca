"""A worker's copies of journals: whatever is packed or dropped, each call sees the log that it was scheduled with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.client import Client

from perdure.activities import session
from perdure.activities.session import JournalCache
from perdure.events import USER, Event, user_content
from perdure.journal import Entry, EventLogged, SessionCreated
from perdure.messages import JournalSlice
from perdure.projection import Projection

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
            assert texts(found) == texts(Projection.fold(whole[: known[name]]))
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
