"""`perdure.adk.get_fast_api_app`: google.adk's, over Perdure's API and a worker in the same process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from perdure.adk import get_fast_api_app

pytestmark = pytest.mark.server

AGENT = """
from google.adk.agents import LlmAgent
from tests.adk.support import Script, say

root_agent = LlmAgent(name="clerk", model=Script(say("hello"), say("again")))
"""


@pytest.fixture
def agents(tmp_path: Path, app_name: str, temporal_server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent's folder, and one that cannot be imported."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server)
    monkeypatch.chdir(tmp_path)
    for name, code in {app_name: AGENT, f"broken_{app_name}": "import nothing_of_this_name\n"}.items():
        (tmp_path / "agents" / name).mkdir(parents=True)
        (tmp_path / "agents" / name / "agent.py").write_text(code)
        (tmp_path / "agents" / name / "__init__.py").write_text("from . import agent\n")
    return tmp_path / "agents"


@asynccontextmanager
async def caller(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as at,
    ):
        yield at


async def test_a_folder_is_served_beside_the_caller_s_own_routes(agents: Path, app_name: str) -> None:
    began: list[FastAPI] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        began.append(app)
        yield

    app = get_fast_api_app(agents_dir=str(agents), web=True, lifespan=lifespan, port=8000, use_local_storage=True)

    @app.get("/feedback")
    async def feedback() -> dict[str, bool]:
        return {"mine": True}

    async with caller(app) as at:
        assert began == [app]
        assert (await at.get("/feedback")).json() == {"mine": True}
        assert app_name in (await at.get("/list-apps")).json()
        session = f"/apps/{app_name}/users/u/sessions/s"
        assert (await at.post(session, json={})).status_code == 200
        body: dict[str, Any] = {"appName": app_name, "userId": "u", "sessionId": "s"}
        body["newMessage"] = {"role": "user", "parts": [{"text": "hi"}]}
        (event,) = (await at.post("/run", json=body)).json()
        assert event["content"]["parts"] == [{"text": "hello"}]
        assert len((await at.get(session)).json()["events"]) == 2
        assert "inbox" in (await at.get("/")).text.lower()


async def test_a_run_makes_its_session_where_that_was_asked_for(agents: Path, app_name: str) -> None:
    body: dict[str, Any] = {"appName": app_name, "userId": "u", "sessionId": "t"}
    body["newMessage"] = {"role": "user", "parts": [{"text": "hi"}]}
    async with caller(get_fast_api_app(agents_dir=agents, auto_create_session=True)) as at:
        assert (await at.post("/run", json=body)).status_code == 200


async def test_nobody_gets_in_by_another_host_or_without_a_key(agents: Path, tmp_path: Path) -> None:
    async with caller(get_fast_api_app(agents_dir=agents)) as at:
        assert (await at.get("/list-apps", headers={"host": "evil.example"})).status_code in (400, 403, 421)
    keys = tmp_path / "auth.toml"
    key = {"id": '"1f0c9a3e"', "subject": '"ops"', "created": "2026-01-01T00:00:00Z", "sha256": f'"{"0" * 64}"'}
    keys.write_text("\n".join(["[[keys]]", *(f"{name} = {value}" for name, value in key.items())]))
    async with caller(get_fast_api_app(agents_dir=agents, auth=keys)) as at:
        assert (await at.get("/list-apps")).status_code == 401


def test_what_it_cannot_do_it_says(agents: Path) -> None:
    with pytest.raises(ValueError, match="a2a, trigger_sources: not supported"):
        get_fast_api_app(agents_dir=agents, web=False, a2a=True, trigger_sources=["pubsub"])
    get_fast_api_app(agents_dir=agents, session_service_uri="sqlite:///sessions.db", a2a=False)
