"""A test that its timeout does not end, or whose clean-up waits, ends its process, and the others of its run go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

_SWALLOWED = """
import time

def test_it():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""

_CLEAN_UP = """
import threading

import pytest

@pytest.fixture
def waits():
    yield
    threading.Event().wait()

def test_it(waits):
    threading.Event().wait()
"""


@pytest.mark.parametrize("hung", [_SWALLOWED, _CLEAN_UP])
def test_it_is_ended_told_and_the_others_run(tmp_path: Path, hung: str) -> None:
    (tmp_path / "test_hung.py").write_text(hung)
    (tmp_path / "test_other.py").write_text("import pytest\n\n@pytest.mark.timeout(5)\ndef test_it():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nhung_after = 1\ntimeout = 1\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.hung", "-n", "2", "--max-worker-restart", "0", "."]
    repository = str(Path(__file__).parent.parent)
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": repository}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert " failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running 'test_hung.py::test_it'" in done.stdout
    assert 'test_hung.py", line' in done.stderr
