"""What a process leaves undone that crashed is done by the others, and the run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

_FILES = 30

_CRASHES_ONCE = """
import os
import signal
from pathlib import Path

def test_it():
    crashed = Path(__file__).with_name("crashed")
    if not crashed.exists():
        crashed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("file", [15, 29])
def test_all_other_tests_run(tmp_path: Path, file: int) -> None:
    for number in range(_FILES):
        test = _CRASHES_ONCE if number == file else "def test_it():\n    pass\n"
        (tmp_path / f"test_{number:02}.py").write_text(test + "\ndef test_another():\n    pass\n" * (number % 4 > 0))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.crashed", "-n", "3", "--dist", "loadfile"]
    done = subprocess.run(
        [*command, "--no-loadscope-reorder", "."],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    tests = _FILES + sum(number % 4 > 0 for number in range(_FILES))
    assert f"1 failed, {tests} passed" in done.stdout, done.stdout + done.stderr
    assert f"crashed while running 'test_{file:02}.py::test_it'" in done.stdout
