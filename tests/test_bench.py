"""The benchmarks run, with tiny numbers: what they measure is for `bench/README.md`, not for a test."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from bench.goals import GOALS
from bench.processes import percentile, print_report
from bench.scale import hundred_thousand

pytestmark = pytest.mark.server


async def run(*arguments: str) -> dict[str, Any]:
    """Run a benchmark; returns its last line."""
    command = [sys.executable, "-m", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(300)
async def test_history(tmp_path: Path) -> None:
    """Bytes grow with the rounds, not with their square; the curve is drawn."""
    picture = tmp_path / "history.svg"
    report = await run("bench.history", "--rounds", "4,16", "--result-bytes", "1000", "--picture", str(picture))
    assert [row["rounds"] for row in report["rows"]] == [4, 16]
    assert set(report["rows"][0]) == {"rounds", "history_bytes", "history_events", "event_bytes", "seconds", "runs"}
    assert report["slope"] < 1.1
    assert picture.read_text().startswith("<svg")


@pytest.mark.timeout(300)
async def test_steps() -> None:
    report = await run("bench.steps", "--rounds", "2", "--repeat", "1", "--sessions", "2")
    assert report["rounds"] == 2
    assert report["latency_ratio"] > 0
    assert set(report["steps_per_second"]) == {"bare", "bare_best", "perdure", "followed", "local", "many"}


@pytest.mark.timeout(300)
async def test_scale() -> None:
    report = await run("bench.scale", "--sessions", "3", "--repeat", "1", "--paused", "0")
    assert set(report["throughput"]["ratio"]) == {"bare_best", "whole", "turn", "awaited", "local", "many"}
    assert all(ratio > 0 for ratio in report["throughput"]["ratio"].values())


@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("PERDURE_SLOW_TESTS"), reason="slow")
async def test_scale_of_paused_sessions() -> None:
    report = await run("bench.scale", "--sessions", "0", "--paused", "8", "--cached", "2", "--at-once", "4")
    assert (report["paused"]["sessions"], report["evicted"]["sessions"]) == (8, 8)
    assert 0 < report["evicted"]["answer_to_text_median"] <= report["evicted"]["answer_to_text_p99"]


@pytest.mark.timeout(300)
async def test_streaming() -> None:
    """Tokens arrive, from this process and from another, and history gains no event."""
    report = await run("bench.streaming", "--tokens", "10", "--followers", "3", "--burst", "50")
    assert set(report["latency"]) == {"one_process", "two_processes", "followers"}
    assert all(0 <= one["arrived"] <= 1 for one in report["latency"].values())
    assert report["latency"]["one_process"]["arrived"] > 0
    assert report["history_events_added"] == 0
    # That it is streamed stands in the request, and in the journal.
    assert 0 < report["history_bytes_added"] < 200


@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("PERDURE_SLOW_TESTS"), reason="slow")
async def test_followers() -> None:
    """Each follower gets every event, and following writes no history."""
    small = ("--followers", "6", "--sessions", "2", "--rounds", "2", "--repeat", "1")
    report = await run("bench.followers", *small)
    assert report["events"] == {"seen": 36, "expected": 36}
    # A workflow task more or less: whether the message came before the first one was through.
    assert abs(report["history_events"]["followed"] - report["history_events"]["alone"]) <= 3
    assert report["ratio"] > 0


@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("PERDURE_SLOW_TESTS"), reason="slow")
async def test_recovery() -> None:
    """A turn goes on after each kind of kill, and before the timeouts that other systems have."""
    small = ("--sessions", "3", "--tool-seconds", "1", "--many", "3", "--rounds", "2")
    report = await run("bench.recovery", "--repeat", "1", *small)
    kills = {f"{step}_{how}" for step in ("model", "tool", "local", "several") for how in ("standby", "restart")}
    assert set(report) == kills | {"false_alarms", "many", "many_local", "worst"}
    assert all(0 < report[kill]["step_worst"] <= report[kill]["turn_worst"] for kill in kills)
    assert report["false_alarms"]["ran_again"] == 0


@pytest.mark.timeout(300)
async def test_reads() -> None:
    """A session is read, and as soon as it is, with no worker, too."""
    report = await run("bench.reads", "--events", "20", "--repeat", "1")
    assert all(0 < report[way] < 20_000 for way in ("cold_all", "cold", "warm", "behind_a_turn", "no_worker"))


@pytest.mark.timeout(300)
async def test_workers() -> None:
    report = await run("bench.workers", "--workers", "2", "--sessions", "3", "--rounds", "2")
    assert set(report) == {"sticky_1_s", "sticky_2_s"}
    assert all(row["steps_per_second"] > 0 for row in report.values())


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    "PERDURE_PLUGIN_PYTHON" not in os.environ, reason="PERDURE_PLUGIN_PYTHON names no interpreter with the plug-ins"
)
async def test_plugins() -> None:
    python = os.environ["PERDURE_PLUGIN_PYTHON"]
    report = await run("bench.plugins", "--plugin-python", python, "--rounds", "3", "--repeat", "1", "--sessions", "2")
    assert report["fewer_bytes_than_temporal_plugin"] > 1
    assert report["steps_per_second"].keys() == {"perdure_adk", "perdure_adk_many", "temporal_plugin"}


def test_reports_end_with_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_report({"a": {"b": 1.23456789}, "c": [1, 2.0]}, table=True)
    table, line = capsys.readouterr().out.strip().rsplit("\n", 1)
    assert json.loads(line) == {"a": {"b": 1.235}, "c": [1, 2.0]}
    assert table.split() == ["a.b", "1.235", "c", "[1,", "2.0]"]


def test_what_is_computed_from_measurements() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 0.5) == 50.0
    way = {"kb_per_paused_session": 100.0, "answer_all_seconds": 10.0, "sessions": 1000}
    cost = hundred_thousand(way, way | {"kb_per_paused_session": -1.0})
    assert (round(cost["cached_gb"], 1), cost["evicted_gb"]) == (9.5, 0.0)
    assert round(cost["answer_all_hours_cached"] * 3600) == 1000


@pytest.mark.timeout(300)
async def test_lengths() -> None:
    sizes = ("--short", "10", "--long", "40", "--cold", "20", "--rounds", "2", "--turns", "2", "--repeat", "1")
    report = await run("bench.lengths", *sizes)
    assert set(report) == {"turn", "steps", "cold"}
    assert all(value > 0 for value in (*report["turn"].values(), report["steps"]["ratio"], *report["cold"].values()))


@pytest.mark.timeout(300)
async def test_goals() -> None:
    report = await run("bench.goals", "--quick", "--only", "steps", "actions")
    assert [row["goal"] for row in report["goals"]] == ["≤ 0.4", "≤ 1.15", "≤ 45", "≤ 25"]
    assert all(row["figure"] > 0 and row["met"] in (True, False) for row in report["goals"])


def test_a_goal_is_met_at_its_bound() -> None:
    """Of those where less is better, and of those where more is."""
    rows = {goal.sign: goal for goal in GOALS}
    for sign, off in (("≤", 1.01), ("≥", 0.99)):
        goal = dataclasses.replace(rows[sign], figure=itemgetter("figure"), least=2.0)
        assert goal.row({"figure": 2.0})["met"]
        assert not goal.row({"figure": 2.0 * off})["met"]
