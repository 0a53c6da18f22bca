"""The processes that serve run on uvloop where it is, and on asyncio's own loop elsewhere."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.serving import event_loop

TARGET = """
import asyncio
raise RuntimeError(f"loaded by {type(asyncio.get_running_loop()).__module__}")
"""


needs_uvloop = pytest.mark.skipif(event_loop.new_event_loop is None, reason="uvloop is not for this platform")


async def _loop() -> str:
    return type(asyncio.get_running_loop()).__module__


@needs_uvloop
def test_what_a_coroutine_returns_comes_from_a_loop_of_uvloop() -> None:
    assert event_loop.run_serving(_loop()) == "uvloop"


def test_without_uvloop_it_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "new_event_loop", None)
    assert event_loop.run_serving(_loop()).startswith("asyncio.")


def test_asyncios_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(event_loop.VARIABLE, "asyncio")
    assert event_loop.run_serving(_loop()).startswith("asyncio.")


@needs_uvloop
@pytest.mark.process
@pytest.mark.parametrize("command", ["worker", "dev", "api"])
def test_the_commands_that_serve_run_on_it(tmp_path: Path, command: str) -> None:
    target = tmp_path / "agent.py"
    target.write_text(TARGET)
    ended = subprocess.run(
        [sys.executable, "-m", "perdure", command, str(target)], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert "loaded by uvloop" in ended.stderr
