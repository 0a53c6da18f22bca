"""AG-UI's own client, from npm, as a front end uses it: a turn with a tool that waits, over a restart of the worker."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.api.support import Obedient, obedient_app, served
from tests.workflows.support import serving

pytest.importorskip("ag_ui.core", reason="ag-ui-protocol is not installed")
pytestmark = [pytest.mark.server, pytest.mark.process]

Json = Any

_PACKAGE = Path(__file__).parent / "ag_ui_client"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, as its lock has it."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm") / "client"
    shutil.copytree(_PACKAGE, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    if made.returncode:
        pytest.skip(f"npm cannot install the client: {made.stderr[-300:]}")
    return folder


class Node:
    """A process that runs the client."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def does(self, deed: str, **parameters: Json) -> dict[str, Json]:
        """Do something; returns what the client knows afterwards."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"deed": deed, **parameters}).encode() + b"\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(60):
            line = await self._process.stdout.readline()
        found: dict[str, Json] = json.loads(line)
        return found


@asynccontextmanager
async def node(package: Path, *args: str) -> AsyncGenerator[Node]:
    process = await asyncio.create_subprocess_exec(
        "node",
        "client.mjs",
        *args,
        cwd=package,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=10_000_000,
    )
    try:
        yield Node(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def texts(known: dict[str, Json]) -> list[str]:
    return [message["content"] for message in known["messages"] if message.get("content")]


async def test_its_own_client_runs_a_turn_that_waits_over_a_restart(
    client: Client, app_name: str, package: Path
) -> None:
    model, thread = Obedient(), uuid.uuid4().hex
    app = obedient_app(app_name, model)
    async with served(client, app, model) as api, node(package, f"{api.url}/ag-ui/{api.app}", thread) as front:
        async with serving(client, app):
            known = await front.does("say", text="hello", id="m1")
            assert (known["error"], texts(known)) == (None, ["hello", "you said: hello"])
            known = await front.does("say", text="ask", id="m2")
            assert known["error"] is None
            [interrupt] = known["pendingInterrupts"]
            assert (interrupt["reason"], interrupt["message"]) == ("tool_call", "approve waits for an answer.")
        async with serving(client, app):
            again = await front.does("reload")
            assert (again["error"], again["messages"]) == (None, known["messages"])
            assert again["pendingInterrupts"] == [interrupt]
            known = await front.does("resume", payload={"ok": True})
            assert (known["error"], known["pendingInterrupts"]) == (None, [])
            assert known["results"] == ['{"ok": true}']
            assert texts(known) == [
                "hello",
                "you said: hello",
                "ask",
                '{"ok": true}',
                'answered: {"ok": true}',
            ]
            assert (await front.does("reload"))["messages"] == known["messages"]
