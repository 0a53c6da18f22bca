"""Clients that are generated from the OpenAPI document: made, checked by their compilers, and used for a whole turn."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.api.support import Api, api_and_worker

pytestmark = [pytest.mark.server, pytest.mark.process]

Json = Any

_PACKAGE = Path(__file__).parent / "typescript_client"


@pytest.fixture(scope="module")
async def api(client: Client) -> AsyncGenerator[Api]:
    async with api_and_worker(client) as api:
        yield api


@pytest.fixture
async def document(api: Api, tmp_path: Path) -> Path:
    """The document, in a file."""
    path = tmp_path / "openapi.json"
    path.write_text((await api.http.get("/openapi.json")).text)
    return path


async def made(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return await asyncio.to_thread(
        subprocess.run, command, cwd=cwd, env=env, capture_output=True, text=True, timeout=150
    )


def test_operations_have_names_that_read(document: Path) -> None:
    """Not of their paths: a generated client's functions get them."""
    paths: Json = json.loads(document.read_text())["paths"]
    names = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert {"list_apps", "run", "start_invocation", "answer_call", "follow_events", "export_session"} <= set(names)
    assert len(names) == len(set(names))
    assert [name for name in names if "__" in name or len(name) > 40] == []


@pytest.mark.timeout(200)
async def test_a_client_for_python(api: Api, document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yml").write_text(
        "content_type_overrides:\n  application/x-ndjson: application/octet-stream\npost_hooks: []\n"
    )
    command = ("openapi-python-client", "generate", "--path", str(document), "--meta", "none")
    done = await made(
        *command, "--output-path", "typed_client", "--config", "config.yml", "--fail-on-warning", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    typed = import_module("typed_client")
    models = import_module("typed_client.models")

    def call(name: str) -> Any:
        [module] = (tmp_path / "typed_client" / "api").rglob(f"{name}.py")
        dotted = ".".join(module.relative_to(tmp_path).with_suffix("").parts)
        return import_module(dotted).asyncio

    async with typed.Client(base_url=api.url) as client:
        listed = await call("list_apps")(client=client, detailed=True)
        assert [app.root_agent_name for app in listed.apps] == ["clerk"]
        at = {"app_name": api.app, "user_id": "ann", "client": client}
        session = await call("create_session")(**at, body=models.CreateSessionRequest(session_id="typed"))
        asks = models.Content(role="user", parts=[models.Part(text="ask")])
        request = models.RunAgentRequest(app_name=api.app, user_id="ann", session_id=session.id, new_message=asks)
        events = await call("run")(client=client, body=request)
        [waiting] = [one for event in events for one in event.long_running_tool_ids or ()]
        [open_call] = (await call("list_pending_of_session")(**at, session_id="typed")).calls
        assert (open_call.id, open_call.name) == (waiting, "approve")
        answer = models.AnswerBody(response={"ok": True})
        taken = await call("answer_call")(**at, session_id="typed", call_id=waiting, body=answer)
        assert taken.invocation.id == open_call.invocation_id
        exported = await call("export_session")(**at, session_id="typed")
        assert [json.loads(line) for line in exported.payload.read().splitlines()][1]["author"] == "user"


@pytest.mark.timeout(200)
async def test_a_client_for_typescript(api: Api, document: Path, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path / "typescript"
    shutil.copytree(_PACKAGE, folder)
    shutil.copy(document, folder)
    done = await made(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
    if done.returncode:
        pytest.skip(f"npm cannot install the client: {done.stderr[-300:]}")
    done = await made(npm, "run", "make", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    done = await made("node", "built/client.js", api.url, api.app, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tool"] == "approve"
