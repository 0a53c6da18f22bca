"""The blocks of docs/testing.md run as they are printed, each as a test file beside the README's app."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_pages import TRAVEL

PAGE = Path(__file__).parent.parent.parent / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(240)
def test_every_block_runs(tmp_path: Path) -> None:
    (tmp_path / "travel").mkdir()
    (tmp_path / "travel" / "agent.py").write_text(TRAVEL.text, encoding="utf-8")
    for number, block in enumerate(BLOCKS, start=1):
        (tmp_path / f"test_block_{number}.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path), "-W", "error"]
    command += ["-W", "ignore:The configuration option:pytest.PytestDeprecationWarning"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert f"{len(BLOCKS)} passed" in done.stdout, done.stdout + done.stderr
    assert len(BLOCKS) == 4
