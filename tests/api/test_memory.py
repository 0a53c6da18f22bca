"""The route that gives a session to its user's memory: as ADK's server has it, encrypted where histories are."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.artifacts import FileArtifactService
from perdure.artifacts.memories import Memories
from perdure.artifacts.sealing import SealedArtifacts
from tests.api.support import Obedient, served
from tests.workflows.support import agent, make_app, serving, text

pytestmark = pytest.mark.server


async def test_a_session_is_given_to_its_users_memory(client: Client, app_name: str, tmp_path: Path) -> None:
    app = make_app(app_name, agent("clerk", [text("Hello.")], []), resumable=False)
    kept = FileArtifactService(tmp_path)
    async with serving(client, app, artifacts=kept) as user, served(client, app, Obedient(), artifacts=kept) as api:
        await user.create()
        await user.run("I love green tea")
        path = f"/apps/{app_name}/users/u/memory"
        for _ in range(2):
            answer = await api.http.patch(path, json={"sessionId": "s"})
            assert answer.status_code == 200, answer.text
        missing = await api.http.patch(path, json={"sessionId": "another"})
        assert missing.status_code == 404
        assert (await api.http.patch(path, json={})).status_code == 422
    found = await Memories(SealedArtifacts(kept, None)).of(app_name, "u")
    texts = [event["content"]["parts"][0]["text"] for event in found["s"]]
    assert texts == ["I love green tea", "Hello."]


async def test_a_server_that_has_no_place_for_it_says_so(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("Hello.")], []), resumable=False)
    async with served(client, app, Obedient()) as api:
        answer = await api.http.patch(f"/apps/{app_name}/users/u/memory", json={"sessionId": "s"})
    assert answer.status_code == 400
    assert "--artifacts" in answer.text
