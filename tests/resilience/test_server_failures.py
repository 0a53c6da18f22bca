"""The server dies and comes back, or the way to it is cut: nothing lost, nothing doubled, no manual step."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.agents import App, ToolContext
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.journal.events import Event
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.worker import run_workers
from tests.resilience.proxy import Proxy
from tests.workflows.support import User, agent, calls, check_log, eventually, make_app, short, text

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

_ROUNDS = 6
_PATIENCE = 100.0
_REPORTED = 2.0
"""Seconds after which the server has surely heard that a tool has ended."""


@dataclass
class Run:
    """When a run of a tool started and ended, by the monotonic clock."""

    started: float
    ended: float = math.inf


class Work:
    """A tool that takes a moment, and the ledger of its runs by idempotency key."""

    def __init__(self) -> None:
        self.runs: dict[str, list[Run]] = {}

    async def run(self, tool_context: ToolContext) -> str:
        """Work."""
        run = Run(time.monotonic())
        self.runs.setdefault(tool_context.idempotency_key, []).append(run)
        await asyncio.sleep(0.2)
        run.ended = time.monotonic()
        return "done"

    @property
    def sessions(self) -> int:
        """Sessions whose first tool has started."""
        return len({key.partition("/")[0] for key in self.runs})

    def app(self, name: str) -> App:
        script = [*([calls("run")] * _ROUNDS), text("finished")]
        return make_app(name, agent("clerk", script, [self.run]))

    def check(self, sessions: int, away: tuple[float, float]) -> None:
        """Check that each call ran once, but for those whose end the server may never have heard of.

        These are the calls at work when it went away, those that had ended just before, and those that the worker had
        been given already and began while it was away.
        """
        assert len(self.runs) == _ROUNDS * sessions
        gone, back = away
        for key, (first, *again) in self.runs.items():
            unheard = first.started < back and first.ended > gone - _REPORTED
            assert len(again) <= unheard, f"{key} ran {1 + len(again)} times; away {away}: {first}, {again}"


async def follow(user: User) -> list[Event]:
    """Send a message, and follow its invocation to the end without any help."""
    await user.create()
    async for _ in user.runner.run_async(**user.who, new_message="go"):
        pass
    return [event async for event in user.runner.events(**user.who)]


@asynccontextmanager
async def at_work(client: Client, app: App, sessions: int) -> AsyncGenerator[Sequence[asyncio.Task[list[Event]]]]:
    """Serve an app and follow sessions of it; whatever becomes of them, nothing of it outlives the block."""
    stop = asyncio.Event()
    settings = WorkerConfig(graceful_shutdown_timeout=timedelta(0))
    worker = asyncio.create_task(run_workers(client, [app], settings, stop=stop))
    users = [User(client, app.name, session_id=f"s{number}") for number in range(sessions)]
    running = [asyncio.create_task(follow(user)) for user in users]
    try:
        yield running
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        stop.set()
        await asyncio.wait_for(worker, _PATIENCE)


async def check_logs(running: Sequence[asyncio.Task[list[Event]]]) -> None:
    """Check that every session ends with the whole of its log."""
    async with asyncio.timeout(_PATIENCE):
        logs = await asyncio.gather(*running)
    for events in logs:
        check_log(events)
        lines = [line for event in events for line in short(event)]
        assert lines == ["user: go", *(["clerk calls run", "clerk got run"] * _ROUNDS), "clerk: finished"]


async def test_a_server_that_is_killed_goes_on_from_its_file(tmp_path: Path, app_name: str) -> None:
    work, data_file = Work(), tmp_path / "temporal.db"
    async with AsyncExitStack() as servers:
        first = await servers.enter_async_context(DevServer(DevServerConfig(headless=True, data_file=data_file)))
        client = await connect(ConnectionConfig(address=first.address, namespace="default", tls=False))
        async with at_work(client, work.app(app_name), 50) as running:
            await eventually(lambda: work.sessions == 50, _PATIENCE)
            gone = time.monotonic()
            await first.kill()
            port = int(first.address.rpartition(":")[2])
            again = DevServer(DevServerConfig(headless=True, data_file=data_file, port=port))
            await servers.enter_async_context(again)
            back = time.monotonic()
            await check_logs(running)
            work.check(50, (gone, back))


async def test_a_connection_that_is_away_for_20_seconds(temporal_server: str, app_name: str) -> None:
    work = Work()
    async with Proxy(temporal_server) as proxy:
        client = await connect(ConnectionConfig(address=proxy.address, namespace="default", tls=False))
        async with at_work(client, work.app(app_name), 20) as running:
            await eventually(lambda: work.sessions == 20, _PATIENCE)
            gone = time.monotonic()
            proxy.cut()
            await asyncio.sleep(20)
            assert proxy.refused > 0
            for task in running:
                # None has given up; some may have been over just before.
                assert not task.done() or task.exception() is None
            back = time.monotonic()
            proxy.mend()
            await check_logs(running)
            work.check(20, (gone, back))
