"""How soon a turn goes on after SIGKILL of its worker, with Perdure's default timeouts.

    python -m bench.recovery [--repeat 5] [--sessions 100] [--tool-seconds 6] [--many 80] [--rounds 60] [--json]

The worker is killed in the middle of a model call, of a tool, or of a local tool, at a random moment of the first two
seconds. `standby`: a second worker is up; `restart`: one is started at once, imports included. Seconds count from the
kill: `step` until the step begins again, `turn` until the turn's last event has reached the client. `several`: in a
tool behind others of the same activity, with up to 20 steps an activity; `twice` counts the others that ran again.

`false_alarms` is the price of short timeouts: sessions at once, each with a tool that takes some seconds, while the
worker is as busy as it can be with short turns; it counts the tools that ran more than once.

`many`: sessions that are all in a tool after some rounds when their worker is killed, and all let go at once when the
new one is up, which has to replay them all: seconds until they have ended, and those that their clients took for stuck;
`many_local`: the same with a local tool in each round.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from google.genai import types
from temporalio.client import Client

from bench.processes import cpu_seconds, print_report, process, ready, tell_ready
from perdure.agents import App, FunctionTool, LlmAgent, ResumabilityConfig, ToolContext
from perdure.client import Runner
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.errors import SessionStuck
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.event_loop import run_serving
from perdure.worker import create_workers

APP = "bench_recovery"
SEVERAL_APP = "bench_recovery_several"
_BEFORE = 8
"""Tools that the activity has run before the one in which it is killed."""
MANY_APP = "bench_recovery_many"
MANY_LOCAL_APP = "bench_recovery_many_local"
KINDS = ("model", "tool", "local", "several")
_OPEN = "open"
"""File that lets the tools of `many` go."""
_POLL = 0.005
_SLOW_POLL = 0.5
_SHORT_TURNS = 20


def _began(folder: Path, key: str) -> int:
    """Note that a step began in this process; returns which attempt it is."""
    path = folder / key.replace("/", "_")
    with path.open("a") as lines:
        lines.write(f"{os.getpid()} {time.time()}\n")
    return len(path.read_text().splitlines())


class HangingModel(ScriptedModel):
    """Hangs in its second call, the first time, if the session's message says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__([{"calls": [{"name": "work", "args": {}}]}, {"text": "done"}])
        self._folder = folder

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        message = (llm_request.contents[0].parts or [])[0].text or ""
        kind, _, key = message.partition(" ")
        if kind == "model" and llm_request.call_index == 1 and _began(self._folder, key) == 1:
            await asyncio.sleep(3600)
        if kind == "local" and llm_request.call_index == 0:
            call = types.FunctionCall(name="quick", args={})
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=call)]))
            return
        async for response in super().generate_content_async(llm_request, stream):
            yield response


def make_app(folder: Path) -> App:
    async def work(tool_context: ToolContext) -> str:
        """Work."""
        kind, key = tool_context.state["kind"], tool_context.state["key"]
        if kind in ("tool", "local") and _began(folder, key) == 1:
            await asyncio.sleep(3600)
        if kind == "slow":
            _began(folder, key)
            await asyncio.sleep(tool_context.state["seconds"])
        return "worked"

    async def quick(tool_context: ToolContext) -> str:
        """Work in the session's worker."""
        return await work(tool_context)

    agent = LlmAgent(name="worker", model=HangingModel(folder), tools=[work, FunctionTool(quick, local=True)])
    return App(name=APP, root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))


def make_several_app(folder: Path) -> App:
    async def look(number: int, tool_context: ToolContext) -> str:
        """Look."""
        key = tool_context.state["key"]
        if number < _BEFORE:
            _began(folder, f"{key}.{number}")
        elif _began(folder, key) == 1:
            await asyncio.sleep(3600)
        return "seen"

    looks: list[Any] = [{"calls": [{"name": "look", "args": {"number": number}}]} for number in range(_BEFORE + 1)]
    agent = LlmAgent(name="worker", model=ScriptedModel([*looks, {"text": "done"}]), tools=[look])
    resumable = ResumabilityConfig(is_resumable=True)
    return App(name=SEVERAL_APP, root_agent=agent, resumability_config=resumable, steps_per_activity=20)


