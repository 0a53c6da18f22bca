"""Time of a model+tool step against a bare Temporal workflow that runs as many no-op activities of the same sizes.

    python -m bench.steps [--rounds 50] [--repeat 5] [--sessions 20] [--result-bytes 200] [--json]

All run on the same server and in the same process, by turns. `latency` is one session at a time, from the client's
request to the last event; `throughput` is many at once. `bare` is a workflow in the SDK's sandbox with the SDK's own
client, which compresses; `bare_best` has neither. `perdure`, `local` (the tool is a local activity) and `many` (up to
20 steps an activity) read the events when the turn has ended, as the bare workflow's result is; `followed` reads them
as they are logged. The last line is the result: ratios of Perdure to `bare`, of times for latency, of steps per second
for throughput, and of processor time of the process that holds client, worker and follower, which other load disturbs
least; `to_best` has those of times to `bare_best`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from bench.processes import print_report
    from perdure.agents.definitions import App, LlmAgent
    from perdure.agents.tools import FunctionTool
    from perdure.client import Runner
    from perdure.config import ConnectionConfig, connect
    from perdure.models.scripted import ScriptedModel
    from perdure.serving.dev_server import DevServer
    from perdure.serving.event_loop import run_serving, spare_collector
    from perdure.worker import create_workers

APP = "bench_steps"
LOCAL_APP = "bench_steps_local"
MANY_APP = "bench_steps_many"
BARE, BARE_BEST = "bench_bare", "bench_bare_best"
_MANY = 20


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
    """What one way of doing the rounds took, in seconds."""

    wall: float
    cpu: float


def make_app(name: str, rounds: int, result_bytes: int) -> App:
    text = "x" * result_bytes

    def look_up(query: str) -> str:
        """Look something up."""
        return text

    steps: list[Any] = [{"calls": [{"name": "look_up", "args": {"query": "q"}}]} for _ in range(rounds)]
    tool = FunctionTool(look_up, local=name == LOCAL_APP)
    agent = LlmAgent(name="worker", model=ScriptedModel([*steps, {"text": "done"}]), tools=[tool])
    return App(name=name, root_agent=agent, steps_per_activity=_MANY if name == MANY_APP else 1)


class Bench:
    """Runs the ways on one server."""

    def __init__(self, client: Client, bare: Client, rounds: int, result_bytes: int) -> None:
        self._client = client
        self._bare_client = bare
        self._runners = {name: Runner(name, client) for name in (APP, LOCAL_APP, MANY_APP)}
        self._rounds = rounds
        # What Perdure's activities carry: about 700 bytes besides the result, in and out.
        self._model_payload = "m" * (700 + result_bytes)
        self._tool_payload = "t" * (350 + result_bytes)

    async def bare(self) -> None:
        await self._run_bare(self._bare_client, BARE)

    async def bare_best(self) -> None:
        await self._run_bare(self._client, BARE_BEST)

    async def _run_bare(self, client: Client, queue: str) -> None:
        payloads = [self._rounds, self._model_payload, self._tool_payload]
        await client.execute_workflow("bare", args=payloads, id=f"bare-{uuid.uuid4()}", task_queue=queue)

    async def perdure(self, app: str = APP, *, live: bool = False) -> None:
        session = str(uuid.uuid4())
        runner = self._runners[app]
        await runner.create_session(user_id="u", session_id=session)
        async for _ in runner.run_async(user_id="u", session_id=session, new_message="go", live=live):
            pass

    async def followed(self) -> None:
        await self.perdure(live=True)

    async def local(self) -> None:
        await self.perdure(LOCAL_APP)

    async def many(self) -> None:
        await self.perdure(MANY_APP)

    async def compare(self, repeat: int, sessions: int) -> dict[str, Result]:
        """Return the median of each way, all taken by turns."""
        ways = {
            "bare": self.bare,
            "bare_best": self.bare_best,
            "perdure": self.perdure,
            "followed": self.followed,
            "local": self.local,
            "many": self.many,
        }
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for index in range(repeat + 1):
            for name, run in ways.items():
                start, used = time.perf_counter(), time.process_time()
                await asyncio.gather(*(run() for _ in range(sessions)))
                if index:  # The first round warms up.
                    wall[name].append(time.perf_counter() - start)
                    cpu[name].append(time.process_time() - used)
        return {name: Result(statistics.median(wall[name]), statistics.median(cpu[name])) for name in ways}


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
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        apps = [make_app(name, options.rounds, options.result_bytes) for name in (APP, LOCAL_APP, MANY_APP)]
        workers = create_workers(client, apps)
        defaults, activities = await Client.connect(server.address), [bare_model, bare_tool]
        bare = Worker(defaults, task_queue=BARE, workflows=[BareWorkflow], activities=activities)
        best = Worker(
            client,
            task_queue=BARE_BEST,
            workflows=[BareWorkflow],
            activities=activities,
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with AsyncExitStack() as stack:
            for worker in (*workers, bare, best):
                await stack.enter_async_context(worker)
            spare_collector()
            bench = Bench(client, defaults, options.rounds, options.result_bytes)
            latency = await bench.compare(options.repeat, 1)
            at_once = await bench.compare(max(1, options.repeat // 2), options.sessions)
    steps = options.rounds
    report = {
        "rounds": steps,
        "latency_ms_per_step": {name: result.wall / steps * 1e3 for name, result in latency.items()},
        "latency_ratio": latency["perdure"].wall / latency["bare"].wall,
        "latency_ratio_followed": latency["followed"].wall / latency["bare"].wall,
        "latency_ratio_local": latency["local"].wall / latency["bare"].wall,
        "latency_ratio_many": latency["many"].wall / latency["bare"].wall,
        "to_best": {name: result.wall / latency["bare_best"].wall for name, result in latency.items()},
        "cpu_ms_per_step": {name: result.cpu / steps * 1e3 for name, result in latency.items()},
        "cpu_ratio": latency["perdure"].cpu / latency["bare"].cpu,
        "steps_per_second": {name: steps * options.sessions / result.wall for name, result in at_once.items()},
        "throughput_ratio": {name: at_once["bare"].wall / result.wall for name, result in at_once.items()},
    }
    print_report(report, table=not options.json)


if __name__ == "__main__":
    run_serving(main())
