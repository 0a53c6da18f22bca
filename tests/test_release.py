"""The version is the git tag's, and sources without one can be built all the same; the workflow calls what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def version(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The sources as the image's build copies them, without git."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "perdure").mkdir()
    (tmp_path / "perdure" / "__init__.py").touch()
    return tmp_path


@pytest.mark.process
def test_the_version_is_the_tags(sources: Path) -> None:
    assert version(sources) == "0.1.0.dev0"
    git(sources, "init")
    git(sources, "add", ".")
    git(sources, "commit", "--message", "Begin")
    assert re.fullmatch(r"0\.1\.0\.dev1\+g[0-9a-f]+", version(sources)), "as a clone in CI, which has no tags"
    git(sources, "tag", "v0.1.0")
    assert version(sources) == "0.1.0"
    git(sources, "commit", "--allow-empty", "--message", "Go on")
    assert re.fullmatch(r"0\.1\.1\.dev1\+g[0-9a-f]+", version(sources))


def test_the_workflow_publishes_what_it_tried_for_tags_only_and_holds_no_secret() -> None:
    build, publish = WORKFLOW["jobs"]["build"], WORKFLOW["jobs"]["publish"]
    [command] = [step["run"] for step in build["steps"] if "run" in step]
    assert (ROOT / command.split()[0]).stat().st_mode & 0o100, "the script can be executed"
    assert publish["needs"] == "build"
    assert "ref_type == 'tag'" in publish["if"]
    assert publish["permissions"] == {"id-token": "write"}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "secrets." not in str(WORKFLOW)
