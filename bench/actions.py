"""What a turn costs where actions are billed, as on Temporal Cloud: a turn of some rounds of model and tool.

    python -m bench.actions [--rounds 5] [--model-seconds 10] [--json]

Counted as https://docs.temporal.io/cloud/actions has it: starts, signals, updates, timers, upserts of search
attributes, each attempt of an activity, and each heartbeat that reaches the server, by the worker's own metrics. The
session is there before; its second turn is counted, for either of the worker's `heartbeats`, `frequent` and `sparse`;
`several` and `several_sparse` take up to 20 steps an activity; `quick` and `quick_several` have models that take no
time, with one step and up to 20. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections import Counter
from typing import Any, Literal

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from bench.processes import print_report
from perdure.agents import App, FunctionTool, LlmAgent, ResumabilityConfig
from perdure.client import Runner
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.models.scripted import ScriptedModel
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.worker import run_workers

_APP = "bench_actions"

_ACTIONS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "starts",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signals",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "updates",
    EventType.EVENT_TYPE_TIMER_STARTED: "timers",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "upserts",
    EventType.EVENT_TYPE_MARKER_RECORDED: "local activities",
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: "activities",
}


def look_up(query: str) -> str:
    """Look something up."""
    return query


def _app(rounds: int, seconds: float) -> App:
    call: Any = {"calls": [{"name": "look_up", "args": {"query": "q"}}], "delay": seconds}
    script = [*([call] * rounds), {"text": "done", "delay": seconds}]
    model = ScriptedModel([*script, *script])
    agent = LlmAgent(name="clerk", model=model, tools=[FunctionTool(look_up)])
    return App(name=_APP, root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))


async def _count(
    address: str, app: App, heartbeats: Literal["frequent", "sparse"] = "frequent", steps: int = 1
) -> dict[str, int]:
    """Return the actions of a session's second turn, by kind."""
    metrics = MetricBuffer(100_000)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=metrics))
    client = await connect(ConnectionConfig(address=address, namespace="default", tls=False, runtime=runtime))
    stop = asyncio.Event()
    config = WorkerConfig(heartbeats=heartbeats, steps_per_activity=steps)
    worker = asyncio.create_task(run_workers(client, [app], config, stop=stop))
    runner, session = Runner(_APP, client), str(uuid.uuid4())
    await runner.create_session(user_id="u", session_id=session)
    before: Counter[str] = Counter()
    for _ in range(2):
        before = await _actions(client, session, metrics)
        async for _ in runner.run_async(user_id="u", session_id=session, new_message="go", live=False):
            pass
    counted = await _actions(client, session, metrics)
    stop.set()
    await worker
    # What was reported is gone from the buffer: the second turn's heartbeats are those that came since.
    beats = counted.pop("heartbeats", 0)
    before.pop("heartbeats", 0)
    found = dict(counted - before) | {"heartbeats": beats}
    return {**found, "actions": sum(found.values())}


async def _actions(client: Client, session: str, metrics: MetricBuffer) -> Counter[str]:
    handle = client.get_workflow_handle(f"{_APP}/u/{session}")
    found = Counter(
        [_ACTIONS[event.event_type] async for event in handle.fetch_history_events() if event.event_type in _ACTIONS]
    )
    found["heartbeats"] = sum(
        int(update.value)
        for update in metrics.retrieve_updates()
        if update.metric.name == "temporal_request"
        and update.attributes.get("operation") == "RecordActivityTaskHeartbeat"
    )
    return found


async def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Return the benchmark's report."""
    async with DevServer(DevServerConfig(headless=True)) as server:
        slow, quick = _app(rounds, seconds), _app(rounds, 0.0)
        return {
            "rounds": rounds,
            "model_seconds": seconds,
            "frequent": await _count(server.address, slow),
            "sparse": await _count(server.address, slow, "sparse"),
            "several": await _count(server.address, slow, steps=20),
            "several_sparse": await _count(server.address, slow, "sparse", 20),
            "quick": await _count(server.address, quick),
            "quick_several": await _count(server.address, quick, steps=20),
        }


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model-seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    arguments = parser.parse_args()
    print_report(await measure(arguments.rounds, arguments.model_seconds), table=not arguments.json)


if __name__ == "__main__":
    asyncio.run(main())
