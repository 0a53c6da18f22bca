"""What a session says is found in a later one, also on another worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.tools import load_memory
from google.adk.tools import preload_memory as preload
from temporalio.client import Client

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
    artifacts = FileArtifactService(tmp_path)
    memories = Memories(SealedArtifacts(artifacts, None))
    earlier = EVENT | {"id": "e0", "timestamp": 1.0}
    await memories.add("shop", "ann", "s1", [EVENT, earlier, {"id": "e2", "timestamp": 3.0}])
    await memories.add("shop", "ann", "s1", [EVENT])
    await memories.add("shop", "ann", "s2", [EVENT])
    await memories.add("shop", "ann", "s0", [EVENT | {"timestamp": 9.0}])
    found = await memories.of("shop", "ann")
    assert [*found.items()] == [("s1", [earlier, EVENT]), ("s2", [EVENT]), ("s0", [EVENT | {"timestamp": 9.0}])]
    for app, user in (("shop", "bob"), ("store", "ann")):
        assert await memories.of(app, user) == {}
    assert await artifacts.list_artifact_keys(app_name="shop", user_id="ann") == []
