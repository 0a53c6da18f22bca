"""The goals of speed and cost, measured side by side in one run: each row's figure, its goal, and whether it is met.

    python -m bench.goals [--plugin-python PATH] [--quick] [--only NAME …] [--json]

Runs the benchmarks that it needs, one behind the other, with nothing beside them: over half an hour, or some minutes
with `--quick`, whose figures say little. Without the interpreter of `bench.plugins` its rows are left out. `--only
steps` measures the rows of that benchmark, whose own description says what is counted. Figures are medians of five, by
turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bench.processes import print_report, process, read_line

Report = dict[str, Any]

_RUNS: dict[str, tuple[str, str]] = {
    "steps": ("--rounds 50 --repeat 5 --sessions 10", "--rounds 10 --repeat 1 --sessions 2"),
    "plugins": ("--rounds 50 --repeat 5 --sessions 200", "--rounds 5 --repeat 1 --sessions 5"),
    "scale": ("--sessions 200 --repeat 5 --paused 500", "--sessions 10 --repeat 1 --paused 20 --at-once 5"),
    "lengths": ("", "--short 20 --long 200 --cold 100 --rounds 3 --turns 3 --repeat 1"),
    "waiting": ("--sessions 10000", "--sessions 20 --repeat 1"),
    "actions": ("", "--rounds 2 --model-seconds 0.1"),
    "recovery": ("--repeat 5 --sessions 0 --many 0", "--repeat 1 --sessions 0 --many 0"),
}
"""What each benchmark is given, and what for a quick look."""


@dataclass(frozen=True)
class Goal:
    """A figure of a benchmark's report, and how much or how little it is to be."""

    what: str
    bench: str
    figure: Callable[[Report], float]
    sign: Literal["≤", "≥"]
    least: float

    def row(self, report: Report) -> dict[str, Any]:
        """Return the figure beside the goal."""
        found = self.figure(report)
        met = (operator.le if self.sign == "≤" else operator.ge)(found, self.least)
        return {
            "what": self.what,
            "bench": self.bench,
            "figure": found,
            "goal": f"{self.sign} {self.least:g}",
            "met": met,
        }


def _plugin_speed(report: Report) -> float:
    speed = report["steps_per_second"]
    return speed["perdure_adk_many"] / speed["temporal_plugin"]


def _worst_of_several(report: Report) -> float:
    return max(report[f"several_{how}"]["turn_worst"] for how in ("standby", "restart"))


def _twice(report: Report) -> float:
    return sum(report[f"several_{how}"]["twice"] for how in ("standby", "restart"))


GOALS = (
    Goal("a round, 20 steps an activity, to bare", "steps", lambda r: r["latency_ratio_many"], "≤", 0.40),
    Goal(
        "the same, to DBOS's plug-in, its session in memory",
        "plugins",
        lambda r: 1 / r["many_faster_than_dbos_plugin"],
        "≤",
        0.65,
    ),
    Goal(
        "sessions at once, 20 steps an activity, steps a second to bare-best",
        "scale",
        lambda r: r["throughput"]["to_best"]["many"],
        "≥",
        1.15,
    ),
    Goal("the same of an ADK app, to Temporal's ADK plug-in", "plugins", _plugin_speed, "≥", 2.0),
    Goal(
        "sessions at once, one step an activity, steps a second to bare",
        "scale",
        lambda r: r["throughput"]["ratio"]["awaited"],
        "≥",
        1.0,
    ),
    Goal("a round, one step an activity, to bare-best", "steps", lambda r: r["to_best"]["perdure"], "≤", 1.15),
    Goal(
        "worker's processor time a step, one step an activity, ms",
        "scale",
        lambda r: r["throughput"]["awaited"]["worker_cpu_ms_per_step"],
        "≤",
        4.2,
    ),
    Goal("a round at 5,000 events to one at 100", "lengths", lambda r: r["steps"]["ratio"], "≤", 1.3),
    Goal(
        "first turn of 1,000 events on a cold worker, processor, ms", "lengths", lambda r: r["cold"]["long"], "≤", 500
    ),
    Goal("a new session's turn, processor of all processes, ms", "lengths", lambda r: r["turn"]["perdure"], "≤", 22),
    Goal("10,000 waiting sessions: the first page, s", "waiting", lambda r: r["first"]["seconds"], "≤", 0.5),
    Goal("10,000 waiting sessions: all of them, s", "waiting", lambda r: r["every"]["seconds"], "≤", 5.0),
    Goal("actions of a turn of 5 rounds, models of 10 s", "actions", lambda r: r["frequent"]["actions"], "≤", 45),
    Goal("the same with sparse heartbeats", "actions", lambda r: r["sparse"]["actions"], "≤", 25),
    Goal(
        "a paused session in the worker's cache, KB", "scale", lambda r: r["paused"]["kb_per_paused_session"], "≤", 75
    ),
    Goal("a turn goes on after a kill, 20 steps an activity, worst, s", "recovery", _worst_of_several, "≤", 5.0),
    Goal("kept steps that ran twice", "recovery", _twice, "≤", 0),
)


async def run(bench: str, arguments: list[str]) -> Report:
    """Run a benchmark; returns its report."""
    line = "{}"
    async with process(f"bench.{bench}", *arguments, "--json") as child:
        while not (line := await read_line(child)).startswith("{"):
            pass
        await child.wait()
    return json.loads(line)


async def measure(only: list[str], plugin_python: str | None, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each goal that is measured."""
    reports: dict[str, Report] = {}
    for bench, (usual, small) in _RUNS.items():
        if (only and bench not in only) or (bench == "plugins" and plugin_python is None):
            continue
        arguments = (small if quick else usual).split()
        if bench == "plugins" and plugin_python is not None:
            arguments += ["--plugin-python", plugin_python]
        reports[bench] = await run(bench, arguments)
    return [goal.row(reports[goal.bench]) for goal in GOALS if goal.bench in reports]


async def main() -> None:
    """Measure, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin-python", help="interpreter that has bench/plugins-requirements.txt")
    parser.add_argument("--quick", action="store_true", help="tiny numbers: whether it runs, not how fast")
    parser.add_argument("--only", nargs="+", choices=list(_RUNS), default=[], help="some of the benchmarks")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args()
    rows = await measure(options.only, options.plugin_python, quick=options.quick)
    if not options.json:
        for row in rows:
            figure = f"{row['figure']:.4g}"
            met = "met" if row["met"] else "missed"
            print(f"{row['what']:70} {figure:>8}   {row['goal']:>8}   {met:6}   bench.{row['bench']}")
    print_report({"goals": rows}, table=False)


if __name__ == "__main__":
    asyncio.run(main())
