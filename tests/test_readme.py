"""The README's blocks do what it says, on a Temporal server of their own."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from perdure.cli import run_command
from perdure.serving.dev_server import find_temporal
from tests.test_examples import free_port

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
UNCHANGED, DEFINITION, CLIENT = (text for language, text in BLOCKS if language == "python")
[SHELL] = (text for language, text in BLOCKS if language == "sh")
COMMANDS = [line for line in SHELL.splitlines() if line]


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150


def test_the_app_that_is_shown_is_the_demo_s() -> None:
    comment, *lines = UNCHANGED.splitlines()
    source = (README.parent / comment.removeprefix("# ")).read_text(encoding="utf-8")
    assert [line for line in source.splitlines() if line in lines] == [line for line in lines if line != "..."]


def test_the_links_of_the_documentation_lead_somewhere() -> None:
    root = README.parent
    for page in (README, root / "CONTRIBUTING.md", root / "CHANGELOG.md", *(root / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


class Tour:
    """The folder in which the tour is taken, and the ids that the commands print on the way."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._ids: dict[str, str] = {}

    async def start(self, *command: str) -> asyncio.subprocess.Process:
        """Start a command; `perdure` is the one that is tested."""
        program = (sys.executable, "-m", "perdure") if command[0] == "perdure" else command[:1]
        return await asyncio.create_subprocess_exec(
            *program,
            *command[1:],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self, *command: str) -> tuple[int | None, str]:
        """Run a command, the ids that were printed last put in; returns its exit code and output.

        `perdure` runs in this process: a Python of its own, for each command, would be most of the test's time.
        """
        for name, value in self._ids.items():
            command = tuple(word.replace(name, value) for word in command)
        code: int | None
        async with asyncio.timeout(60):
            if command[0] == "perdure":
                self._capsys.readouterr()
                code = await asyncio.to_thread(run_command, command[1:])
                output = "".join(self._capsys.readouterr())
            else:
                process = await self.start(*command)
                output = (await process.communicate())[0].decode()
                code = process.returncode
        for name, pattern in (("CALL_ID", r"\badk-[0-9a-f-]{36}"), ("INVOCATION_ID", r"\be-[0-9a-f-]{36}")):
            if found := re.findall(pattern, output):
                self._ids[name] = found[-1]
        return code, output


@pytest.fixture
async def tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncGenerator[Tour]:
    """The README's app, served by the README's first command."""
    (tmp_path / "travel").mkdir()
    (tmp_path / "travel" / "agent.py").write_text(DEFINITION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"localhost:{free_port()}")
    monkeypatch.setenv("PATH", os.pathsep.join((str(find_temporal().parent), os.environ["PATH"])))
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    tour = Tour(capsys)
    dev = await tour.start(*shlex.split(COMMANDS[0], comments=True), "--ui-port", str(free_port()))
    try:
        assert dev.stdout is not None
        async with asyncio.timeout(60):
            while b"Ctrl-C" not in (line := await dev.stdout.readline()):
                assert line, "perdure dev ended"
        yield tour
    finally:
        if dev.returncode is None:
            dev.terminate()
        async with asyncio.timeout(30):
            await dev.communicate()


@pytest.mark.server
async def test_every_command_of_the_tour_ends_as_its_comment_says(tour: Tour) -> None:
    assert COMMANDS[0].startswith("perdure dev travel ")
    output = ""
    for line in COMMANDS[1:]:
        said = re.search(r"# exit code (\d+)", line)
        code, output = await tour.run(*shlex.split(line, comments=True))
        assert code == int(said[1] if said else 0), f"{line}\n{output}"
        while line.startswith("perdure events") and "[booker] SK 4035 is booked." not in output:
            # The answer was handed in a moment ago; the test's timeout bounds this.
            output = (await tour.run(*shlex.split(line, comments=True)))[1]
    assert re.search(r"trip-1 .*\n(.*\n)*.*trip-2 |trip-2 .*\n(.*\n)*.*trip-1 ", output), output


@pytest.mark.server
async def test_the_client_of_the_tour_runs(tour: Tour) -> None:
    code, output = await tour.run(sys.executable, "-c", CLIENT)
    assert code == 0, output
    assert "booker None ['ask_manager']" in output
    assert "booker SK 4035 is booked." in output
    assert output.splitlines()[-1].startswith("['{")
    assert '"endOfAgent":true' in output.splitlines()[-1]
