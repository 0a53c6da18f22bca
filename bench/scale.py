"""Many sessions: steps per second against a bare Temporal workflow, and what paused sessions cost.

    python -m bench.scale [--sessions 200] [--repeat 4] [--paused 1000] [--cached 50] [--at-once 50] [--json]

The worker is a process of its own; the client, with a follower for each session, is another.

`throughput`: sessions at once, one turn of three tool calls each (four model calls, three tools), against a bare
workflow that runs the same activities, by turns: `bare` in the SDK's sandbox, with the SDK's own client, which
compresses; `bare_best` without either. `whole` counts creating the sessions, the others only the turns; the bare
workflow's start is counted. `awaited`, `local` and `many` read the events when the turn has ended, as the bare
workflow's result is; `turn` and `whole` follow them as they are logged. `local` has the tool as a local activity,
`many` up to 20 steps an activity.

`paused`: sessions that wait for the answer of a long-running tool: the worker's memory for each (slope over the number
of sessions), then all are answered, some at once; seconds from an answer to the final text. `evicted`: the same by a
worker whose cache holds only a few sessions. `hundred_thousand` is computed from these. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from bench.processes import cpu_seconds, percentile, print_report, process, ready, resident_kb, tell_ready
    from perdure.agents import App, FunctionTool, LlmAgent, LongRunningFunctionTool, ResumabilityConfig
    from perdure.client import Runner
    from perdure.config import ConnectionConfig, WorkerConfig, connect
    from perdure.models.scripted import ScriptedModel
    from perdure.serving.dev_server import DevServer, DevServerConfig
    from perdure.serving.event_loop import run_serving, spare_collector
    from perdure.worker import create_workers

TURN_APP = "bench_scale_turn"
LOCAL_APP = "bench_scale_local"
MANY_APP = "bench_scale_many"
PAUSED_APP = "bench_scale_paused"
BARE_QUEUE, BARE_BEST_QUEUE = "bench_scale_bare", "bench_scale_bare_best"
TOOLS = 3
STEPS = 2 * TOOLS + 1
_PAYLOAD = "x" * 700
_POINTS = 4
"""Numbers of sessions at which memory is read."""


@activity.defn(name="model")
async def bare_model(size: str) -> str:
    return size


@activity.defn(name="tool")
async def bare_tool(size: str) -> str:
    return size


@workflow.defn(name="bare_turn")
class BareTurn:
    """As many activities as the agent's turn needs, with payloads of about the same sizes."""

    @workflow.run
    async def run(self) -> None:
        timeout = timedelta(minutes=5)
        for _ in range(TOOLS):
            await workflow.execute_activity(bare_model, _PAYLOAD, start_to_close_timeout=timeout)
            await workflow.execute_activity(bare_tool, _PAYLOAD, start_to_close_timeout=timeout)
        await workflow.execute_activity(bare_model, _PAYLOAD, start_to_close_timeout=timeout)


def look_up(query: str) -> str:
    """Look something up."""
    return query


