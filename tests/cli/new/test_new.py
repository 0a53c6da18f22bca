"""`perdure new`: what it makes runs by the commands that it prints, and nothing that is there is overwritten."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.support import Perdure, perdure

__all__ = ["perdure"]

needs_adk = pytest.mark.skipif(find_spec("google.adk") is None, reason="google-adk is not installed")

OPTIONS = [
    pytest.param((), id="plain"),
    pytest.param(("--tree",), id="tree"),
    pytest.param(("--human-in-the-loop",), id="human"),
    pytest.param(("--adk",), id="adk", marks=needs_adk),
    pytest.param(("--adk", "--tree", "--human-in-the-loop"), id="all", marks=needs_adk),
]


class Shell:
    """Runs commands as they are printed, in a folder, with Temporal at an address."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._env = os.environ | {"TEMPORAL_ADDRESS": address, "PYTHONUNBUFFERED": "1"}

    async def start(self, command: str) -> asyncio.subprocess.Process:
        """Start a command."""
        program, *arguments = shlex.split(command)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", program, *arguments),
            cwd=self._folder,
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self, command: str) -> tuple[int | None, str]:
        """Run a command to its end; returns its exit code, and what it printed."""
        process = await self.start(command)
        async with asyncio.timeout(100):
            out, _ = await process.communicate()
        return process.returncode, out.decode()


async def ready(dev: asyncio.subprocess.Process) -> str:
    """Return what `perdure dev` prints until it serves."""
    assert dev.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(100):
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append((await dev.stdout.readline()).decode())
            assert lines[-1], "".join(lines)
    return "".join(lines)


@pytest.mark.server
@pytest.mark.timeout(240)
@pytest.mark.parametrize("options", OPTIONS)
async def test_what_is_made_runs_by_the_commands_that_are_printed(
    temporal_server: str, app_name: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    shell = Shell(tmp_path, temporal_server)
    code, said = await shell.run(shlex.join(["perdure", "new", app_name, *options]))
    assert code == 0, said
    dev_command, run_command, test_command, check_command = re.findall(r"^  (\S.*)$", said, re.MULTILINE)
    assert dev_command == f"perdure dev {app_name}"
    dev = await shell.start(dev_command)
    try:
        assert f"app          {app_name}\n" in await ready(dev)
        if not options:
            code, said = await shell.run(f"perdure run {app_name}x hi")
            assert (code, f"Did you mean '{app_name}'?" in said) == (1, True), said
        code, said = await shell.run(run_command)
        assert code == (2 if "--human-in-the-loop" in options else 0), said
        if code == 2:
            answer = re.search(r"answer it:  (.*)", said)
            assert answer, said
            code, said = await shell.run(answer[1])
            assert (code, "I have asked. " in said) == (0, True), said
        else:
            assert "status: shipped" in said
    finally:
        dev.send_signal(signal.SIGTERM)
        await dev.communicate()
    code, said = await shell.run(test_command)
    assert (code, "1 passed" in said, "warning" in said) == (0, True, False), said
    code, said = await shell.run(check_command)
    assert (code, "Warning" in said) == (0, False), said
    assert "refused" not in said
    assert "hazard" not in said


async def test_a_readme_says_the_commands_and_one_line_switches_to_gemini(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = await perdure("new", "corner_shop", "--tree", "--human-in-the-loop")
    readme = (tmp_path / "corner_shop" / "README.md").read_text()
    for command in re.findall(r"^  (\S.*)$", made.out, re.MULTILINE):
        assert command in readme
    agent = (tmp_path / "corner_shop" / "agent.py").read_text()
    [line] = [line for line in agent.splitlines() if line.startswith("MODEL = None")]
    assert 'MODEL = "gemini-2.5-flash"' in line
    assert 'MODEL = "gemini-2.5-flash"' in readme
    assert agent.count("model=MODEL") == 2
    assert "GOOGLE_API_KEY=" in (tmp_path / "corner_shop" / ".env.example").read_text()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_nothing_that_is_there_is_overwritten(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_one").mkdir()
    (tmp_path / "shop_two").write_text("mine")
    for name in ("shop_one", "shop_two"):
        done = await perdure("new", name)
        assert done.code == 64
        assert f"{name!r} exists, and nothing is overwritten; choose another name" in done.err
    assert names_in(tmp_path / "shop_one") == []
    assert (tmp_path / "shop_two").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-agent", "as in `perdure new my_agent`"),
        ("1st", "use letters, digits and underscores, with no digit first"),
        ("../shop", "as in `perdure new shop`"),
        ("class", "a word of Python's own; choose another one, as in `perdure new class_agent`"),
        ("user", "as in `perdure new user_agent`"),
        ("json", "Python would import another module of that name; choose another one"),
        ("", "use letters, digits and underscores"),
    ],
)
async def test_a_name_that_cannot_be_one_is_refused_with_what_to_do(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = await perdure("new", name)
    assert done.code == 64
    assert said in done.err
    assert names_in(tmp_path) == []
