"""Workers come and go: killed, told to end, blocked, or without the code; the run goes on and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import FunctionTool
from perdure.config import WorkerConfig
from perdure.journal.events import REQUEST_RECONCILE
from perdure.worker import create_workers
from tests.workflows.crashing_worker import HANG, KEPT, ONCE, SERVES
from tests.workflows.support import (
    Counted,
    Gate,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    named,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server


@asynccontextmanager
async def worker(address: str, app: str, folder: Path) -> AsyncGenerator[Process]:
    """Run a worker in a process of its own, which is killed at the end of the block at the latest."""
    arguments = ("-m", "tests.workflows.crashing_worker", address, app, str(folder))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("options", "tasks"), [({}, 4), ({"max_concurrent_workflow_tasks": 3}, 3)])
async def test_a_worker_has_few_workflow_tasks_at_a_time(
    client: Client, app_name: str, options: dict[str, Any], tasks: int
) -> None:
    """With Temporal's 100, all sessions of a restarted worker are replayed at once, and none of them in time."""
    app = make_app(app_name, agent("worker", [text("hello")]))
    (made,) = create_workers(client, [app], WorkerConfig(**options))
    config: Any = made.config()
    assert config["max_concurrent_workflow_tasks"] == tasks


@pytest.mark.parametrize("during", ["second", "model1"])
async def test_a_killed_workers_step_runs_elsewhere(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path, during: str
) -> None:
    """With the same key, and nothing that completed runs again."""
    (tmp_path / HANG).write_text(during)
    user = User(client, app_name)
    async with worker(temporal_server, app_name, tmp_path) as process:
        await user.create()
        invocation = await user.send("a")
        await eventually(lambda: len(lines(tmp_path, during)) == 1)
        process.kill()
        await process.wait()
    (tmp_path / HANG).unlink()
    async with worker(temporal_server, app_name, tmp_path):
        assert (await user.settled(invocation)).status == "finished"
        tools = ["first", "second"]
        expected = [line for tool in tools for line in (f"clerk calls {tool}", f"clerk got {tool}")]
        assert await user.log() == ["user: a", *expected, "clerk: done"]
    runs = {name: lines(tmp_path, name) for name in ("first", "second", "model0", "model1", "model2")}
    assert {name: len(found) for name, found in runs.items() if len(found) > 1} == {during: 2}
    assert len(set(runs[during])) == 1


