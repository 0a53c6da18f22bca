"""A Temporal server that goes away is told once, without the core's lines, and nobody waits for it for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from perdure.client import Runner
from perdure.config import ConnectionConfig
from perdure.serving.dev_server import DevServer, DevServerConfig
from tests.cli.test_main import Process, free_port
from tests.serving.test_health import SLOW_AGENT
from tests.workflows.support import eventually

pytestmark = [pytest.mark.server, pytest.mark.process]

GONE = "Temporal does not answer at "
ENDED = "Temporal has not answered at "
WHO = {"user_id": "user", "session_id": "s"}


class Place:
    """A server that is this test's own, an agent, and a folder for both."""

    def __init__(self, folder: Path, app: str) -> None:
        self.folder, self.app = folder, app
        self.processes: list[Process] = []
        self.file = f"{app}.py"
        (folder / self.file).write_text(SLOW_AGENT.replace("NAME", app))
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.server = DevServer(DevServerConfig(port=port, headless=True, data_file=folder / "temporal.db"))

    async def start(self, *command: str) -> Process:
        process = await Process.start(*command, "--address", self.address, cwd=self.folder)
        self.processes.append(process)
        return process


@pytest.fixture
async def place(tmp_path: Path, app_name: str) -> AsyncGenerator[Place]:
    place = Place(tmp_path, app_name)
    await place.server.__aenter__()
    yield place
    for process in place.processes:
        if process.is_running:
            await process.end(signal.SIGKILL)
    await place.server.stop()


@pytest.mark.timeout(180)
async def test_workers_and_commands_say_so_once_and_end_and_the_api_waits(place: Place) -> None:
    worker = await place.start("worker", place.file, "--grace", "3")
    await worker.read_until("serving")
    api = await place.start("api", place.file, "--port", "0")
    await api.read_until("inbox at")
    run = await place.start("run", place.app, "go", "--session", "s")
    await eventually((place.folder / "waiting").exists)
    await run.read_until("wait_here")
    await place.server.stop()
    gone = time.monotonic()
    said = {name: await process.read_until(ENDED) for name, process in (("worker", worker), ("run", run))}
    assert [await worker.ended(), await run.ended()] == [69, 69]
    assert time.monotonic() - gone < 50, "on a busy machine"
    told_by_api = await api.read_until(GONE)
    for name, output in (*said.items(), ("api", told_by_api)):
        assert output.count(GONE) == 1, (name, output)
        assert not any(word in output for word in ("gRPC", "Status {", "no worker", "heartbeat")), (name, output)
    assert api.is_running
    # When the server is back the API says so, and the session goes on with the next worker.
    await place.server.__aenter__()
    await api.read_until("Temporal answers again at ")
    (place.folder / "go").touch()
    worker = await place.start("worker", place.file)
    runner = await Runner.connect(place.app, ConnectionConfig(address=place.address))

    async def finished() -> bool:
        view = await runner.get_session(**WHO)
        return [one.status for one in view.invocations] == ["finished"]

    await eventually(finished)


@pytest.mark.timeout(120)
async def test_a_server_that_is_back_soon_ends_nothing(place: Place) -> None:
    worker = await place.start("worker", place.file)
    await worker.read_until("serving")
    run = await place.start("run", place.app, "go", "--session", "s")
    await eventually((place.folder / "waiting").exists)
    await place.server.stop()
    await worker.read_until(GONE)
    await place.server.__aenter__()
    await worker.read_until("Temporal answers again at ")
    (place.folder / "go").touch()
    await run.read_until("Done.")
    assert await run.ended() == 0
    assert worker.is_running
