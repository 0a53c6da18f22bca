"""What followers cost the runs that they follow: SSE clients of the HTTP API, over real sockets, against none.

    python -m bench.followers [--followers 200] [--sessions 10] [--rounds 30] [--repeat 3] [--pace 0] [--json]

Four processes: the server, a worker, the HTTP API, and the followers; this one starts the turns and waits for their
ends. A turn has so many rounds of a model call and a tool, all sessions run at once, and each follower is attached to
one of them (`GET …/events/stream`), by turns. With and without followers alternate in one run, on fresh sessions.

`ratio` is the time of a step with followers to that without. `history` compares the history events of the sessions:
following writes none. `events` is what the followers got, of what they should have. `lag` is how long after an event's
own time the followers had it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx2
from temporalio.client import Client

from bench.processes import (
    READY,
    connected,
    cpu_seconds,
    percentile,
    print_report,
    process,
    read_line,
    ready,
    tell_ready,
)
from bench.reads import serve_api
from perdure.agents import App, LlmAgent
from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.messages.keys import SessionKey
from perdure.models.base import BaseLlm
from perdure.models.scripted import ScriptedModel
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.event_loop import run_serving
from perdure.worker import create_workers

APP = "bench_followers"


def make_app(rounds: int, pace: float, steps_per_activity: int) -> App:
    async def look_up(query: str) -> str:
        """Look something up."""
        await asyncio.sleep(pace)
        return query

    steps: list[Any] = [{"calls": [{"name": "look_up", "args": {"query": "q"}}]} for _ in range(rounds)]
    model: BaseLlm = ScriptedModel([*steps, {"text": "done"}])
    agent = LlmAgent(name="worker", model=model, tools=[look_up])
    return App(name=APP, root_agent=agent, steps_per_activity=steps_per_activity)


async def serve_worker(address: str, app: App) -> None:
    """Be the worker."""
    [worker] = create_workers(await connected(address), [app], WorkerConfig())
    async with worker:
        tell_ready()
        await asyncio.Event().wait()


async def follow_all(url: str, followers: int, events: int, sessions: Sequence[str]) -> None:
    """Be the followers: attach, say so, and tell at the end how many events came, and how late."""
    limits = httpx2.Limits(max_connections=None)
    attached = asyncio.Semaphore(0)
    lags: list[float] = []

    async def one(http: httpx2.AsyncClient, session: str) -> int:
        path = f"{url}/v1/apps/{APP}/users/u/sessions/{session}/events/stream"
        seen = 0
        async with http.stream("GET", path) as stream:
            attached.release()
            async for line in stream.aiter_lines():
                assert line != "event: error", "a stream broke off"
                if line.startswith("data: "):
                    seen += 1
                    lags.append(time.time() - json.loads(line.removeprefix("data: "))["timestamp"])
                    if seen == events:
                        break
        return seen

    async with httpx2.AsyncClient(limits=limits, timeout=600, trust_env=False) as http:
        tasks = [asyncio.create_task(one(http, sessions[n % len(sessions)])) for n in range(followers)]
        for _ in range(followers):
            await attached.acquire()
        print(READY, flush=True)
        seen = sum(await asyncio.gather(*tasks))
    report = {"events": seen, "lag_median": statistics.median(lags), "lag_p99": percentile(lags, 0.99)}
    print(json.dumps(report), flush=True)


class Bench:
    """Runs sessions, with followers and without."""

    def __init__(self, client: Client, url: str, options: argparse.Namespace) -> None:
        self._client = client
        self._runner = Runner(APP, client)
        self._url = url
        self._options = options
        self._events = 2 + 2 * options.rounds
        """Of each session: the message, a call and a response for each round, the last text."""

    async def once(self, followers: int) -> dict[str, Any]:
        """Return what one run of all sessions took, per step."""
        sessions = [str(uuid.uuid4()) for _ in range(self._options.sessions)]
        for session in sessions:
            await self._runner.create_session(user_id="u", session_id=session)
        if not followers:
            return await self._run(sessions)
        arguments = (self._url, str(followers), str(self._events), *sessions)
        async with process("bench.followers", "--follow", *arguments) as child:
            await ready(child)
            found = await self._run(sessions)
            async with asyncio.timeout(300):
                return found | json.loads(await read_line(child))

    async def _run(self, sessions: list[str]) -> dict[str, Any]:
        began = time.monotonic()
        await asyncio.gather(*(self._turn(session) for session in sessions))
        took = time.monotonic() - began
        ids = [SessionKey(APP, "u", session).workflow_id for session in sessions]
        lengths = [(await self._client.get_workflow_handle(id).describe()).history_length for id in ids]
        # With all sessions at once a step of one takes as long as so many; this is the time of one step of one.
        return {"ms_per_step": took / self._options.rounds * 1e3, "history": statistics.mean(lengths)}

    async def _turn(self, session: str) -> None:
        """Run a turn; its end is asked for seldom, so that nobody but the followers follows."""
        result = await self._runner.send_message(user_id="u", session_id=session, message="go")
        id = result.invocation.id
        while True:
            view = await self._runner.invocation(user_id="u", session_id=session, invocation_id=id)
            if view.status == "finished":
                return
            assert view.status in ("queued", "running"), view
            await asyncio.sleep(0.1)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    with_, without = list[dict[str, Any]](), list[dict[str, Any]]()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevServer(DevServerConfig(headless=True)))
        own = ("--worker", server.address, str(options.rounds), str(options.pace), str(options.steps))
        worker = await ready(await stack.enter_async_context(process("bench.followers", *own)))
        api = await stack.enter_async_context(process("bench.followers", "--api", server.address))
        bench = Bench(await connected(server.address), await read_line(api), options)
        cpu: dict[str, list[float]] = {"api": [], "worker": [], "worker_alone": []}
        for index in range(options.repeat + 1):
            before = cpu_seconds(worker.pid)
            alone = await bench.once(0)
            between, api_before = cpu_seconds(worker.pid), cpu_seconds(api.pid)
            followed = await bench.once(options.followers)
            if index:  # The first round warms up.
                without.append(alone)
                with_.append(followed)
                cpu["worker_alone"].append(between - before)
                cpu["worker"].append(cpu_seconds(worker.pid) - between)
                cpu["api"].append(cpu_seconds(api.pid) - api_before)
    steps = options.sessions * options.rounds
    medians = [statistics.median(row["ms_per_step"] for row in rows) for rows in (without, with_)]
    return {
        "followers": options.followers,
        "sessions": options.sessions,
        "rounds": options.rounds,
        "ms_per_step": {"alone": medians[0], "followed": medians[1]},
        "ratio": medians[1] / medians[0],
        "history_events": {
            "alone": statistics.mean(row["history"] for row in without),
            "followed": statistics.mean(row["history"] for row in with_),
        },
        "events": {
            "seen": sum(row["events"] for row in with_),
            "expected": options.followers * (2 + 2 * options.rounds) * options.repeat,
        },
        "lag_ms": {
            "median": statistics.median(row["lag_median"] for row in with_) * 1e3,
            "p99": max(row["lag_p99"] for row in with_) * 1e3,
        },
        "cpu_ms_per_step": {name: statistics.median(used) / steps * 1e3 for name, used in cpu.items()},
    }


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--followers", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=10, help="that run at once")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that the tool takes")
    parser.add_argument("--steps", type=int, default=1, help="that an activity may take")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    print_report(await measure(options), table=not options.json)


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or [""]
    if what == "--worker":
        run_serving(serve_worker(rest[0], make_app(int(rest[1]), float(rest[2]), int(rest[3]))))
    elif what == "--api":
        run_serving(serve_api(rest[0]))
    elif what == "--follow":
        asyncio.run(follow_all(rest[0], int(rest[1]), int(rest[2]), rest[3:]))
    else:
        asyncio.run(main())
