"""Which tests are tried again when they failed, and what none passes with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import retest
from tests.unforgiving import NEVER_AGAIN, is_unforgivable


def run(code: int) -> tuple[str, ...]:
    return (sys.executable, "-c", f"raise SystemExit({code})")


def keep(cache: Path, failed: int, never: tuple[str, ...] = ()) -> Path:
    """Write what pytest's cache has after a run."""
    names = [f"tests/test_it.py::test_{number}" for number in range(failed)]
    for name, value in (("cache/lastfailed", dict.fromkeys(names, True)), (NEVER_AGAIN, never)):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text(json.dumps(value))
    return cache


@pytest.mark.parametrize("code", [0, 1])
def test_what_was_late_is_tried_again_and_told(tmp_path: Path, capfd: pytest.CaptureFixture[str], code: int) -> None:
    assert retest.main(keep(tmp_path, 2), run(code)) == code
    told = capfd.readouterr().err
    assert ("failed at first, and passed alone" in told) == (code == 0)
    assert ("tests/test_it.py::test_1" in told) == (code == 0)


@pytest.mark.parametrize(
    ("failed", "never"),
    [(0, ()), (11, ()), (1, ("tests/test_it.py::test_0",))],
    ids=["none", "eleven", "of a kind"],
)
def test_nothing_else_is_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], failed: int, never: tuple[str, ...]
) -> None:
    assert retest.main(keep(tmp_path, failed, never), run(0)) == 1
    told = capfd.readouterr().err
    assert "no second try" in told
    assert all(f"tests/test_it.py::test_{number}" in told for number in range(failed))


def test_without_a_run_there_is_nothing_to_try_again(tmp_path: Path) -> None:
    assert retest.main(tmp_path, run(0)) == 1


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("E  TimeoutError", False),
        ("E  AssertionError: assert 'running' == 'finished'", False),
        ("E  perdure.errors.SessionStuck: session 'a/u/s' is stuck: its code fails", True),
        ("Failing workflow task: [TMPRL1100] Nondeterminism error: Activity machine does not handle this event", True),
        ("E  temporalio.workflow.NondeterminismError: Workflow activation completion failed", True),
    ],
)
def test_a_failure_of_a_kind_that_no_second_try_mends_is_known_by_its_text(text: str, never: bool) -> None:
    assert is_unforgivable(text) == never


TESTS = """
import logging
import pytest

LINE = "Failing workflow task {'failure': '[TMPRL1100] Nondeterminism error: Activity machine does not handle it'}"

def test_recovered():
    logging.getLogger("temporalio.core").warning(LINE)

@pytest.mark.nondeterminism
def test_about_it():
    logging.getLogger("temporalio.core").warning(LINE)

def test_stuck():
    raise RuntimeError("SessionStuck")

def test_late():
    raise TimeoutError

def test_other():
    logging.getLogger("temporalio.core").warning("Task not found when completing")
"""


@pytest.mark.process
def test_a_test_fails_of_a_history_that_did_not_replay_though_the_worker_recovered(tmp_path: Path) -> None:
    """Also where processes share the tests, as in CI."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  nondeterminism: it is about that\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.unforgiving",
        "-n",
        "2",
        "--rootdir",
        tmp_path,
        tmp_path,
    )
    subprocess.run(command, capture_output=True, check=False)
    never = json.loads((tmp_path / ".pytest_cache" / "v" / NEVER_AGAIN).read_text())
    assert sorted(never) == ["test_it.py::test_recovered", "test_it.py::test_stuck"]
    failed = json.loads((tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed").read_text())
    assert sorted(failed) == ["test_it.py::test_late", "test_it.py::test_recovered", "test_it.py::test_stuck"]
