"""A project of its own that installs the wheel has the fixture: `perdure new`, then `pytest`."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel; what that needs is found in the one of these tests."""
    folder = tmp_path_factory.mktemp("environment")
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")}))
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-index"]
    subprocess.run([*install, "--python", str(folder / "venv" / "bin" / "python"), wheel], check=True)
    # Behind the wheel's own, so that it is found first; the checkout's editable one is left out.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "venv" / "bin"


@pytest.mark.parametrize("options", [(), ("--adk", "--tree", "--human-in-the-loop")], ids=["plain", "all"])
def test_a_project_of_its_own_has_the_fixture(environment: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    if "--adk" in options:
        pytest.importorskip("google.adk")
    path = os.pathsep.join((str(environment), str(Path(sys.executable).parent), os.environ["PATH"]))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}

    def run(*command: str) -> str:
        python = str(environment / "python")
        done = subprocess.run(
            [python, "-m", *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("perdure", "new", "wheel_shop", *options)
    (tmp_path / "test_where.py").write_text(
        f"import perdure\ndef test_where():\n    assert perdure.__file__.startswith({str(environment.parent)!r})\n"
    )
    assert "2 passed" in run("pytest", "-q", "-p", "no:asyncio", "-p", "no:anyio", ".")
