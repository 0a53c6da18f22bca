"""`perdure exec`: a program of google.adk's, unchanged, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.adk.internals import MAJOR
from perdure.cli.main import run_command

pytestmark = [pytest.mark.server, pytest.mark.process]

PROGRAM = str(Path(__file__).parent / "shop.py")
TURN = ["clerk None", "clerk None"]


class Runs:
    """Runs the program in a folder of its own, by Temporal's test server."""

    def __init__(self, folder: Path, server: str, app: str) -> None:
        self.folder = folder
        self._env = os.environ | {"TEMPORAL_ADDRESS": server, "SHOP": app, "PYTHONWARNINGS": "ignore"}

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *args],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def lines(self, *args: str) -> list[str]:
        process = self.start(*args)
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        return out.splitlines()

    def paid(self) -> int:
        path = self.folder / "paid"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def runs(tmp_path: Path, temporal_server: str, app_name: str) -> Runs:
    return Runs(tmp_path, temporal_server, app_name)


@pytest.mark.parametrize("how", ["file", "module"])
def test_the_program_runs_as_by_python(runs: Runs, how: str) -> None:
    plain = runs.lines(PROGRAM, "go", "again")
    assert plain == [*TURN, "clerk done with 3 contents", *TURN, "clerk done with 7 contents", "8 events"]
    for name in ("sessions.db", "paid"):
        (runs.folder / name).unlink()
    durable = ["-m", "perdure", "exec"]
    given = [PROGRAM] if how == "file" else ["-m", "tests.programs.shop"]
    if how == "module":
        # A module is found from the folder in which the command is given.
        (runs.folder / "tests").symlink_to(Path(__file__).parent.parent)
    assert runs.lines(*durable, *given, "go", "again") == plain


def test_killed_and_started_again_it_goes_on(runs: Runs) -> None:
    (runs.folder / "slow").touch()
    process = runs.start("-m", "perdure", "exec", PROGRAM, "go")
    _until(lambda: runs.paid() == 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (runs.folder / "slow").unlink()
    assert runs.lines("-m", "perdure", "exec", PROGRAM, "again") == [*TURN, "clerk done with 7 contents", "8 events"]
    # The tool that was cut off ran again, once.
    assert runs.paid() == 3


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")
def test_a_program_with_a_graph_runs_as_by_python(runs: Runs) -> None:
    program = str(Path(__file__).parent / "letters.py")
    plain = runs.lines(program)
    assert plain == [
        "letters letters@1/draft@1 draft of letter 0",
        "letters letters@1/ask@1 None 1",
        "letters letters@1/decide@1 said yes 0",
    ]
    assert runs.lines("-m", "perdure", "exec", program) == plain


def _until(come: Any) -> None:
    deadline = time.monotonic() + 60
    while not come():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def test_a_program_that_builds_the_api_gets_perdure_s(runs: Runs) -> None:
    (runs.folder / "agents" / "clerk").mkdir(parents=True)
    agent = "from google.adk.agents import LlmAgent\nroot_agent = LlmAgent(name='clerk', model='gemini-2.5-flash')\n"
    (runs.folder / "agents" / "clerk" / "agent.py").write_text(agent)
    program = """
from google.adk.cli.fast_api import get_fast_api_app
app = get_fast_api_app(agents_dir="agents", web=False)
print(app.title)
"""
    (runs.folder / "web.py").write_text(program)
    assert runs.lines("-m", "perdure", "exec", "web.py") == ["Perdure"]


def test_what_the_program_raises_is_the_program_s(runs: Runs) -> None:
    (runs.folder / "wrong.py").write_text("import sys\nsys.exit(7)\n")
    process = runs.start("-m", "perdure", "exec", "wrong.py")
    process.communicate(timeout=60)
    assert process.returncode == 7


def test_a_program_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["exec", "nowhere.py"]) == 64
    assert "there is no file 'nowhere.py'" in capsys.readouterr().err
