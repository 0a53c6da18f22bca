"""An app's `.env` is in the environment before its code runs, whoever's classes its agents are of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

NATIVE = "from perdure import LlmAgent"
ADKS = "from google.adk.agents import LlmAgent"
AGENT = """
import os
{imports}
root_agent = LlmAgent(name="clerk", model="gemini-2.5-flash", instruction=os.environ.get("WORD", "none"))
"""
SHOWN = """
import sys
from perdure.compiler.loading import load_app
from perdure.compiler.registry import register
for target in sys.argv[1:]:
    print(register(load_app(target)).plan.root.instruction)
"""


def instructions(folder: Path, *targets: str, **env: str) -> list[str]:
    """Load apps in a process of their own, in this order; return the instructions of their agents."""
    done = subprocess.run(
        [sys.executable, "-c", SHOWN, *targets], cwd=folder, capture_output=True, text=True, timeout=100, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def write(folder: Path, imports: str, env: str | None = None) -> None:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text(AGENT.format(imports=imports))
    if env is not None:
        (folder / ".env").write_text(env)


FOLDER, FILE, MODULE = "apps/shop", "apps/shop/agent.py", "apps.shop.agent:root_agent"


@pytest.mark.parametrize(
    ("imports", "target", "where"),
    [
        (NATIVE, FOLDER, "apps/shop/.env"),
        (NATIVE, FILE, "apps/.env"),
        (NATIVE, MODULE, ".env"),
        (NATIVE, MODULE, "apps/shop/.env"),
        (ADKS, FOLDER, "apps/.env"),
        (ADKS, FILE, "apps/shop/.env"),
        (f"{ADKS}\nimport perdure", FOLDER, "apps/shop/.env"),
    ],
)
def test_the_nearest_file_is_read(tmp_path: Path, imports: str, target: str, where: str) -> None:
    if "google" in imports:
        pytest.importorskip("google.adk")
    write(tmp_path / "apps" / "shop", imports)
    (tmp_path / ".env").write_text("WORD=furthest\n")
    (tmp_path / where).write_text("# a comment\nexport WORD='nearest'\nEMPTY\n")
    assert instructions(tmp_path, target) == ["nearest"]


def test_what_the_environment_says_stays_and_a_later_file_may_say_otherwise(tmp_path: Path) -> None:
    write(tmp_path / "one", NATIVE, "WORD=one\n")
    write(tmp_path / "two", NATIVE, "WORD=two\n")
    assert instructions(tmp_path, "one", "two") == ["one", "two"]
    assert instructions(tmp_path, "one", "two", WORD="mine") == ["mine", "mine"]
    assert instructions(tmp_path, "one", ADK_DISABLE_LOAD_DOTENV="1") == ["none"]
