"""`perdure.to_a2a`: google.adk's, over Perdure's API and a worker in the same process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from perdure import App, DefinitionError, LlmAgent, ScriptedModel, to_a2a
from perdure.testing.script import say

pytest.importorskip("a2a.compat", reason="a2a-sdk 1 is not installed")


@pytest.fixture
def place(tmp_path: Path, temporal_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server)
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def caller(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as at,
    ):
        yield at


@pytest.mark.server
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("below", ["", "desk"])
async def test_an_app_is_served_at_the_root_and_nothing_else_is(app_name: str, below: str) -> None:
    began: list[Starlette] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        began.append(app)
        yield

    agent = LlmAgent(name=app_name, model=ScriptedModel([say("hello")]))
    app = to_a2a(agent if below else App(name=app_name, root_agent=agent), rpc_path=below, port=9, lifespan=lifespan)
    async with caller(app) as at:
        assert began == [app]
        path = f"/{below}" if below else ""
        card = (await at.get(f"{path}/.well-known/agent-card.json")).json()
        said = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
        for url in (f"{path}/", card["url"]):
            answer = await at.post(url, json=body, headers={"A2A-Version": "1.0"})
            task = answer.json()["result"]["task"]
            assert (task["status"]["state"], task["artifacts"][0]["parts"]) == (
                "TASK_STATE_COMPLETED",
                [{"text": "hello"}],
            )
        for other in ("/list-apps", "/inbox", f"/apps/{app_name}/users/user/sessions", "/health"):
            assert (await at.get(other)).status_code == 404


def test_it_takes_agents_and_apps_only() -> None:
    with pytest.raises(DefinitionError, match="not a str"):
        to_a2a("travel.agent:app")
