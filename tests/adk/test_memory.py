"""What a session says is found in a later one, also on another worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.sessions.session import Session
from google.adk.tools import load_memory
from google.adk.tools import preload_memory as preload
from google.genai import types
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.adk.memory import KeptMemory
from perdure.artifacts import FileArtifactService
from perdure.artifacts.memories import Memories
from perdure.artifacts.sealing import SealedArtifacts
from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import serving


async def remember(callback_context: CallbackContext) -> None:
    context = callback_context._invocation_context  # pyright: ignore[reportPrivateUsage] -- as ADK's guide shows it
    assert context.memory_service is not None
    await context.memory_service.add_session_to_memory(context.session)


@pytest.mark.server
async def test_a_session_is_remembered_by_another_worker(client: Client, app_name: str, tmp_path: Path) -> None:
    artifacts = FileArtifactService(tmp_path)
    first = agent("butler", say("very well"), say("so be it"), after_agent_callback=remember)
    async with serving(client, make_app(app_name, first), artifacts=artifacts) as user:
        await user.create()
        await user.run("I love green tea")
        await user.run("And rain")
    second = agent("butler", call("load_memory", query="tea"), say("you love tea"), tools=[preload, load_memory])
    async with serving(client, make_app(app_name, second), artifacts=artifacts) as user:
        later = user.other(session_id="another")
        await later.create()
        assert (await later.run("What about tea?")).status == "finished"
    assert isinstance(second.model, Script)
    preloaded, looked_up = second.model.requests
    assert "I love green tea" in preloaded.model_dump_json()
    assert "I love green tea" in looked_up.contents[-1].model_dump_json()
    assert "And rain" not in looked_up.contents[-1].model_dump_json()


EVENT = {"id": "e1", "timestamp": 2.0, "author": "user", "content": {"role": "user", "parts": [{"text": "green tea"}]}}


async def test_events_are_kept_once_in_order_and_by_user(tmp_path: Path) -> None:
    """The order is that in which they were kept, as in ADK, whatever their times."""
    artifacts = FileArtifactService(tmp_path)
    memories = Memories(SealedArtifacts(artifacts, None))
    other, early = EVENT | {"id": "e0"}, EVENT | {"id": "e9", "timestamp": 1.0}
    await memories.add("shop", "ann", "s1", [EVENT, other, {"id": "e2", "timestamp": 3.0}])
    await memories.add("shop", "ann", "s1", [EVENT, early])
    await memories.add("shop", "ann", "s2", [EVENT])
    await memories.add("shop", "ann", "s0", [early])
    found = await memories.of("shop", "ann")
    assert [*found.items()] == [("s1", [EVENT, other, early]), ("s2", [EVENT]), ("s0", [early])]
    for app, user in (("shop", "bob"), ("store", "ann")):
        assert await memories.of(app, user) == {}
    assert await artifacts.list_artifact_keys(app_name="shop", user_id="ann") == []


def said(id: str, words: str) -> Event:
    return Event(id=id, author="user", content=types.Content(role="user", parts=[types.Part(text=words)]))


def session(id: str, *events: Event) -> Session:
    return Session(id=id, app_name="shop", user_id="ann", events=list(events))


Do = Callable[[BaseMemoryService], Awaitable[None]]

TEA, RAIN, MORE = said("tea", "green tea"), said("rain", "tea in the rain"), said("more", "more tea")

DOES: dict[str, list[Do]] = {
    "a session": [lambda it: it.add_session_to_memory(session("s1", TEA, RAIN))],
    "a session that has grown": [
        lambda it: it.add_session_to_memory(session("s1", TEA)),
        lambda it: it.add_session_to_memory(session("s1", TEA, RAIN)),
    ],
    "sessions, the later one first": [
        lambda it: it.add_session_to_memory(session("s2", MORE)),
        lambda it: it.add_session_to_memory(session("s1", TEA, RAIN)),
    ],
    "events": [
        lambda it: it.add_events_to_memory(app_name="shop", user_id="ann", session_id="s1", events=[RAIN]),
        lambda it: it.add_events_to_memory(app_name="shop", user_id="ann", session_id="s1", events=[RAIN, TEA]),
    ],
    "events of no session": [lambda it: it.add_events_to_memory(app_name="shop", user_id="ann", events=[RAIN, TEA])],
    "events of somebody else": [lambda it: it.add_events_to_memory(app_name="shop", user_id="bob", events=[TEA])],
    "a session behind some of its events": [
        lambda it: it.add_events_to_memory(app_name="shop", user_id="ann", session_id="s1", events=[TEA]),
        lambda it: it.add_session_to_memory(session("s1", TEA, RAIN)),
    ],
}
"""What is done with a memory."""

if MAJOR >= 2:

    def forget(id: str | None) -> Do:
        return lambda it: it.delete_memory(app_name="shop", user_id="ann", memory_id=id)

    DOES["an event is forgotten for good"] = [
        lambda it: it.add_session_to_memory(session("s1", TEA, RAIN)),
        lambda it: it.add_session_to_memory(session("s2", TEA, MORE)),
        forget("tea"),
        lambda it: it.add_session_to_memory(session("s1", TEA, RAIN)),
        lambda it: it.add_events_to_memory(app_name="shop", user_id="ann", events=[TEA]),
    ]
    DOES["nothing is forgotten that is not kept"] = [
        forget("tea"),
        forget(None),
        lambda it: it.add_session_to_memory(session("s1", TEA, RAIN)),
    ]


@pytest.mark.parametrize("does", DOES)
async def test_a_memory_tells_what_that_of_google_adk_tells(tmp_path: Path, does: str) -> None:
    """Its `InMemoryMemoryService`; and all that does so for another worker, which has seen what was there before."""
    artifacts = SealedArtifacts(FileArtifactService(tmp_path), None)
    known = InMemoryMemoryService()
    one, other = KeptMemory(Memories(artifacts)), KeptMemory(Memories(artifacts))
    for do in DOES[does]:
        await do(known)
        await do(one)
        for query in ("tea", "rain", "nothing"):
            told = [
                (await each.search_memory(app_name="shop", user_id="ann", query=query)).memories
                for each in (known, one, other)
            ]
            assert told[0] == told[1] == told[2]
