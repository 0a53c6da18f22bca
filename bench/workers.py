"""Several workers with more to do than they can: steps per second, and tasks that came too late for a session's worker.

    python -m bench.workers [--workers 3] [--sessions 150] [--rounds 10] [--sticky 1 2] [--repeat 1] [--json]

Sessions at once, one turn each of some rounds of a model call and a tool that take no time, on a few worker processes
that share the machine with the server. A task that waits longer than the sticky timeout for the worker that has its
session in memory goes to all of them, one of which may have to replay the session: `late_tasks` counts them. The sticky
timeouts take turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from bench.processes import cpu_seconds, print_report, process, ready, tell_ready
from perdure.agents import App, LlmAgent, ResumabilityConfig
from perdure.client import Runner
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.messages.keys import SessionKey
from perdure.models.scripted import ScriptedModel
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.event_loop import run_serving
from perdure.worker import run_workers

_RESULT_BYTES = 50


def look_up(query: str) -> str:
    """Look something up."""
    return query * _RESULT_BYTES


async def serve(address: str, name: str, rounds: str, sticky: str) -> None:
    """Be a worker."""
    calls: list[Any] = [{"calls": [{"name": "look_up", "args": {"query": "q"}}]} for _ in range(int(rounds))]
    agent = LlmAgent(name="worker", model=ScriptedModel([*calls, {"text": "done"}]), tools=[look_up])
    app = App(name=name, root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
    client = await connect(ConnectionConfig(address=address, namespace="default", tls=False))
    started = asyncio.Event()
    config = WorkerConfig(sticky_timeout=timedelta(seconds=float(sticky)))
    working = asyncio.create_task(run_workers(client, [app], config, started=started))
    await started.wait()
    tell_ready()
    await working


async def turn(runner: Runner, session: str) -> None:
    """Run a session's turn to its end."""
    async for _ in runner.run_async(user_id="u", session_id=session, new_message="go", live=False):
        pass


async def late_tasks(client: Client, app: str, session: str) -> int:
    """Return how many tasks of a session its worker did not take in time; no other timeout happens here."""
    events = client.get_workflow_handle(SessionKey(app, "u", session).workflow_id).fetch_history_events()
    return sum([event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT async for event in events])


async def measure(client: Client, address: str, options: argparse.Namespace, sticky: float) -> dict[str, float]:
    """Run all sessions at once, with workers of their own."""
    app = f"bench_workers_{uuid.uuid4().hex[:8]}"
    runner = Runner(app, client)
    async with AsyncExitStack() as stack:
        serving = ("bench.workers", "--serve", address, app, str(options.rounds), str(sticky))
        workers = [await stack.enter_async_context(process(*serving)) for _ in range(options.workers)]
        for worker in workers:
            await ready(worker)
        sessions = [str(uuid.uuid4()) for _ in range(options.sessions)]
        for session in sessions:
            await runner.create_session(user_id="u", session_id=session)
        start, used = time.monotonic(), sum(cpu_seconds(worker.pid) for worker in workers)
        await asyncio.gather(*(turn(runner, session) for session in sessions))
        wall, cpu = time.monotonic() - start, sum(cpu_seconds(worker.pid) for worker in workers) - used
    steps = options.sessions * (2 * options.rounds + 1)
    return {
        "steps_per_second": steps / wall,
        "worker_cpu_ms_per_step": cpu / steps * 1e3,
        "late_tasks": sum([await late_tasks(client, app, session) for session in sessions]),
    }


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sticky", type=float, nargs="+", default=[1.0, 2.0], help="sticky timeouts, in seconds")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    found: dict[float, list[dict[str, float]]] = {sticky: [] for sticky in options.sticky}
    async with DevServer(DevServerConfig(headless=True)) as server:
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        for index in range(options.repeat):
            # Forth and back, since the server slows down with each session that it holds.
            for sticky, rows in list(found.items())[:: -1 if index % 2 else 1]:
                rows.append(await measure(client, server.address, options, sticky))
    report = {
        f"sticky_{sticky:g}_s": {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for sticky, rows in found.items()
    }
    print_report(report, table=not options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        run_serving(serve(*sys.argv[2:6]))
    else:
        asyncio.run(main())
