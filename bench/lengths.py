"""What grows with a session, and what does not: a step of a long one, the first step on a cold worker, a whole turn.

    python -m bench.lengths [--short 100] [--long 5000] [--cold 1000] [--rounds 20] [--turns 50] [--repeat 5] [--json]

Client, server and worker have a process each. The logs are imported. `steps`: turns of `--rounds` rounds of model and
tool in a session of `--short` events and in one of `--long`, by turns; a round's time, and the worker's processor time
for each of its two steps. `cold`: processor time that a fresh worker takes for a turn of one model call in a session of
`--cold` events, and in a new one. `turn`: processor time of all three processes for a new session with such a turn,
one behind the other; `bare` is a workflow of one activity, not sandboxed. Times are medians, in ms. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from google.genai import types

    from bench.processes import connected, cpu_seconds, print_report, process, ready, tell_ready
    from bench.reads import large_log
    from perdure.agents import App, LlmAgent
    from perdure.client import Runner
    from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
    from perdure.serving.dev_server import DevServer, DevServerConfig
    from perdure.serving.event_loop import run_serving, spare_collector
    from perdure.worker import create_workers

APP = "bench_lengths"
_BARE_QUEUE = "bench_lengths_bare"


class Rounds(BaseLlm):
    """Calls a tool as often as the user's message says, and ends the turn then."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield a call, or the end."""
        done = wanted = 0
        for content in reversed(llm_request.contents):
            parts = content.parts or []
            if parts and parts[0].text:
                wanted = int(parts[0].text)
                break
            done += sum(part.function_response is not None for part in parts)
        call = types.Part(function_call=types.FunctionCall(name="look_up", args={"query": "q"}))
        part = call if done < wanted else types.Part(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def look_up(query: str) -> str:
    """Look something up."""
    return query * 200


@activity.defn(name="model")
async def bare_model(size: str) -> str:
    """Return what it was given."""
    return size


@workflow.defn(name="bare_turn_of_one")
class BareTurn:
    """One activity, with a payload of about a model call's size."""

    @workflow.run
    async def run(self) -> None:
        """Run it."""
        await workflow.execute_activity(bare_model, "x" * 700, start_to_close_timeout=timedelta(minutes=1))


async def serve(address: str) -> None:
    """Be the worker of both."""
    client = await connected(address)
    app = App(name=APP, root_agent=LlmAgent(name="agent", model=Rounds("rounds"), tools=[look_up]))
    bare = Worker(
        client,
        task_queue=_BARE_QUEUE,
        workflows=[BareTurn],
        activities=[bare_model],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with AsyncExitStack() as stack:
        for worker in (*create_workers(client, [app]), bare):
            await stack.enter_async_context(worker)
        spare_collector()
        tell_ready()
        await asyncio.Event().wait()


def _all_cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of those that it began, which are alive."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return cpu_seconds(pid) + sum(
        _all_cpu_seconds(int(child)) for file in children for child in file.read_text().split()
    )


class Bench:
    """Runs turns on one server."""

    def __init__(self, address: str, client: Client) -> None:
        self._address = address
        self._client = client
        self._runner = Runner(APP, client, auto_create_session=True)

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[int]:
        """Have a worker until the end of the block; yields its process id."""
        async with process("bench.lengths", "--serve", self._address) as child:
            await ready(child)
            yield child.pid

    async def imported(self, events: int) -> str:
        """Return the id of a session with so many events."""
        session = str(uuid.uuid4())
        await self._runner.import_session(large_log(events), user_id="u", session_id=session)
        return session

    async def turn(self, session: str, rounds: int = 0) -> None:
        """Run one of so many rounds and a model call."""
        async for _ in self._runner.run_async(user_id="u", session_id=session, new_message=str(rounds), live=False):
            pass

    async def steps(self, worker: int, lengths: dict[str, int], rounds: int, repeat: int) -> dict[str, Any]:
        """Return what a round takes in sessions of these lengths, which grow by a few events each time."""
        sessions = {name: await self.imported(events) for name, events in lengths.items()}
        wall, cpu = {name: list[float]() for name in sessions}, {name: list[float]() for name in sessions}
        for index in range(repeat + 1):
            for name, session in sessions.items():
                began, used = time.monotonic(), cpu_seconds(worker)
                await self.turn(session, rounds)
                if index:  # The first one warms up.
                    wall[name].append((time.monotonic() - began) / rounds * 1e3)
                    cpu[name].append((cpu_seconds(worker) - used) / (2 * rounds + 1) * 1e3)
        found = {
            name: {"round": statistics.median(wall[name]), "step_cpu": statistics.median(cpu[name])} for name in wall
        }
        short, long = found["short"], found["long"]
        return {**found, "ratio": long["round"] / short["round"], "cpu_ratio": long["step_cpu"] / short["step_cpu"]}

    async def cold(self, events: int, repeat: int) -> dict[str, float]:
        """Return the processor time of a fresh worker's first turn."""
        async with self.worker():
            sessions = [await self.imported(events), await self.imported(2)]
            for session in sessions:
                await self.turn(session)
        took: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeat):
            for session, found in zip(sessions, took, strict=True):
                async with self.worker() as worker:
                    used = cpu_seconds(worker)
                    await self.turn(session)
                    found.append((cpu_seconds(worker) - used) * 1e3)
        long, new = map(statistics.median, took)
        return {"long": long, "new": new}

    async def bare(self) -> None:
        """Run the bare workflow."""
        await self._client.execute_workflow("bare_turn_of_one", id=f"bare-{uuid.uuid4()}", task_queue=_BARE_QUEUE)

    async def new_session(self) -> None:
        """Begin a session by a turn."""
        await self.turn(str(uuid.uuid4()))

    async def whole(self, turns: int, repeat: int) -> dict[str, float]:
        """Return the processor time of a turn, in all processes."""
        ways: dict[str, Callable[[], Awaitable[None]]] = {"perdure": self.new_session, "bare": self.bare}
        took = {name: list[float]() for name in ways}
        for index in range(repeat + 1):
            for name, way in ways.items():
                used = _all_cpu_seconds(os.getpid())
                for _ in range(turns):
                    await way()
                if index:
                    took[name].append((_all_cpu_seconds(os.getpid()) - used) / turns * 1e3)
        return {name: statistics.median(values) for name, values in took.items()}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    async with DevServer(DevServerConfig(headless=True)) as server:
        bench = Bench(server.address, await connected(server.address))
        async with bench.worker() as worker:
            turn = await bench.whole(options.turns, options.repeat)
            lengths = {"short": options.short, "long": options.long}
            steps = await bench.steps(worker, lengths, options.rounds, options.repeat)
        return {"turn": turn, "steps": steps, "cold": await bench.cold(options.cold, options.repeat)}


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=100, help="events of the short session")
    parser.add_argument("--long", type=int, default=5000, help="events of the long one")
    parser.add_argument("--cold", type=int, default=1000, help="events of the session that a cold worker takes up")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    print_report(await measure(options), table=not options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        run_serving(serve(sys.argv[2]))
    else:
        asyncio.run(main())