async def test_a_session_does_not_wait_for_the_worker_that_was_killed(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    folder = tmp_path / KEPT
    folder.mkdir()
    (folder / HANG).write_text("second")
    user = User(client, app_name)
    async with worker(temporal_server, app_name, folder) as process:
        await user.create()
        await user.send("a")
        await eventually(lambda: len(lines(folder, "second")) == 1)
        # Up before the kill: ten seconds after it, the server itself knows that nobody is there.
        async with worker(temporal_server, app_name, folder):
            await eventually(lambda: len(lines(folder, SERVES)) == 2)
            process.kill()
            await process.wait()
            (folder / HANG).unlink()
            # The session is not asked, since a question would wait for the worker, too.
            await eventually(lambda: len(lines(folder, "model2")) == 1)


async def test_a_killed_workers_at_most_once_tool_does_not_run_elsewhere(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    """Whether it took effect is for a person to say."""
    folder = tmp_path / ONCE
    folder.mkdir()
    (folder / HANG).write_text("pay")
    user = User(client, app_name)
    async with worker(temporal_server, app_name, folder) as process:
        await user.create()
        invocation = await user.send("a")
        await eventually(lambda: len(lines(folder, "pay")) == 1)
        process.kill()
        await process.wait()
    (folder / HANG).unlink()
    async with worker(temporal_server, app_name, folder):
        (request,) = await user.open(REQUEST_RECONCILE)
        (call,) = (await user.settled(invocation)).pending
        assert call.args["reason"] == "timed out (heartbeat timeout)"
        assert call.args["idempotencyKey"] == lines(folder, "pay")[0]
        assert (await user.answered({request: {"happened": True, "result": "paid"}})).status == "finished"
        assert responses(await user.events(), "pay") == [{"result": "paid"}]
    assert len(lines(folder, "pay")) == 1


async def test_a_worker_that_is_told_to_end_hands_its_steps_over(client: Client, app_name: str) -> None:
    gate = Gate()
    app = make_app(app_name, agent("clerk", [calls("work"), text("done")], [gate.tool("work")]))
    async with serving(client, app) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
    gate.open()
    async with serving(client, app) as user:
        assert (await user.settled(invocation)).status == "finished"
        assert await user.log() == ["user: a", "clerk calls work", "clerk got work", "clerk: done"]
    assert (len(gate.keys), len(set(gate.keys))) == (2, 1)


async def test_an_invocation_waits_while_no_worker_runs(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [calls("pick"), text("picked")], [long_running("pick")]))
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
    answering = asyncio.create_task(user.answer({waiting.pending[0].id: {}}))
    await asyncio.sleep(0.5)
    async with serving(client, app) as user:
        await answering
        assert (await user.settled(waiting.id)).status == "finished"


_SLOW = pytest.param(30, 10, marks=pytest.mark.skipif(not os.environ.get("PERDURE_SLOW_TESTS"), reason="slow"))


@pytest.mark.parametrize(("blocks", "heartbeat"), [(6, 2), _SLOW])
async def test_an_async_tool_that_blocks_its_loop_runs_once(
    client: Client, app_name: str, blocks: int, heartbeat: int
) -> None:
    """Its heartbeats come from elsewhere, and so do the workflow's steps and other sessions' sync tools."""
    runs: list[float] = []

    async def block() -> str:
        runs.append(time.monotonic())
        time.sleep(blocks)  # noqa: ASYNC251 -- what a tool should not do, and some will
        return "slept"

    tool = FunctionTool(named(block, "block"), heartbeat_timeout=timedelta(seconds=heartbeat))
    clerk = agent("clerk", [calls("block"), text("done")], [tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        await eventually(lambda: len(runs) == 1)
        asked = time.monotonic()
        assert await user.status(invocation) == "running"
        assert time.monotonic() - asked < 3, "the worker's own loop is blocked"
        assert (await user.settled(invocation, patience=blocks + 15)).status == "finished"
        assert len(runs) == 1
        assert responses(await user.events(), "block") == [{"result": "slept"}]


async def test_a_short_heartbeat_timeout_is_no_false_alarm(client: Client, app_name: str) -> None:
    """The worker beats as often as the timeout asks for."""
    runs: list[float] = []

    async def work() -> str:
        runs.append(time.monotonic())
        await asyncio.sleep(3)
        return "worked"

    tool = FunctionTool(work, heartbeat_timeout=timedelta(seconds=1))
    async with serving(client, make_app(app_name, agent("clerk", [calls("work"), text("done")], [tool]))) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        assert len(runs) == 1


async def test_a_tool_that_a_worker_does_not_have_is_looked_for_again(client: Client, app_name: str) -> None:
    """In a rolling deployment old and new workers serve one session, whose plan is pinned."""
    work = Counted("work")
    pick = long_running("pick")
    script = [calls("pick"), calls("work"), text("done")]
    whole = make_app(app_name, agent("clerk", script, [pick, work.fn]))
    async with serving(client, whole) as user:
        await user.create()
        waiting = await user.run("a")
    async with serving(client, make_app(app_name, agent("clerk", script, [pick]))) as user:
        await user.answer({waiting.pending[0].id: {}})
        await eventually(lambda: _failed_once(user))
        assert await user.status(waiting.id) == "running"
    async with serving(client, whole) as user:
        assert (await user.settled(waiting.id)).status == "finished"
        assert (len(work.keys), (await user.log())[-2:]) == (1, ["clerk got work", "clerk: done"])


async def _failed_once(user: User) -> bool:
    history = await user.workflow.fetch_history()
    failures = [event.activity_task_failed_event_attributes.failure.message for event in history.events]
    return any("work" in failure for failure in failures)
