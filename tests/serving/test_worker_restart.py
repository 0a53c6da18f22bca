"""A worker in whose core a session is caught starts anew, and the session goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from perdure.serving.worker_restart import Restart
from perdure.temporal.core_log import core_logging
from tests.cli.test_main import Process
from tests.workflows.support import User, eventually

LINE = "Extra buffered run should not have produced an activation"

AGENT = """
import logging, os, pathlib, time
from perdure.agents import App, LlmAgent, ResumabilityConfig
from perdure.models.scripted import ScriptedModel

def lose() -> str:
    '''Say once what Temporal's core says, and hold the worker up.'''
    lost = pathlib.Path(__file__).parent / "lost"
    if not lost.exists():
        lost.write_text(str(os.getpid()))
        logging.getLogger("temporalio.core").error("LINE")
        time.sleep(600)
    return str(os.getpid())

clerk = LlmAgent(name="clerk", model=ScriptedModel([{"calls": [{"name": "lose"}]}, {"text": "Done."}]), tools=[lose])
app = App(name="NAME", root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
"""


@pytest.mark.server
@pytest.mark.process
async def test_a_worker_that_lost_a_step_starts_anew(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT.replace("NAME", app_name).replace("LINE", LINE))
    worker = await Process.start("worker", f"{app_name}.py", "--grace", "0", "--address", temporal_server, cwd=tmp_path)
    await worker.read_until("serving")
    user = User(client, app_name)
    await user.create()
    invocation = await user.send("go")
    said = await worker.read_until("starts anew")
    # Another thread writes the core's own line, before or after that one.
    assert LINE in said + await worker.read_until("serving")

    async def is_done() -> bool:
        return await user.status(invocation) == "finished"

    await eventually(is_done)
    # The same process, as whatever started it knows it.
    [result] = [response.response for event in await user.events() for response in event.get_function_responses()]
    assert result == {"result": str(worker.pid)} == {"result": (tmp_path / "lost").read_text()}
    assert await worker.end(signal.SIGTERM) == 0


@pytest.mark.server
@pytest.mark.process
async def test_a_worker_that_is_told_to_end_while_it_starts_anew_ends(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    source = AGENT.replace("def lose", "async def lose").replace("time.sleep(600)", "await asyncio.sleep(600)")
    source = source.replace("import logging", "import asyncio, logging")
    (tmp_path / f"{app_name}.py").write_text(source.replace("NAME", app_name).replace("LINE", LINE))
    worker = await Process.start("worker", f"{app_name}.py", "--grace", "3", "--address", temporal_server, cwd=tmp_path)
    await worker.read_until("serving")
    user = User(client, app_name)
    await user.create()
    await user.send("go")
    await worker.read_until("starts anew")
    # Whoever supervises it kills it if it went on.
    worker.send(signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await worker.ended() == 0


async def test_a_process_that_is_to_end_does_not_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []

    def execute(path: str, arguments: list[str]) -> None:
        executed.append(path)

    monkeypatch.setattr(os, "execv", execute)
    for is_to_end in (True, False):
        stop, restart = asyncio.Event(), Restart()
        async with restart.watched(stop, 60):
            if is_to_end:
                stop.set()
            restart.ask()
            await asyncio.sleep(0.1)
            assert stop.is_set()
        assert bool(executed) is not is_to_end


def test_only_that_line_is_taken_for_a_lost_step(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[str] = []
    Runtime(telemetry=TelemetryConfig(logging=core_logging(lambda: lost.append("earlier"))))
    Runtime(telemetry=TelemetryConfig(logging=core_logging(lambda: lost.append("now"))))
    core = logging.getLogger("temporalio.core")
    core.warning("Query not found when attempting to respond to it")
    assert lost == []
    core.error("%s {'run_id': 'x'}", LINE)
    assert lost == ["now"]
    # Every line is told all the same.
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
