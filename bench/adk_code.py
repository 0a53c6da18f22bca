"""A custom agent's turn, and a graph of ten nodes, on Perdure and on google.adk itself with its session in SQLite.

    python -m bench.adk_code --plugin-python .venv-plugins/bin/python [--rounds 10] [--repeat 5] [--json]

The custom agent runs two sub-agents in each round, as its code says; the graph has eight functions and two agents, one
behind the other. Models answer at once, by a script. One turn at a time, by turns, in one run: google.adk's `Runner`
with `DatabaseSessionService` on SQLite, which keeps the events, and nothing of what has run between them; Perdure on a
development server with its data in a file, where each model call and each function is a step that is kept; and the
graph by Temporal's plug-in, where models are activities, and functions run in the workflow. The others are in an
environment of their own, as for `bench.plugins`. Seconds count from the request to the last event. The last line is
JSON; `slower` is Perdure's time divided by the other's.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

from google.adk.apps.app import App

from bench.adk_agents import make_custom_agent, make_graph
from bench.plugins import SIDES, Turn, compare, other_turn, perdure_turn
from bench.processes import print_report, process, ready
from perdure.adk.loading import as_adk_app
from perdure.agents.adk_app import AdkApp
from perdure.config import ConnectionConfig, connect
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.event_loop import run_serving
from perdure.worker import create_workers

CUSTOM, GRAPH = "bench_custom", "bench_graph"


def make_app(name: str, rounds: int) -> AdkApp:
    """Return one of the two apps, as `perdure worker FOLDER` loads it."""
    root: Any = make_custom_agent(rounds) if name == CUSTOM else make_graph()
    app = as_adk_app(App(name=name, root_agent=root), name)
    assert app is not None, "an App of google.adk is an app"
    return app


async def measure(options: argparse.Namespace, folder: str) -> dict[str, dict[str, float]]:
    """Return the median of each way."""
    rounds, python = options.rounds, options.plugin_python
    async with DevServer(DevServerConfig(headless=True, data_file=Path(folder) / "temporal.db")) as server:
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        custom, graph = create_workers(client, [make_app(CUSTOM, rounds), make_app(GRAPH, rounds)])
        temporal = process(str(SIDES), "temporal", server.address, python=python)
        adk = process(str(SIDES), "adk", folder, python=python)
        async with custom, graph, temporal as plugin, adk as alone:
            await ready(plugin)
            await ready(alone)
            turns: dict[str, Turn] = {
                "perdure_custom": lambda: perdure_turn(client, CUSTOM),
                "adk_custom": lambda: other_turn(alone, rounds, 0),
                "perdure_graph": lambda: perdure_turn(client, GRAPH),
                "adk_graph": lambda: other_turn(alone, 0, 0, graph=True),
                "plugin_graph": lambda: other_turn(plugin, 0, 0, graph=True),
            }
            return await compare(turns, options.repeat)


async def main() -> None:
    """Run the benchmark and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin-python", required=True, help="interpreter that has bench/plugins-requirements.txt")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of the custom agent, two sub-agents each")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    # google.adk warns of each answer without a count of tokens.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        found = await measure(options, folder)
    seconds = {name: way["seconds"] for name, way in found.items()}
    report: dict[str, Any] = {
        "rounds": options.rounds,
        "ms": {name: way * 1e3 for name, way in seconds.items()},
        "history_bytes": {name: way["history_bytes"] for name, way in found.items() if "history_bytes" in way},
        "custom_agent_slower_than_adk": seconds["perdure_custom"] / seconds["adk_custom"],
        "graph_slower_than_adk": seconds["perdure_graph"] / seconds["adk_graph"],
        "graph_slower_than_temporal_plugin": seconds["perdure_graph"] / seconds["plugin_graph"],
    }
    print_report(report, table=not options.json)


if __name__ == "__main__":
    run_serving(main())
