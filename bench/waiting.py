"""Many sessions that wait: how soon a fresh client has the first page of what waits, and all of it.

    python -m bench.waiting [--sessions 1000] [--repeat 5] [--at-once 50] [--json]

The worker is a process of its own, and is up; neither it nor a session is asked. `first`: a page of a hundred calls.
`every`: all pages. `read`: all of them where each session's history is read, once. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client

from bench.processes import connected, print_report, process, ready
from bench.scale import PAUSED_APP
from perdure.client import Runner
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.sessions.pending import Wanted, all_waiting, find_waiting

_WANTED = Wanted(app=PAUSED_APP)

_LISTED_SECONDS = 60.0


async def _pause(runner: Runner, gate: asyncio.Semaphore) -> None:
    session = str(uuid.uuid4())
    async with gate:
        await runner.create_session(user_id="u", session_id=session)
        async for _ in runner.run_async(user_id="u", session_id=session, new_message="go", live=False):
            pass


async def _first(client: Client) -> int:
    return len((await find_waiting(client, _WANTED)).calls)


async def _every(client: Client) -> int:
    return sum([len(page.calls) async for page in all_waiting(client, _WANTED)])


async def _read(client: Client) -> int:
    # One user's sessions are read, since a listing may be a moment behind.
    wanted = Wanted(app=PAUSED_APP, user_id="u")
    return sum([len(page.calls) async for page in all_waiting(client, wanted)])


async def _timed(address: str, look: Callable[[Client], Awaitable[int]], repeat: int) -> dict[str, Any]:
    """Return the median of the seconds that a fresh client took, and how many calls it found."""
    seconds, found = list[float](), 0
    for _ in range(repeat):
        client = await connected(address)
        began = time.monotonic()
        found = await look(client)
        seconds.append(time.monotonic() - began)
    return {"seconds": statistics.median(seconds), "calls": found}


async def measure(sessions: int, repeat: int, at_once: int) -> dict[str, Any]:
    """Return the benchmark's report."""
    async with DevServer(DevServerConfig(headless=True)) as server:
        client = await connected(server.address)
        async with process("bench.scale", "--serve", server.address, "50") as worker:
            await ready(worker)
            runner, gate = Runner(PAUSED_APP, client), asyncio.Semaphore(at_once)
            await asyncio.gather(*(_pause(runner, gate) for _ in range(sessions)))
            until = time.monotonic() + _LISTED_SECONDS
            while (await client.count_workflows("PerdurePendingTools IS NOT NULL")).count < sessions:
                if time.monotonic() > until:
                    raise RuntimeError("the sessions are not listed")
                await asyncio.sleep(0.5)
            return {
                "sessions": sessions,
                "first": await _timed(server.address, _first, repeat),
                "every": await _timed(server.address, _every, repeat),
                "read": await _timed(server.address, _read, 1),
            }


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=50, help="sessions started at a time")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    arguments = parser.parse_args()
    report = await measure(arguments.sessions, arguments.repeat, arguments.at_once)
    print_report(report, table=not arguments.json)


if __name__ == "__main__":
    asyncio.run(main())
