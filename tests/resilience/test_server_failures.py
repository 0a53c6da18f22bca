"""The server dies and comes back, or the way to it is cut: nothing lost, nothing doubled, no manual step."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.agents import App, ToolContext
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.devserver import DevServer, DevServerConfig
from perdure.events import Event
from perdure.worker import run_workers
from tests.resilience.proxy import Proxy
from tests.workflows.support import User, agent, calls, check_log, eventually, make_app, short, text

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

_ROUNDS = 6
_PATIENCE = 100.0


class Work:
    """A tool that takes a moment, and the ledger of its runs."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self._ended: dict[str, float] = {}

    async def run(self, tool_context: ToolContext) -> str:
        """Work."""
        key = tool_context.idempotency_key
        self.runs[key] += 1
        await asyncio.sleep(0.2)
        self._ended[key] = time.monotonic()
        return "done"

    @property
    def sessions(self) -> int:
        """Sessions whose first tool has started."""
        return len({key.partition("/")[0] for key in self.runs})

    def recent(self) -> set[str]:
        """Return the calls whose tool is at work, or ended less than two seconds ago."""
        since = time.monotonic() - 2
        return {key for key in self.runs if self._ended.get(key, since) >= since}

    def app(self, name: str) -> App:
        script = [*([calls("run")] * _ROUNDS), text("finished")]
        return make_app(name, agent("clerk", script, [self.run]))


async def follow(user: User) -> list[Event]:
    """Send a message, and follow its invocation to the end without any help."""
    await user.create()
    async for _ in user.runner.run_async(**user.who, new_message="go"):
        pass
    return [event async for event in user.runner.events(**user.who)]


def check(logs: list[list[Event]], work: Work, in_flight: set[str]) -> None:
    """Check that nothing is lost or doubled; a tool whose completion was not known yet may have run again."""
    for events in logs:
        check_log(events)
        lines = [line for event in events for line in short(event)]
        assert lines == ["user: go", *(["clerk calls run", "clerk got run"] * _ROUNDS), "clerk: finished"]
    assert len(work.runs) == _ROUNDS * len(logs)
    again = {key for key, count in work.runs.items() if count > 1}
    assert again <= in_flight
    assert all(work.runs[key] == 2 for key in again)


async def serve(client: Client, app: App, stop: asyncio.Event) -> None:
    await run_workers(client, [app], WorkerConfig(graceful_shutdown_timeout=timedelta(0)), stop=stop)


async def test_a_server_that_is_killed_goes_on_from_its_file(tmp_path: Path, app_name: str) -> None:
    work, stop = Work(), asyncio.Event()
    first = DevServer(DevServerConfig(headless=True, data_file=tmp_path / "temporal.db"))
    async with first:
        client = await connect(ConnectionConfig(address=first.address, namespace="default", tls=False))
        worker = asyncio.create_task(serve(client, work.app(app_name), stop))
        users = [User(client, app_name, session_id=f"s{number}") for number in range(50)]
        running = [asyncio.create_task(follow(user)) for user in users]
        await eventually(lambda: work.sessions == 50, _PATIENCE)
        # What ended a moment ago may not be reported yet, nor may what it led to.
        in_flight = set(work.recent())
        await first.kill()
        port = int(first.address.rpartition(":")[2])
        again = DevServerConfig(headless=True, data_file=tmp_path / "temporal.db", port=port)
        async with DevServer(again):
            async with asyncio.timeout(_PATIENCE):
                logs = await asyncio.gather(*running)
            check(logs, work, in_flight)
            stop.set()
            await worker


async def test_a_connection_that_is_away_for_20_seconds(temporal_server: str, app_name: str) -> None:
    work, stop = Work(), asyncio.Event()
    async with Proxy(temporal_server) as proxy:
        client = await connect(ConnectionConfig(address=proxy.address, namespace="default", tls=False))
        worker = asyncio.create_task(serve(client, work.app(app_name), stop))
        users = [User(client, app_name, session_id=f"s{number}") for number in range(20)]
        running = [asyncio.create_task(follow(user)) for user in users]
        await eventually(lambda: work.sessions == 20, _PATIENCE)
        in_flight = set(work.recent())
        proxy.cut()
        await asyncio.sleep(20)
        assert proxy.refused > 0
        for task in running:
            # None has given up; some may have been over just before.
            assert not task.done() or task.exception() is None
        proxy.mend()
        async with asyncio.timeout(_PATIENCE):
            logs = await asyncio.gather(*running)
        check(logs, work, in_flight)
        stop.set()
        await worker
