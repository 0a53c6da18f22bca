"""Perdure against Temporal's own ADK plug-in and DBOS's, with a scripted model and a tool that does nothing.

    python -m venv .venv-plugins && .venv-plugins/bin/pip install -r bench/plugins-requirements.txt
    python -m bench.plugins --plugin-python .venv-plugins/bin/python [--rounds 50] [--result-bytes 2048] [--repeat 5]
        [--sessions 0] [--json]

Perdure runs the agent twice, made of its own classes and as an ADK app of the very objects that the plug-ins run. One
turn at a time, by turns, in one run: Perdure and Temporal's plug-in on the same development server, with tools as
activities; Perdure with the tool as a local activity, and with up to 20 steps an activity (`many`), and DBOS's plug-in
with the tool as a step, on SQLite: once with the session in memory, as its documentation has it, where the conversation
ends with the process, and once with the session in ADK's `DatabaseSessionService`, on SQLite too, since Perdure keeps
it as well. All databases are files: ADK has SQLite wait for the disk, Temporal's development server leaves that to the
operating system. Perdure's loop and compression are those of `perdure worker`; the plug-ins have their SDKs' defaults,
asyncio's loop, and gzip on Temporal. With `--sessions N`, as many turns of 5 rounds at once, too: `steps_per_second`
counts model calls and tools. Seconds count from the request to the last event. `history_bytes` is what one turn leaves
in Temporal's history. The last line is JSON; `faster` is the other side's time divided by Perdure's.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import statistics
import tempfile
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent as AdkAgent
from temporalio.client import Client

from bench.adk_agents import ScriptedLlm, look_up
from bench.processes import print_report, process, read_line, ready
from perdure.adk.loading import as_adk_app
from perdure.agents import App, FunctionTool, LlmAgent
from perdure.agents.adk_app import AdkApp
from perdure.client import Runner
from perdure.config import ConnectionConfig, connect
from perdure.messages.keys import SessionKey
from perdure.models.scripted import ScriptedModel
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.event_loop import run_serving, spare_collector
from perdure.worker import create_workers

APP = "bench_plugins"
LOCAL_APP = "bench_plugins_local"
SIDES = Path(__file__).with_name("plugin_sides.py")
ADK_APP = "bench_plugins_adk"
MANY_APP = "bench_plugins_many"
ADK_MANY_APP = "bench_plugins_adk_many"
_MANY = 20
"""Steps an activity, of the ways that take several."""
MANY_ROUNDS = 5
"""Rounds of each of the turns that run at once."""
Turn = Callable[[], Awaitable[dict[str, float]]]


def make_app(name: str, rounds: int, result_bytes: int) -> App:
    steps: list[Any] = [{"calls": [{"name": "look_up", "args": {"size": result_bytes}}]} for _ in range(rounds)]
    model = ScriptedModel([*steps, {"text": "done"}])
    agent = LlmAgent(name="worker", model=model, tools=[FunctionTool(look_up, local=name == LOCAL_APP)])
    return App(name=name, root_agent=agent, steps_per_activity=_MANY if name == MANY_APP else 1)


def make_adk_apps(rounds: int, result_bytes: int) -> list[AdkApp]:
    """Return the agent of the other sides, as `perdure worker FOLDER` loads it, with one step an activity and more."""
    apps: list[AdkApp] = []
    for name in (ADK_APP, ADK_MANY_APP):
        agent = AdkAgent(name="worker", model=ScriptedLlm(model=f"scripted-{rounds}-{result_bytes}"), tools=[look_up])
        app = as_adk_app(agent, name)
        assert app is not None, "an agent of google.adk is an app"
        apps.append(dataclasses.replace(app, steps_per_activity=_MANY if name == ADK_MANY_APP else 1))
    return apps


async def perdure_turn(client: Client, app: str) -> dict[str, float]:
    """Run one turn of Perdure."""
    session = str(uuid.uuid4())
    runner = Runner(app, client)
    start = time.perf_counter()
    await runner.create_session(user_id="u", session_id=session)
    async for _ in runner.run_async(user_id="u", session_id=session, new_message="go", live=False):
        pass
    seconds = time.perf_counter() - start
    history = await client.get_workflow_handle(SessionKey(app, "u", session).workflow_id).fetch_history()
    return {"seconds": seconds, "history_bytes": sum(event.ByteSize() for event in history.events)}


async def at_once(sessions: int, turn: Turn) -> float:
    """Return the seconds that turns take which begin together."""
    start = time.perf_counter()
    await asyncio.gather(*(turn() for _ in range(sessions)))
    return time.perf_counter() - start


async def other_turn(side: Process, rounds: int, result_bytes: int, **more: int) -> dict[str, float]:
    """Have the other side run one turn."""
    assert side.stdin is not None
    side.stdin.write(json.dumps({"rounds": rounds, "result_bytes": result_bytes, **more}).encode() + b"\n")
    await side.stdin.drain()
    while not (line := await read_line(side)).startswith("{"):
        pass
    return json.loads(line)


async def compare(turns: dict[str, Turn], repeat: int) -> dict[str, dict[str, float]]:
    """Return the median of each way, all taken by turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
    for index in range(repeat + 1):
        # Forth and back, so that none always comes after a pause of the server, or after the same other way.
        for name, turn in list(turns.items()) if index % 2 else reversed(turns.items()):
            result = await turn()
            if index:  # The first round warms up.
                found[name].append(result)
    return {name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}


