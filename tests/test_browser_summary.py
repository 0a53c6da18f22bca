"""A test run says at its end how many tests did not run for want of a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TESTS = """
import pytest
from tests.browser_summary import NO_BROWSER

@pytest.mark.parametrize("number", [1, 2])
def test_in_a_browser(number):
    pytest.skip(NO_BROWSER)

def test_elsewhere():
    pass

@pytest.mark.skip(reason="as Windows is not here")
def test_of_something_else():
    pass
"""


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "shared"])
def test_the_last_lines_tell_what_did_not_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_pages.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.browser_summary"]
    done = subprocess.run(
        [*command, *options, "-p", "no:cacheprovider", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, told, totals = done.stdout.strip().splitlines()
    assert told.startswith("2 tests in a browser did not run: there is no Chromium")
    assert "1 passed, 3 skipped" in totals