def ask(question: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending", "question": question}


def make_apps() -> list[App]:
    steps: list[Any] = [{"calls": [{"name": "look_up", "args": {"query": "q"}}]} for _ in range(TOOLS)]
    script = [*steps, {"text": "done"}]
    turn = LlmAgent(name="worker", model=ScriptedModel(script), tools=[look_up])
    local = LlmAgent(name="worker", model=ScriptedModel(script), tools=[FunctionTool(look_up, local=True)])
    question: dict[str, Any] = {"calls": [{"name": "ask", "args": {"question": "May I?"}}]}
    asker = LlmAgent(
        name="asker", model=ScriptedModel([question, {"text": "done"}]), tools=[LongRunningFunctionTool(ask)]
    )
    resumable = ResumabilityConfig(is_resumable=True)
    return [
        App(name=TURN_APP, root_agent=turn, resumability_config=resumable),
        App(name=LOCAL_APP, root_agent=local, resumability_config=resumable),
        App(name=MANY_APP, root_agent=turn, resumability_config=resumable, steps_per_activity=20),
        App(name=PAUSED_APP, root_agent=asker, resumability_config=resumable),
    ]


async def serve(address: str, sessions: int) -> None:
    """Be a worker of the apps and of the bare workflow."""
    client = await connect(ConnectionConfig(address=address, namespace="default", tls=False))
    activities = [bare_model, bare_tool]
    bare = Worker(await Client.connect(address), task_queue=BARE_QUEUE, workflows=[BareTurn], activities=activities)
    best = Worker(
        client,
        task_queue=BARE_BEST_QUEUE,
        workflows=[BareTurn],
        activities=activities,
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    config = WorkerConfig(max_cached_workflows=sessions)
    async with AsyncExitStack() as stack:
        for worker in [*create_workers(client, make_apps(), config), bare, best]:
            await stack.enter_async_context(worker)
        # As `perdure worker` does. Else what the imports left is freed some time later, and sessions seem to take that
        # much less.
        spare_collector()
        tell_ready()
        await asyncio.Event().wait()


class Bench:
    """Runs many sessions on one server."""

    def __init__(self, client: Client, bare: Client, address: str) -> None:
        self._client = client
        self._bare_client = bare
        self._address = address
        self._turns = Runner(TURN_APP, client)
        self._local = Runner(LOCAL_APP, client, local_tools=True)
        self._many = Runner(MANY_APP, client)
        self._paused = Runner(PAUSED_APP, client)

    def worker(self, sessions: int) -> Any:
        return process("bench.scale", "--serve", self._address, str(sessions))

    async def throughput(self, sessions: int, repeat: int) -> dict[str, Any]:
        """Return steps per second of each way, and what they cost the worker's and the client's process."""
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        async with self.worker(10 * sessions) as worker:
            await ready(worker)
            for index in range(repeat + 1):
                turns = [await self._created(self._turns) for _ in range(sessions)]
                awaited = [await self._created(self._turns) for _ in range(sessions)]
                local = [await self._created(self._local) for _ in range(sessions)]
                many = [await self._created(self._many) for _ in range(sessions)]
                ways: dict[str, list[Callable[[], Awaitable[None]]]] = {
                    "bare": [self._bare] * sessions,
                    "bare_best": [self._bare_best] * sessions,
                    "whole": [self._whole] * sessions,
                    "turn": [lambda session=session: self._turn(self._turns, session) for session in turns],
                    "awaited": [lambda id=session: self._turn(self._turns, id, live=False) for session in awaited],
                    "local": [lambda id=session: self._turn(self._local, id, live=False) for session in local],
                    "many": [lambda id=session: self._turn(self._many, id, live=False) for session in many],
                }
                # Forth and back, since the server slows down with each session that it holds.
                for name, runs in list(ways.items())[:: 1 if index % 2 else -1]:
                    result = await _timed(worker.pid, runs)
                    if index:  # The first round warms up.
                        found[name].append(result)
        medians = {
            name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()
        }
        speed = {name: row["steps_per_second"] for name, row in medians.items()}
        ratios = {name: steps / speed["bare"] for name, steps in speed.items() if name != "bare"}
        to_best = {name: steps / speed["bare_best"] for name, steps in speed.items() if name != "bare_best"}
        return {"sessions": sessions, **medians, "ratio": ratios, "to_best": to_best}

    async def _bare(self) -> None:
        await self._bare_client.execute_workflow("bare_turn", id=f"bare-{uuid.uuid4()}", task_queue=BARE_QUEUE)

    async def _bare_best(self) -> None:
        await self._client.execute_workflow("bare_turn", id=f"bare-{uuid.uuid4()}", task_queue=BARE_BEST_QUEUE)

    async def _created(self, runner: Runner) -> str:
        session = str(uuid.uuid4())
        await runner.create_session(user_id="u", session_id=session)
        return session

    async def _whole(self) -> None:
        await self._turn(self._turns, await self._created(self._turns))

    async def _turn(self, runner: Runner, session: str, *, live: bool = True) -> None:
        async for _ in runner.run_async(user_id="u", session_id=session, new_message="go", live=live):
            pass

    async def paused(self, sessions: int, cached: int, at_once: int) -> dict[str, Any]:
        """Return what sessions that wait cost, and how soon they go on when they are answered."""
        gate = asyncio.Semaphore(at_once)
        async with self.worker(cached) as worker:
            await ready(worker)
            await asyncio.gather(*(self._pause(gate) for _ in range(at_once)))  # Warms up.
            points = [(0, resident_kb(worker.pid))]
            waiting: list[tuple[str, str]] = []
            for _ in range(_POINTS):
                batch = (self._pause(gate) for _ in range(sessions // _POINTS))
                waiting += await asyncio.gather(*batch)
                await asyncio.sleep(1)  # Until the last workflow tasks are through.
                points.append((len(waiting), resident_kb(worker.pid)))
            start, used = time.monotonic(), cpu_seconds(worker.pid)
            seconds = await asyncio.gather(*(self._answer(gate, *call) for call in waiting))
            wall, cpu = time.monotonic() - start, cpu_seconds(worker.pid) - used
        slope = statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope
        return {
            "sessions": len(waiting),
            "cached": cached,
            "worker_mb": [kb / 1024 for _, kb in points],
            "kb_per_paused_session": slope,
            "answer_all_seconds": wall,
            "answer_worker_cpu_ms_each": cpu / len(waiting) * 1e3,
            "answer_to_text_median": statistics.median(seconds),
            "answer_to_text_p99": percentile(seconds, 0.99),
        }

    async def _pause(self, gate: asyncio.Semaphore) -> tuple[str, str]:
        """Start a session and run it until it waits; returns its id and the open call's."""
        session, call = str(uuid.uuid4()), ""
        async with gate:
            await self._paused.create_session(user_id="u", session_id=session)
            async for event in self._paused.run_async(user_id="u", session_id=session, new_message="go"):
                call = next(iter(event.long_running_tool_ids or ()), call)
        return session, call

    async def _answer(self, gate: asyncio.Semaphore, session: str, call: str) -> float:
        """Answer a call; returns the seconds until the final text has come."""
        async with gate:
            start = time.monotonic()
            result = await self._paused.respond(user_id="u", session_id=session, responses={call: {"yes": True}})
            async for event in self._paused.follow(
                user_id="u", session_id=session, invocation_id=result.invocation.id, since=result.offset
            ):
                if event.text == "done":
                    return time.monotonic() - start
        raise RuntimeError(f"session {session} ended without its text")


async def _timed(worker: int, runs: list[Callable[[], Awaitable[None]]]) -> dict[str, float]:
    start, own, used = time.monotonic(), time.process_time(), cpu_seconds(worker)
    await asyncio.gather(*(run() for run in runs))
    steps = len(runs) * STEPS
    return {
        "steps_per_second": steps / (time.monotonic() - start),
        "worker_cpu_ms_per_step": (cpu_seconds(worker) - used) / steps * 1e3,
        "client_cpu_ms_per_step": (time.process_time() - own) / steps * 1e3,
    }


def hundred_thousand(paused: dict[str, Any], evicted: dict[str, Any]) -> dict[str, float]:
    """Return what 100,000 paused sessions would cost, by the measured slopes."""
    number = 100_000
    return {
        "cached_gb": paused["kb_per_paused_session"] * number / 1024**2,
        "evicted_gb": max(evicted["kb_per_paused_session"], 0.0) * number / 1024**2,
        "answer_all_hours_cached": paused["answer_all_seconds"] / paused["sessions"] * number / 3600,
        "answer_all_hours_evicted": evicted["answer_all_seconds"] / evicted["sessions"] * number / 3600,
    }


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200, help="at once, for the throughput; 0 leaves it out")
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--paused", type=int, default=1000, help="0 leaves them out")
    parser.add_argument("--cached", type=int, default=50, help="sessions in memory of the worker that evicts them")
    parser.add_argument("--at-once", type=int, default=50, help="sessions started and answered at a time")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    async with DevServer(DevServerConfig(headless=True)) as server:
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        bench = Bench(client, await Client.connect(server.address), server.address)
        if options.sessions:
            report["throughput"] = await bench.throughput(options.sessions, options.repeat)
        if options.paused:
            every = options.paused + options.at_once
            report["paused"] = await bench.paused(options.paused, every, options.at_once)
            report["evicted"] = await bench.paused(options.paused, options.cached, options.at_once)
            report["hundred_thousand"] = hundred_thousand(report["paused"], report["evicted"])
    print_report(report, table=not options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        run_serving(serve(sys.argv[2], int(sys.argv[3])))
    else:
        asyncio.run(main())