def make_many_app(folder: Path, rounds: int, *, local: bool) -> App:
    def look_up(query: str) -> str:
        """Look something up."""
        return query * 50

    async def wait(tool_context: ToolContext) -> str:
        """Wait until all may go on."""
        _began(folder, tool_context.state["key"])
        # Another process writes it.
        while not (folder / _OPEN).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        return "waited"

    looks: list[Any] = [{"calls": [{"name": "look_up", "args": {"query": f"some words {i} "}}]} for i in range(rounds)]
    model = ScriptedModel([*looks, {"calls": [{"name": "wait", "args": {}}]}, {"text": "done"}])
    agent = LlmAgent(name="worker", model=model, tools=[FunctionTool(look_up, local=local), wait])
    return App(
        name=MANY_LOCAL_APP if local else MANY_APP,
        root_agent=agent,
        resumability_config=ResumabilityConfig(is_resumable=True),
    )


async def serve(address: str, folder: str, rounds: str) -> None:
    """Be a worker."""
    client = await connect(ConnectionConfig(address=address, namespace="default", tls=False))
    many = [make_many_app(Path(folder), int(rounds), local=local) for local in (False, True)]
    apps = [make_app(Path(folder)), make_several_app(Path(folder)), *many]
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, apps, WorkerConfig(max_concurrent_activities=1000)):
            await stack.enter_async_context(worker)
        tell_ready()
        await asyncio.Event().wait()


