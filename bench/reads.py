"""How long `GET` of a large session takes: by an API that has not read it yet, again, behind a turn, without a worker.

    python -m bench.reads [--events 5000] [--repeat 5] [--json]

The session's log comes from an import, with a turn behind it. Server, worker and HTTP API have a process each, the API
a fresh one for each cold read. `cold` is the first `GET /apps/…/sessions/…` of an API, with a worker that holds the
session; `cold_all` has a fresh worker, too; `warm` is the same request again; `behind_a_turn` is the first behind a
turn, and `no_worker` is `cold` with none up: `null` where no answer comes within 30 s. Times are medians, in ms. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2

from bench.processes import connected, print_report, process, read_line, ready, tell_ready
from perdure.agents import App, LlmAgent
from perdure.api.app import create_app
from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.models.scripted import ScriptedModel
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.event_loop import run_serving, spare_collector
from perdure.serving.http_server import serve
from perdure.serving.sockets import listen, url_of
from perdure.worker import create_workers

APP = "bench_reads"
_PATIENCE = 30.0


async def serve_worker(address: str) -> None:
    """Be the worker."""
    # One for each answer of the log, too.
    model = ScriptedModel([{"text": "answer"}] * 20_000)
    app = App(name=APP, root_agent=LlmAgent(name="agent", model=model))
    [worker] = create_workers(await connected(address), [app], WorkerConfig())
    async with worker:
        spare_collector()
        tell_ready()
        await asyncio.Event().wait()


async def serve_api(address: str) -> None:
    """Be the HTTP API; prints where."""
    app = create_app(await connected(address))
    with listen("127.0.0.1", 0) as listener:
        print(url_of(listener), flush=True)
        await serve(app, listener, asyncio.Event(), closing=app.state.backend.closing)


def large_log(events: int) -> list[str]:
    """Return a log of questions and answers."""
    said = [("user", "user", "question " * 10), ("agent", "model", "answer " * 20)] * (events // 2)
    return [
        json.dumps(
            {
                "id": str(uuid.uuid4()),
                "author": author,
                "invocationId": f"e-{index // 2}",
                "timestamp": 1.0 + index,
                "content": {"role": role, "parts": [{"text": text}]},
            }
        )
        for index, (author, role, text) in enumerate(said)
    ]


class Bench:
    """Reads one session in each of the ways."""

    def __init__(self, address: str, runner: Runner, session: str) -> None:
        self._address = address
        self._runner = runner
        self._session = session

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[None]:
        """Have a worker until the end of the block."""
        async with process("bench.reads", "--worker", self._address) as child:
            await ready(child)
            yield

    @asynccontextmanager
    async def api(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """Have an API that has read no session until the end of the block."""
        async with process("bench.reads", "--api", self._address) as child:
            url = await read_line(child)
            async with httpx2.AsyncClient(base_url=url, timeout=_PATIENCE, trust_env=False) as http:
                # Its first request imports and connects what each of them needs.
                await http.get("/list-apps")
                yield http

    async def turn(self) -> None:
        """Run one."""
        async for _ in self._runner.run_async(user_id="u", session_id=self._session, new_message="more"):
            pass

    async def read(self, http: httpx2.AsyncClient) -> float | None:
        """Return the ms that a request takes; `None` if no answer comes."""
        began = time.perf_counter()
        try:
            found = await http.get(f"/apps/{APP}/users/u/sessions/{self._session}")
        except httpx2.TimeoutException:
            return None
        took = (time.perf_counter() - began) * 1e3
        return took if found.status_code == 200 else None

    async def once(self) -> dict[str, float | None]:
        """Return what each way takes."""
        async with self.worker():
            async with self.api() as http:
                cold_all = await self.read(http)
            await self.turn()
            async with self.api() as http:
                cold, warm = await self.read(http), await self.read(http)
                await self.turn()
                behind = await self.read(http)
        async with self.api() as http:
            alone = await self.read(http)
        return {"cold_all": cold_all, "cold": cold, "warm": warm, "behind_a_turn": behind, "no_worker": alone}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevServer(DevServerConfig(headless=True)))
        runner, session = Runner(APP, await connected(server.address)), str(uuid.uuid4())
        bench = Bench(server.address, runner, session)
        async with bench.worker():
            await runner.import_session(large_log(options.events), user_id="u", session_id=session)
            await bench.turn()
        rows = [await bench.once() for _ in range(options.repeat)]
    report: dict[str, Any] = {"events": options.events, "repeat": options.repeat}
    for way in rows[0]:
        answered = [took for row in rows if (took := row[way]) is not None]
        report[way] = statistics.median(answered) if len(answered) == len(rows) else None
    return report


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    print_report(await measure(options), table=not options.json)


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or [""]
    if what == "--worker":
        run_serving(serve_worker(rest[0]))
    elif what == "--api":
        run_serving(serve_api(rest[0]))
    else:
        asyncio.run(main())