@asynccontextmanager
async def _serving(client: Client, apps: list[AdkApp]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, apps):
            await stack.enter_async_context(worker)
        yield


async def many(client: Client, plugin: Process, sessions: int, size: int, repeat: int) -> dict[str, float]:
    """Return the steps per second of an ADK app on Perdure and on Temporal's plug-in, with many turns at once."""

    async def others() -> float:
        return (await other_turn(plugin, MANY_ROUNDS, size, sessions=sessions))["seconds"]

    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "perdure_adk": lambda: at_once(sessions, lambda: perdure_turn(client, ADK_APP)),
        "perdure_adk_many": lambda: at_once(sessions, lambda: perdure_turn(client, ADK_MANY_APP)),
        "temporal_plugin": others,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(repeat):
        for name, way in list(ways.items()) if index % 2 else reversed(ways.items()):
            found[name].append(await way())
    steps = sessions * (2 * MANY_ROUNDS + 1)
    return {name: steps / statistics.median(seconds) for name, seconds in found.items()}


async def measure(options: argparse.Namespace, folder: str) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return the median of each way, and the steps per second of many turns at once."""
    rounds, size, python = options.rounds, options.result_bytes, options.plugin_python
    # On a file, as the databases of DBOS and ADK are.
    async with DevServer(DevServerConfig(headless=True, data_file=Path(folder) / "temporal.db")) as server:
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        apps = [make_app(name, rounds, size) for name in (APP, LOCAL_APP, MANY_APP)]
        temporal = process(str(SIDES), "temporal", server.address, python=python)
        dbos = process(str(SIDES), "dbos", folder, python=python)
        async with AsyncExitStack() as stack:
            for worker in create_workers(client, apps):
                await stack.enter_async_context(worker)
            plugin, steps = await stack.enter_async_context(temporal), await stack.enter_async_context(dbos)
            spare_collector()
            await ready(plugin)
            await ready(steps)
            on_temporal: dict[str, Turn] = {
                "perdure": lambda: perdure_turn(client, APP),
                "perdure_adk": lambda: perdure_turn(client, ADK_APP),
                "perdure_adk_many": lambda: perdure_turn(client, ADK_MANY_APP),
                "temporal_plugin": lambda: other_turn(plugin, rounds, size),
            }
            on_dbos: dict[str, Turn] = {
                "perdure_local": lambda: perdure_turn(client, LOCAL_APP),
                "perdure_many": lambda: perdure_turn(client, MANY_APP),
                "dbos_plugin": lambda: other_turn(steps, rounds, size),
                "dbos_plugin_kept_session": lambda: other_turn(steps, rounds, size, keep_session=True),
            }
            async with _serving(client, make_adk_apps(rounds, size)):
                ways = await compare(on_temporal, options.repeat) | await compare(on_dbos, options.repeat)
            if not options.sessions:
                return ways, {}
            async with _serving(client, make_adk_apps(MANY_ROUNDS, size)):
                return ways, await many(client, plugin, options.sessions, size, max(options.repeat // 2, 1))


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin-python", required=True, help="interpreter that has bench/plugins-requirements.txt")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--result-bytes", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=0, help="turns at once; 0 leaves that out")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    # google.adk warns of each answer without a count of tokens.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        ways, steps = await measure(options, folder)
    seconds = {name: way["seconds"] for name, way in ways.items()}
    sizes = {name: way["history_bytes"] for name, way in ways.items() if "history_bytes" in way}
    local, plugin, kept = seconds["perdure_local"], seconds["temporal_plugin"], seconds["dbos_plugin_kept_session"]
    report: dict[str, Any] = {
        "rounds": options.rounds,
        "result_bytes": options.result_bytes,
        "ms_per_round": {name: way / options.rounds * 1e3 for name, way in seconds.items()},
        "history_bytes": sizes,
        "steps_per_second": steps,
        "faster_than_temporal_plugin": plugin / seconds["perdure"],
        "adk_app_faster_than_temporal_plugin": plugin / seconds["perdure_adk"],
        "fewer_bytes_than_temporal_plugin": sizes["temporal_plugin"] / sizes["perdure"],
        "adk_app_fewer_bytes_than_temporal_plugin": sizes["temporal_plugin"] / sizes["perdure_adk"],
        "local_faster_than_dbos_plugin": seconds["dbos_plugin"] / local,
        "local_faster_than_dbos_plugin_kept_session": kept / local,
        "many_faster_than_dbos_plugin": seconds["dbos_plugin"] / seconds["perdure_many"],
        "adk_app_many_faster_than_temporal_plugin": plugin / seconds["perdure_adk_many"],
        "adk_app_faster_than_dbos_plugin_kept_session": kept / seconds["perdure_adk"],
    }
    print_report(report, table=not options.json)


if __name__ == "__main__":
    run_serving(main())