class Bench:
    """Kills workers on one server."""

    def __init__(self, address: str, client: Client, folder: Path, rounds: int) -> None:
        self._address = address
        self._runners = {kind: Runner(APP, client) for kind in ("model", "tool", "local", "slow", "none")}
        self._runners["several"] = Runner(SEVERAL_APP, client)
        self._client = client
        self._folder = folder
        self._rounds = rounds

    def worker(self) -> Any:
        return process("bench.recovery", "--serve", self._address, str(self._folder), str(self._rounds))

    async def turn(self, kind: str, key: str, seconds: float = 0.0) -> float:
        """Run a turn; returns when its last event came, by the wall clock."""
        state = {"kind": kind, "key": key, "seconds": seconds}
        runner = self._runners[kind]
        await runner.create_session(user_id="u", session_id=key, state=state)
        async for _ in runner.run_async(user_id="u", session_id=key, new_message=f"{kind} {key}"):
            pass
        return time.time()

    def began(self, key: str) -> list[tuple[int, float]]:
        """Return process and time of each attempt."""
        path = self._folder / key
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]), float(line.split()[1])) for line in lines]

    async def kill_during(self, kind: str, *, standby: bool) -> tuple[float, float, int]:
        """Kill the worker that is at a step; returns the seconds to the step and the turn's end, and what ran twice."""
        key = f"{kind}-{uuid.uuid4()}"
        async with AsyncExitStack() as stack:
            workers: dict[int, Process] = {}
            for _ in range(2 if standby else 1):
                worker = await ready(await stack.enter_async_context(self.worker()))
                workers[worker.pid] = worker
            turn = asyncio.create_task(self.turn(kind, key))
            # Another process writes it.
            while not self.began(key):  # noqa: ASYNC110
                await asyncio.sleep(_POLL)
            await asyncio.sleep(random.uniform(0.1, 2.0))
            killed = time.time()
            workers[self.began(key)[0][0]].kill()
            if not standby:
                await stack.enter_async_context(self.worker())
            ended = await turn
        twice = sum(len(self.began(f"{key}.{number}")) > 1 for number in range(_BEFORE))
        return self.began(key)[1][1] - killed, ended - killed, twice

    async def recovery(self, kind: str, *, standby: bool, repeat: int) -> dict[str, float]:
        """Return the middle and the worst of several kills."""
        found = [await self.kill_during(kind, standby=standby) for _ in range(repeat)]
        steps, turns = sorted(step for step, _, _ in found), sorted(turn for _, turn, _ in found)
        return {
            "step_median": steps[len(steps) // 2],
            "step_worst": steps[-1],
            "turn_median": turns[len(turns) // 2],
            "turn_worst": turns[-1],
            "twice": sum(twice for _, _, twice in found),
        }

    async def false_alarms(self, sessions: int, seconds: float) -> dict[str, Any]:
        """Return how many of many tools, on one busy worker, ran more than once."""
        async with self.worker() as worker:
            await ready(worker)
            keys = [f"slow-{uuid.uuid4()}" for _ in range(sessions)]
            slow = asyncio.gather(*(self.turn("slow", key, seconds) for key in keys))
            short = 0
            while not slow.done():
                await asyncio.gather(*(self.turn("none", str(uuid.uuid4())) for _ in range(_SHORT_TURNS)))
                short += _SHORT_TURNS
            await slow
        again = sum(len(self.began(key)) > 1 for key in keys)
        return {"tools": sessions, "seconds": seconds, "short_turns_meanwhile": short, "ran_again": again}

    async def many(self, app: str, sessions: int) -> dict[str, Any]:
        """Return how soon many sessions have ended that a new worker has to replay at once."""
        keys = [f"many-{uuid.uuid4()}" for _ in range(sessions)]
        runner, stuck = Runner(app, self._client), list[str]()
        (self._folder / _OPEN).unlink(missing_ok=True)
        async with self.worker() as first:
            await ready(first)
            turns = [asyncio.create_task(_many_turn(runner, key, stuck)) for key in keys]
            # Another process writes them.
            while not all(self.began(key) for key in keys):  # noqa: ASYNC110
                await asyncio.sleep(_SLOW_POLL)
            first.kill()
        async with self.worker() as second:
            await ready(second)
            while not all(len(self.began(key)) > 1 for key in keys):  # noqa: ASYNC110
                await asyncio.sleep(_SLOW_POLL)
            opened = time.time()
            (self._folder / _OPEN).touch()
            ends = sorted([ended - opened for ended in await asyncio.gather(*turns)])
            cpu = cpu_seconds(second.pid)
        return {
            "sessions": sessions,
            "rounds": self._rounds,
            "turn_median": ends[sessions // 2],
            "turn_worst": ends[-1],
            "taken_for_stuck": len(stuck),
            "worker_cpu_seconds": cpu,
        }


async def _many_turn(runner: Runner, key: str, stuck: list[str]) -> float:
    await runner.create_session(user_id="u", session_id=key, state={"key": key})
    try:
        async for _ in runner.run_async(user_id="u", session_id=key, new_message="go", live=False):
            pass
    except SessionStuck:
        stuck.append(key)
        # Nobody tells.
        while not await _is_over(runner, key):  # noqa: ASYNC110
            await asyncio.sleep(_SLOW_POLL)
    return time.time()


async def _is_over(runner: Runner, key: str) -> bool:
    try:
        return (await runner.get_session(user_id="u", session_id=key)).status not in ("running", "queued")
    except SessionStuck:
        return False


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="kills of each kind; 0 leaves them out")
    parser.add_argument("--sessions", type=int, default=100, help="of the false alarms; 0 leaves them out")
    parser.add_argument("--tool-seconds", type=float, default=6.0)
    parser.add_argument("--many", type=int, default=80, help="sessions that are replayed at once; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=60, help="of each of these sessions")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with DevServer(DevServerConfig(headless=True)) as server:
            client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
            bench = Bench(server.address, client, Path(folder), options.rounds)
            report: dict[str, Any] = {
                f"{kind}_{'standby' if standby else 'restart'}": await bench.recovery(
                    kind, standby=standby, repeat=options.repeat
                )
                for kind in KINDS
                for standby in (True, False)
                if options.repeat
            }
            if options.sessions:
                report["false_alarms"] = await bench.false_alarms(options.sessions, options.tool_seconds)
            if options.many:
                report["many"] = await bench.many(MANY_APP, options.many)
                report["many_local"] = await bench.many(MANY_LOCAL_APP, options.many)
    if options.repeat:
        report["worst"] = max(row["turn_worst"] for name, row in report.items() if name.startswith(KINDS))
    print_report(report, table=not options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        run_serving(serve(*sys.argv[2:5]))
    else:
        asyncio.run(main())
