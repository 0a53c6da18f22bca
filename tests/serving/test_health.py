"""Liveness, readiness and the graceful end of workers and the API, as processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.client import Client

from perdure.cli.main import run_command
from perdure.config import WorkerConfig
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.health import HealthServer, Pulse
from perdure.worker import run_workers
from tests.api.support import Obedient, obedient_app, served
from tests.cli.test_main import AGENT_FILE, Process, free_port
from tests.workflows.support import Gate, User, agent, calls, eventually, make_app, text

SLOW_AGENT = """
import asyncio, pathlib
from perdure.agents import App, LlmAgent, ResumabilityConfig
from perdure.models.scripted import ScriptedModel

async def wait_here() -> str:
    '''Wait until a file is there.'''
    here = pathlib.Path(__file__).parent
    (here / "waiting").touch()
    while not (here / "go").exists():
        await asyncio.sleep(0.05)
    return "waited"

clerk = LlmAgent(
    name="clerk", model=ScriptedModel([{"calls": [{"name": "wait_here"}]}, {"text": "Done."}]), tools=[wait_here]
)
app = App(name="NAME", root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
"""


async def asked(url: str, path: str, method: str = "GET") -> tuple[int, Any]:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        answer = await http.request(method, f"{url}{path}")
        return answer.status_code, answer.json() if answer.content else None


async def scraped(address: str) -> str:
    async with httpx2.AsyncClient(trust_env=False) as http:
        return (await http.get(f"http://{address}/metrics")).text


async def becomes(url: str, path: str, status: int) -> None:
    """Wait until a path is answered with a status."""

    async def look() -> bool:
        return (await asked(url, path))[0] == status

    # A client whose server was away tries again after a while.
    await eventually(look, patience=90)


async def test_the_endpoint_says_why_a_process_is_not_ready() -> None:
    reasons: Sequence[str | None] = ["the worker starts", None]
    left = list(reasons)

    async def why_not() -> str | None:
        return left.pop(0)

    async with HealthServer("127.0.0.1", 0, why_not) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert await asked(url, "/livez") == (200, {"status": "ok"})
        assert await asked(url, "/readyz") == (503, {"detail": "the worker starts"})
        assert await asked(url, "/readyz?verbose", "HEAD") == (200, None)
        assert (await asked(url, "/metrics"))[0] == 404
        assert (await asked(url, "/livez", "POST"))[0] == 405
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"x" * 20_000)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.server
async def test_readiness_falls_with_temporal_and_comes_back_while_liveness_stays(app_name: str) -> None:
    port = free_port()
    config = DevServerConfig(headless=True, port=port)
    model = Obedient()
    async with DevServer(config):
        client = await Client.connect(f"127.0.0.1:{port}")
        assert await Pulse(client).beats()
    async with served(client, obedient_app(app_name, model), model) as api:
        status, said = await asked(api.url, "/readyz")
        assert (status, said["detail"]) == (503, "Temporal does not answer")
        assert await asked(api.url, "/livez") == (200, {"status": "ok"})
        assert await asked(api.url, "/health") == (200, {"status": "ok"})
        async with DevServer(config):
            await becomes(api.url, "/readyz", 200)


@pytest.mark.server
@pytest.mark.process
async def test_a_worker_that_is_to_end_is_not_ready_and_lets_a_running_tool_finish(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    (tmp_path / f"{app_name}.py").write_text(SLOW_AGENT.replace("NAME", app_name))
    port, metrics = free_port(), f"127.0.0.1:{free_port()}"
    url = f"http://127.0.0.1:{port}"
    options = ("--health", f"127.0.0.1:{port}", "--grace", "30", "--metrics", metrics, "--address", temporal_server)
    worker = await Process.start("worker", f"{app_name}.py", *options, cwd=tmp_path)
    await worker.read_until("serving")
    await becomes(url, "/readyz", 200)
    user = User(client, app_name)
    await user.create()
    await user.send("go")
    await eventually((tmp_path / "waiting").exists)
    worker.send(signal.SIGTERM)
    await becomes(url, "/readyz", 503)
    assert await asked(url, "/readyz") == (503, {"detail": "the worker ends"})
    assert await asked(url, "/livez") == (200, {"status": "ok"})
    assert f'perdure_invocations_total{{app="{app_name}"' in await scraped(metrics)
    (tmp_path / "go").touch()
    assert await worker.ended() == 0
    history = await user.workflow.fetch_history()
    completed = [event for event in history.events if event.HasField("activity_task_completed_event_attributes")]
    scheduled = [event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]
    # The plan, the model and the tool: its one attempt was not thrown away.
    assert (len(scheduled), len(completed)) == (3, 3)


@pytest.mark.server
async def test_the_apps_of_a_worker_end_at_the_same_time(client: Client, app_name: str) -> None:
    """Not one after the other, each with a grace period, while the last goes on taking work."""
    gates = Gate(), Gate()
    apps = [
        make_app(f"{app_name}_{number}", agent("clerk", [calls("wait"), text("x")], [gate.tool("wait")]))
        for number, gate in enumerate(gates)
    ]
    stop, started = asyncio.Event(), asyncio.Event()
    config = WorkerConfig(graceful_shutdown_timeout=timedelta(seconds=5))
    running = asyncio.create_task(run_workers(client, apps, config, stop=stop, started=started))
    await started.wait()
    for app, gate in zip(apps, gates, strict=True):
        user = User(client, app.name)
        await user.create()
        await user.send("go")
        await gate.reached()
    stop.set()
    await eventually(lambda: any(gate.cancelled for gate in gates))
    first = asyncio.get_running_loop().time()
    await running
    assert asyncio.get_running_loop().time() - first < 4
    assert [gate.cancelled for gate in gates] == [1, 1]


@pytest.mark.server
@pytest.mark.process
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_a_second_signal_ends_a_worker_at_once(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path, second: signal.Signals
) -> None:
    (tmp_path / f"{app_name}.py").write_text(SLOW_AGENT.replace("NAME", app_name))
    port = free_port()
    options = ("--health", f"127.0.0.1:{port}", "--grace", "600", "--address", temporal_server)
    worker = await Process.start("worker", f"{app_name}.py", *options, cwd=tmp_path)
    await worker.read_until("serving")
    user = User(client, app_name)
    await user.create()
    await user.send("go")
    await eventually((tmp_path / "waiting").exists)
    worker.send(signal.SIGTERM)
    await becomes(f"http://127.0.0.1:{port}", "/readyz", 503)
    said = await worker.read_until("Ctrl-C again ends at once")
    assert "perdure: ending; waits up to 600 s for wait_here of clerk; Ctrl-C again ends at once" in said
    worker.send(second)
    await worker.read_until("perdure: ended at once; what ran is run again, by its retries")
    assert await worker.ended() == -second


@pytest.mark.server
@pytest.mark.process
async def test_the_api_takes_requests_for_as_long_as_it_drains(
    temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    metrics = f"127.0.0.1:{free_port()}"
    at = ("--port", "0", "--drain", "600", "--metrics", metrics, "--address", temporal_server)
    api = await Process.start("api", f"{app_name}.py", *at, cwd=tmp_path)
    url = (await api.read_until("HTTP API")).partition("HTTP API at ")[2].partition(",")[0]
    assert await asked(url, "/readyz") == (200, {"status": "ready"})
    api.send(signal.SIGTERM)
    await becomes(url, "/readyz", 503)
    assert await asked(url, "/list-apps") == (200, [app_name])
    assert 'perdure_http_requests_total{method="GET",route="/list-apps",status="200"} 1' in await scraped(metrics)
    assert await api.end(signal.SIGTERM) == -signal.SIGTERM


@pytest.mark.server
@pytest.mark.process
async def test_dev_ends_with_its_temporal_server(app_name: str, tmp_path: Path) -> None:
    """Without it there is nothing to serve; what was running goes on when it is started again."""
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    ports = ("--temporal-port", str(free_port()), "--ui-port", str(free_port()), "--port", "0")
    dev = await Process.start("dev", f"{app_name}.py", *ports, cwd=tmp_path)
    await dev.read_until("Ctrl-C")
    server = await child_of(dev, "start-dev")
    server_ended = asyncio.create_task(dev.read_until("has ended (exit code"))
    os.kill(server, signal.SIGKILL)
    assert "start it again" in await server_ended
    assert await dev.ended() == 69


async def child_of(process: Process, word: str) -> int:
    """Return the id of a process's child whose command line holds a word."""
    listed = await asyncio.create_subprocess_exec(
        *("ps", "-o", "pid=,args=", "--ppid", str(process.pid)), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await listed.communicate()
    [found] = [line.split()[0] for line in out.decode().splitlines() if word in line]
    return int(found)


@pytest.mark.parametrize("address", ["nowhere", "localhost:http", "localhost:70000"])
def test_a_health_address_that_is_none_is_wrong_usage(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["worker", "target", "--health", address]) == 64
    assert "HOST:PORT" in capsys.readouterr().err
