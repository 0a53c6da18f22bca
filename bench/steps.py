"""Time of a model+tool step against a bare Temporal workflow that runs as many no-op activities of the same sizes.

    python -m bench.steps [--rounds 50] [--repeat 5] [--sessions 20] [--result-bytes 200] [--json]

Both run on the same server and in the same process, by turns. `latency` is one session at a time, from the client's
request to the last event; `throughput` is many at once. The last line is the result: ratios of Perdure to the bare
workflow, of times for latency and of steps per second for throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from perdure.agents.definitions import App, LlmAgent
    from perdure.client import Runner
    from perdure.devserver import DevServer
    from perdure.models.scripted import ScriptedModel
    from perdure.payloads import data_converter
    from perdure.worker import create_workers

APP = "bench_steps"


@activity.defn(name="model")
async def bare_model(size: str) -> str:
    return size


@activity.defn(name="tool")
async def bare_tool(size: str) -> str:
    return size


@workflow.defn(name="bare")
class BareWorkflow:
    """As many activities as the agent's run needs, with payloads of the same sizes and nothing else."""

    @workflow.run
    async def run(self, rounds: int, model_payload: str, tool_payload: str) -> None:
        timeout = timedelta(minutes=1)
        for _ in range(rounds):
            await workflow.execute_activity(bare_model, model_payload, start_to_close_timeout=timeout)
            await workflow.execute_activity(bare_tool, tool_payload, start_to_close_timeout=timeout)
        await workflow.execute_activity(bare_model, model_payload, start_to_close_timeout=timeout)


@dataclass(frozen=True)
class Result:
    """Seconds, for one way of doing the same rounds."""

    bare: float
    perdure: float


def make_app(rounds: int, result_bytes: int) -> App:
    text = "x" * result_bytes

    def look_up(query: str) -> str:
        """Look something up."""
        return text

    steps: list[Any] = [{"calls": [{"name": "look_up", "args": {"query": "q"}}]} for _ in range(rounds)]
    agent = LlmAgent(name="worker", model=ScriptedModel([*steps, {"text": "done"}]), tools=[look_up])
    return App(name=APP, root_agent=agent)


class Bench:
    """Runs the two ways on one server."""

    def __init__(self, client: Client, rounds: int, result_bytes: int) -> None:
        self._client = client
        self._runner = Runner(APP, client)
        self._rounds = rounds
        # What Perdure's activities carry: about 700 bytes besides the result, in and out.
        self._model_payload = "m" * (700 + result_bytes)
        self._tool_payload = "t" * (350 + result_bytes)

    async def bare(self) -> None:
        await self._client.execute_workflow(
            "bare",
            args=[self._rounds, self._model_payload, self._tool_payload],
            id=f"bare-{uuid.uuid4()}",
            task_queue="bench_bare",
        )

    async def perdure(self) -> None:
        session = str(uuid.uuid4())
        await self._runner.create_session(user_id="u", session_id=session)
        async for _ in self._runner.run_async(user_id="u", session_id=session, new_message="go"):
            pass

    async def compare(self, repeat: int, sessions: int) -> Result:
        """Return the median seconds of each way, the two taken by turns."""
        times: dict[str, list[float]] = {"bare": [], "perdure": []}
        for index in range(repeat + 1):
            for name, run in (("bare", self.bare), ("perdure", self.perdure)):
                start = time.perf_counter()
                await asyncio.gather(*(run() for _ in range(sessions)))
                if index:  # The first round warms up.
                    times[name].append(time.perf_counter() - start)
        return Result(**{name: statistics.median(values) for name, values in times.items()})


async def main() -> None:
    """Run the benchmark and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--result-bytes", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    async with DevServer() as server:
        client = await Client.connect(server.address, data_converter=data_converter)
        [worker] = create_workers(client, [make_app(options.rounds, options.result_bytes)])
        bare = Worker(client, task_queue="bench_bare", workflows=[BareWorkflow], activities=[bare_model, bare_tool])
        async with worker, bare:
            bench = Bench(client, options.rounds, options.result_bytes)
            latency = await bench.compare(options.repeat, 1)
            many = await bench.compare(max(1, options.repeat // 2), options.sessions)
    steps = options.rounds
    report = {
        "rounds": steps,
        "latency_ms_per_step": {"bare": latency.bare / steps * 1e3, "perdure": latency.perdure / steps * 1e3},
        "latency_ratio": latency.perdure / latency.bare,
        "steps_per_second": {
            "bare": steps * options.sessions / many.bare,
            "perdure": steps * options.sessions / many.perdure,
        },
        "throughput_ratio": many.bare / many.perdure,
    }
    if not options.json:
        for name, value in report.items():
            print(f"{name:22} {value}")
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main())
