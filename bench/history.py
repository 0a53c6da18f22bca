"""How a turn's history grows with its rounds: bytes and events of history against the bytes of the events themselves.

    python -m bench.history [--rounds 25,50,100,200,400] [--result-bytes 5120] [--conversation-bytes 0]
                            [--cache-bytes 64000000] [--sessions-cached 1000] [--picture docs/history.svg] [--json]

A round is a model call and a tool call whose result has so many bytes. The last line is the result:
`{"rows": [{"rounds", "history_bytes", "history_events", "event_bytes", "seconds", "runs"}], "slope"}`, where the slope
is that of the bytes of history over the rounds, both as logarithms.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import string
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client

from perdure.agents.definitions import App, LlmAgent
from perdure.agents.tools import ToolContext
from perdure.client import Runner
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.messages.keys import SessionKey
from perdure.models.scripted import ScriptedModel
from perdure.serving.dev_server import DevServer
from perdure.serving.event_loop import run_serving
from perdure.worker import create_workers

Row = dict[str, float]


def make_app(name: str, rounds: int, result_bytes: int) -> App:
    def look_up(query: str, tool_context: ToolContext) -> str:
        """Look something up."""
        # No two results are alike, and none packs well: as good as text for the sizes, and worse for what is packed.
        return noise(result_bytes, tool_context.function_call_id)

    steps: list[Any] = [{"calls": [{"name": "look_up", "args": {"query": f"q{n}"}}]} for n in range(rounds)]
    agent = LlmAgent(name="worker", model=ScriptedModel([*steps, {"text": "done"}]), tools=[look_up])
    return App(name=name, root_agent=agent)


def noise(size: int, seed: str) -> str:
    return "".join(random.Random(seed).choices(string.ascii_letters + "     ", k=size))


async def measure(client: Client, rounds: int, options: argparse.Namespace) -> Row:
    """Run one turn and return its row."""
    name = f"bench_history_{rounds}"
    runner = Runner(name, client)
    config = WorkerConfig(journal_cache_bytes=options.cache_bytes, max_cached_workflows=options.sessions_cached)
    [worker] = create_workers(client, [make_app(name, rounds, options.result_bytes)], config)
    who: Any = {"user_id": "u", "session_id": str(uuid.uuid4())}
    async with worker:
        await runner.create_session(**who)
        began = time.perf_counter()
        message = "go " + noise(options.conversation_bytes, "conversation")
        events = [event async for event in runner.run_async(**who, new_message=message)]
        seconds = time.perf_counter() - began
        assert events[-1].text == "done", "the turn did not end as scripted"
        logged = [event async for event in runner.events(**who)]
    size, length, runs = await histories(client, SessionKey(name, "u", who["session_id"]).workflow_id)
    return {
        "rounds": rounds,
        "history_bytes": size,
        "history_events": length,
        "event_bytes": sum(len(event.to_json().encode()) for event in logged),
        "seconds": round(seconds, 2),
        "runs": runs,
    }


async def histories(client: Client, id: str) -> tuple[int, int, int]:
    """Return bytes and events of the histories of all of a workflow's runs, and the number of runs."""
    size = length = runs = 0
    run_id: str | None = None
    while True:
        description = await client.get_workflow_handle(id, run_id=run_id).describe()
        runs += 1
        size += description.raw_description.workflow_execution_info.history_size_bytes
        length += description.history_length
        history = client.get_workflow_handle(id, run_id=description.run_id).fetch_history_events(page_size=1)
        started = (await anext(history)).workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
        if not run_id:
            return size, length, runs


def slope(rows: Sequence[Row]) -> float | None:
    """Return the slope of history bytes over rounds, log-log, by least squares."""
    if len(rows) < 2:
        return None
    x, y = [math.log(row["rounds"]) for row in rows], [math.log(row["history_bytes"]) for row in rows]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the curve as a picture: bytes of history, and of the events themselves, over the rounds."""
    width, height, left, bottom = 640, 360, 70, 40
    most_x, most_y = max(row["rounds"] for row in rows), max(row["history_bytes"] for row in rows) * 1.1

    def point(row: Row, key: str) -> str:
        x = left + (width - left - 20) * row["rounds"] / most_x
        return f"{x:.1f},{height - bottom - (height - bottom - 20) * row[key] / most_y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} 20V{height - bottom}H{width - 20}" fill="none" stroke="#444"/>',
    ]
    for share in (0.25, 0.5, 0.75, 1.0):
        y, x = height - bottom - (height - bottom - 20) * share, left + (width - left - 20) * share
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{most_y * share / 1e6:.1f} MB</text>')
        parts.append(f'<text x="{x:.0f}" y="{height - bottom + 16}" text-anchor="middle">{most_x * share:.0f}</text>')
    for key, colour, label in (("history_bytes", "#1f6feb", "history"), ("event_bytes", "#8b949e", "events")):
        line = " ".join(point(row, key) for row in rows)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = point(rows[-1], key).split(",")
        parts.append(f'<text x="{x}" y="{float(y) - 6:.1f}" text-anchor="end" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{width // 2}" y="{height - 6}" text-anchor="middle">rounds of one turn</text></svg>')
    path.write_text("\n".join(parts) + "\n")


async def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark, print a table and the result as JSON, and return the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", default="25,50,100,200,400")
    parser.add_argument("--result-bytes", type=int, default=5120)
    parser.add_argument("--conversation-bytes", type=int, default=0, help="size of the message that starts the turn")
    parser.add_argument("--cache-bytes", type=int, default=64_000_000, help="the worker's cache of journals")
    parser.add_argument("--sessions-cached", type=int, default=1000, help="0: each step replays")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", action="store_true", help="no table")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    async with DevServer() as server:
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        if not options.json:
            print(
                f"{'rounds':>7} {'history':>12} {'events':>12} {'ratio':>6} {'history events':>15} {'s':>8} {'runs':>5}"
            )
        for rounds in map(int, options.rounds.split(",")):
            row = await measure(client, rounds, options)
            rows.append(row)
            if not options.json:
                ratio = row["history_bytes"] / row["event_bytes"]
                print(
                    f"{rounds:>7} {row['history_bytes']:>12,} {row['event_bytes']:>12,} {ratio:>6.2f}"
                    f" {row['history_events']:>15,} {row['seconds']:>8.1f} {row['runs']:>5}",
                    flush=True,
                )
    if options.picture is not None:
        draw(rows, options.picture)
    report = {"rows": rows, "slope": slope(rows)}
    print(json.dumps(report))
    return report


if __name__ == "__main__":
    run_serving(main())
