"""Several clients that replace one session at the same time: one log stands, and every other is kept."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.client import Runner
from perdure.errors import SessionExists, SessionNotFound, SessionUnreadable
from perdure.journal import entries as journal
from perdure.journal import packing
from perdure.journal.events import USER, Event, user_content
from perdure.messages.keys import SessionKey
from perdure.messages.session import SessionInput
from perdure.sessions import lifecycle
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.transfers import ResumedSession
from perdure.trajectories.triggered_log import read_triggered_log
from tests.workflows.support import User, agent, calls, long_running, make_app, serving, text

pytestmark = pytest.mark.server

SMALL = 3_000
"""What a payload is said to take here, so that a journal is sent in parts."""


def log_of(words: str, *, length: int = 1) -> list[Event]:
    """Return a log that is told by its first words."""
    events: list[Event] = []
    for number in range(length):
        events.append(Event(author=USER, content=user_content(f"{words} {number}")))
        answer = types.Content(role="model", parts=[types.Part(text="".join(f"{words}{n}" for n in range(80)))])
        events.append(Event(author="clerk", content=answer))
    return [*events, Event(author=USER, content=user_content(f"{words} last"))]


async def standing(user: User) -> dict[str, str]:
    """Return the first words of each log, by session id: of the session and of those that were put aside for it."""
    found: dict[str, str] = {}
    # Asked by their names: a listing lags behind.
    for session in ["s", *(f"s~replaced-{number}" for number in range(1, 10))]:
        with contextlib.suppress(SessionNotFound):
            events = await user.other(session_id=session).events()
            found[session] = (events[0].text or "").partition(" ")[0]
    return found


@pytest.mark.parametrize("small", [False, True], ids=["one part", "many parts"])
@pytest.mark.parametrize("clients", [2, 4])
async def test_clients_that_replace_at_once_leave_one_log_and_keep_the_others(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, clients: int, small: bool
) -> None:
    """Who is told that its log stands has it in its place or kept; who is told that it does not can send it again."""
    if small:
        monkeypatch.setattr(packing, "MAX_PAYLOAD_BYTES", SMALL)
        monkeypatch.setattr(packing, "MAX_PART_BYTES", 4 * SMALL)
    script = [calls("pick"), *[text("hello")] * 20]
    async with serving(client, make_app(app_name, agent("clerk", script, [long_running("pick")]))) as user:
        await user.create()
        waiting = await user.run("old one")
        names = [f"new{number}" for number in range(clients)]
        done = await asyncio.gather(
            *(
                Runner(app_name, client).resume_from(log_of(name, length=10), **user.who, replace=True)
                for name in names
            ),
            return_exceptions=True,
        )
        told = {name: result for name, result in zip(names, done, strict=True)}
        assert all(isinstance(r, (ResumedSession, SessionExists, SessionUnreadable)) for r in done), done
        put = {name for name, result in told.items() if isinstance(result, ResumedSession)}
        assert put
        assert (await user.run("more")).status == "finished"
        logs = await standing(user)
        # No log twice, none lost that anybody was told of, and the old one is kept once.
        assert len(logs) == len(set(logs.values())), logs
        assert {"old", *put} <= set(logs.values())
        assert logs["s"] in put
        (kept,) = [session for session, words in logs.items() if words == "old"]
        assert [call.id for call in (await user.other(session_id=kept).invocation(waiting.id)).pending] == [
            waiting.pending[0].id
        ]


async def test_a_log_that_comes_while_another_is_put_aside_is_kept_too(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the run that was ended is put aside; the one that has taken its place gets its turn."""
    ending = lifecycle.end_run

    async def end(handle: Any, reason: str) -> bool:
        ended = await ending(handle, reason)
        monkeypatch.undo()
        log = read_triggered_log(
            log_of("meanwhile"), allow_pending_calls=False, fresh=lambda: str(uuid.uuid4()), now=0.0
        )
        await Lifecycle(client).restore(SessionKey(app_name, "u", "s"), log.entries, again=True)
        return ended

    async with serving(client, make_app(app_name, agent("clerk", [text("hello")] * 3))) as user:
        await user.create()
        await user.run("old one")
        monkeypatch.setattr(lifecycle, "end_run", end)
        resumed = await user.runner.resume_from(log_of("new"), **user.who, replace=True)
        assert (await user.settled(resumed.invocation.id)).status == "finished"
        assert await standing(user) == {"s": "new", "s~replaced-1": "old", "s~replaced-2": "meanwhile"}


async def test_who_keeps_the_same_log_finds_it_kept(client: Client, app_name: str) -> None:
    """A client that died behind its copy, and one that comes after it, leave one copy."""
    async with serving(client, make_app(app_name, agent("clerk", [text("hello")] * 3))) as user:
        await user.create()
        await user.run("old one")
        lifecycle = Lifecycle(client)
        first = await lifecycle.set_aside(SessionKey(app_name, "u", "s"))
        assert await lifecycle.set_aside(SessionKey(app_name, "u", "s")) == first == "s~replaced-1"
        resumed = await user.runner.resume_from(log_of("new"), **user.who, replace=True)
        assert resumed.replaced == first
        assert await standing(user) == {"s": "new", "s~replaced-1": "old"}


@pytest.mark.parametrize("served", [True, False], ids=["served", "never served"])
async def test_a_log_that_never_arrived_whole_is_replaced_and_not_kept(
    client: Client, app_name: str, served: bool
) -> None:
    """Its client died, or is told that its log is not there."""
    app = make_app(app_name, agent("clerk", [text("hello")] * 3))
    lifecycle = Lifecycle(client)
    half = SessionInput(journal=packing.pack([journal.SessionCreated()]), length=3)
    if not served:
        await lifecycle.start(SessionKey(app_name, "u", "s"), half, again=False)
        await User(client, app_name).workflow.terminate("a test")
    async with serving(client, app) as user:
        if served:
            await lifecycle.start(SessionKey(app_name, "u", "s"), half, again=False)
        resumed = await user.runner.resume_from(log_of("new"), **user.who, replace=True)
        assert resumed.replaced is None
        assert (await user.settled(resumed.invocation.id)).status == "finished"
        assert await standing(user) == {"s": "new"}
