"""The development server starts tuned, keeps its data where asked, and never outlives whoever started it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import time
import urllib.request
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.config import ConnectionConfig, connect
from perdure.errors import ConnectionFailed
from perdure.serving.dev_server import DevServer, DevServerConfig, find_temporal


@workflow.defn(name="devserver:Echo")
class EchoWorkflow:
    @workflow.run
    async def run(self, text: str) -> str:
        return text


STEPS = 10


@activity.defn(name="devserver:step")
async def step() -> None: ...


@workflow.defn(name="devserver:Steps")
class StepsWorkflow:
    @workflow.run
    async def run(self) -> None:
        for _ in range(STEPS):
            await workflow.execute_activity(step, start_to_close_timeout=timedelta(seconds=10))


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


async def wait_until_gone(address: str) -> None:
    for _ in range(150):
        if not listens(address):
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"something still listens at {address} after 15 s")


def test_the_program_of_the_running_environment_is_found() -> None:
    assert find_temporal().is_file()


def test_without_the_program_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConnectionFailed, match=r"perdure\[dev-server\]"):
        find_temporal()


async def test_a_port_that_is_taken_is_refused_and_not_mistaken_for_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionFailed, match=rf"127\.0\.0\.1:{port}.*another port"):
            async with DevServer(DevServerConfig(port=port, headless=True)):
                pytest.fail("it started on a port that was taken")


@pytest.mark.server
async def test_data_in_a_file_outlives_the_server(tmp_path: Path) -> None:
    config = DevServerConfig(headless=True, data_file=tmp_path / "deep" / "temporal.db", log_file=tmp_path / "log")
    async with DevServer(config) as server:
        client = await connect(ConnectionConfig(address=server.address))
        async with Worker(
            client, task_queue="q", workflows=[EchoWorkflow], workflow_runner=UnsandboxedWorkflowRunner()
        ):
            assert await client.execute_workflow(EchoWorkflow.run, "kept", id="w", task_queue="q") == "kept"
        address = server.address
    assert not listens(address)
    async with DevServer(config) as server:
        client = await connect(ConnectionConfig(address=server.address))
        assert await client.get_workflow_handle("w", result_type=str).result() == "kept"
    assert (tmp_path / "log").read_text()


@pytest.mark.server
async def test_a_server_with_ui_and_a_namespace_of_its_own() -> None:
    async with DevServer(DevServerConfig(namespace="team")) as server:
        assert server.ui_url is not None
        page = await asyncio.to_thread(urllib.request.urlopen, server.ui_url)
        with page:
            assert page.status == 200
        client = await connect(ConnectionConfig(address=server.address, namespace="team"))
        assert [found async for found in client.list_workflows()] == []


@pytest.mark.server
async def test_activities_come_with_the_task_that_starts_them(client: Client) -> None:
    queue = f"devserver-{uuid.uuid4()}"
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue=queue, workflows=[StepsWorkflow], activities=[step], workflow_runner=runner):
        handle = await client.start_workflow(StepsWorkflow.run, id=queue, task_queue=queue)
        await handle.result()
    events = (await handle.fetch_history()).events
    started = [event for event in events if event.HasField("activity_task_started_event_attributes")]
    waits = [
        event.event_time.ToNanoseconds()
        - events[event.activity_task_started_event_attributes.scheduled_event_id - 1].event_time.ToNanoseconds()
        for event in started
    ]
    # By way of the task queue even the quickest takes two transactions.
    assert len(waits) == STEPS
    assert min(waits) < 300_000


@pytest.mark.server
@pytest.mark.parametrize("told", ["panic: Failed to start gRPC listener", "listen tcp: bind: address already in use"])
@pytest.mark.parametrize("losses", [1, 3])
async def test_a_server_whose_inner_port_was_taken_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int, told: str
) -> None:
    """It picks ports for its inner services and its HTTP API by itself, and ends if another program opens one first."""
    program = tmp_path / "temporal"
    program.write_text(
        f"""#!/bin/sh
        echo start >> {tmp_path}/starts
        if [ $(wc -l < {tmp_path}/starts) -gt {losses} ]; then exec {find_temporal()} "$@"; fi
        echo '{told}'
        exit 2
        """
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    if losses == 1:
        async with DevServer() as server:
            assert await Client.connect(server.address)
    else:
        with pytest.raises(ConnectionFailed, match="ended at once"):
            await DevServer().__aenter__()
    assert len((tmp_path / "starts").read_text().splitlines()) == min(losses + 1, 3)


@pytest.mark.server
async def test_a_server_lists_for_many_pages_at_once(client: Client) -> None:
    """As it comes, it refuses what is asked for more often than ten times a second."""
    begun = time.monotonic()
    await asyncio.gather(*(client.count_workflows("WorkflowId = 'none'") for _ in range(100)))
    assert time.monotonic() - begun < 5


@pytest.mark.server
async def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "temporal.db"
    broken.write_text("this is no database, and long enough to be refused as one")
    with pytest.raises(ConnectionFailed, match=r"(?s)ended at once.*not a database"):
        async with DevServer(DevServerConfig(headless=True, data_file=broken)):
            pytest.fail("it started on a broken file")


@pytest.mark.server
async def test_a_server_that_is_too_slow_is_given_up_and_ended() -> None:
    server = DevServer(DevServerConfig(headless=True, start_timeout=timedelta(seconds=0.01)))
    with pytest.raises(ConnectionFailed, match=r"within 0\.01 s"):
        await server.__aenter__()
    await wait_until_gone(server.address)


@pytest.mark.server
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, by which Linux ends the server")
async def test_a_server_does_not_outlive_a_parent_that_is_killed() -> None:
    code = (
        "import asyncio\n"
        "from perdure.serving.dev_server import DevServer, DevServerConfig\n"
        "async def main():\n"
        "    async with DevServer(DevServerConfig(headless=True)) as server:\n"
        "        print(server.address, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    address = (await parent.stdout.readline()).decode().strip()
    assert listens(address)
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    await wait_until_gone(address)
