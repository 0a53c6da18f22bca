"""Which files are an app's, read without importing them, and the digest by which workers and commands compare them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.compiler.loading import load_app
from perdure.compiler.sources import code_digest, digest_of, sources_here, sources_of
from perdure.messages.build_ids import BuildId

AGENT = """
from perdure import App, LlmAgent, ScriptedModel
import json
from {name}.tools import look
from . import words
from .deep.inner import thing

app = App(name="{name}", root_agent=LlmAgent(name="clerk", model=ScriptedModel([{{"text": "Hello."}}]), tools=[look]))
"""


@pytest.fixture
def shop(tmp_path: Path, app_name: str) -> Path:
    """An app's folder, whose code is in several files, beside others that are none of it."""
    folder = tmp_path / app_name
    (folder / "deep").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "agent.py": AGENT.format(name=app_name),
        "tools.py": "def look() -> str:\n    '''Look.'''\n    from .late import NOW\n    return NOW\n",
        "late.py": "NOW = 'now'\n",
        "words.py": "",
        "deep/__init__.py": "",
        "deep/inner.py": "thing = 1\n",
        "test_agent.py": "from . import agent\n",
        "notes.md": "",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_an_apps_files_are_those_that_it_imports_from_its_folder(shop: Path) -> None:
    assert [path.relative_to(shop).as_posix() for path in sources_of(shop)] == [
        *("__init__.py", "agent.py", "deep/__init__.py", "deep/inner.py", "late.py", "tools.py", "words.py")
    ]


@pytest.mark.parametrize(
    ("file", "text", "differs"),
    [
        ("tools.py", "# changed\n", True),
        ("late.py", "NOW = 'later'\n", True),
        ("deep/inner.py", "thing = 2\n", True),
        ("agent.py", "root_agent = (\n", True),
        ("root_agent.yaml", "name: x\n", True),
        ("test_agent.py", "# changed\n", False),
        ("notes.md", "changed", False),
        ("late.py", "NOW = 'now'\r\n", False),
    ],
)
def test_the_digest_is_of_the_code_alone(shop: Path, file: str, text: str, differs: bool) -> None:
    """A checkout with other line ends, or without its tests, has the same; one that is broken has another."""
    before = code_digest(shop)
    (shop / file).write_text(text, newline="")
    assert (code_digest(shop) != before) is differs


def test_the_three_ways_to_name_an_app_have_one_digest(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.parent)
    digests = {digest_of(load_app(target)) for target in (str(shop), f"{shop.name}.agent:app", f"{shop.name}/agent.py")}
    assert digests == {code_digest(shop)}


def test_an_app_of_one_file_takes_what_it_imports_beside_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import tools\nimport json, no_such\nfrom other import x\n")
    (tmp_path / "tools.py").write_text("")
    (tmp_path / "stranger.py").write_text("")
    assert sources_of(tmp_path / "main.py") == [tmp_path / "main.py", tmp_path / "tools.py"]


def test_an_apps_code_is_found_from_where_somebody_works(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for here, found in ((tmp_path, shop), (tmp_path.parent, shop), (shop, None)):
        monkeypatch.chdir(here)
        assert sources_here(shop.name) == found
    (tmp_path / "alone.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert sources_here("alone") == tmp_path / "alone.py"
    # A folder of that name that holds no agent is something else.
    (tmp_path / "docs").mkdir()
    assert sources_here("docs") is None


@pytest.mark.parametrize(
    "build", [BuildId("shop", "0123456789ab"), BuildId("shop", "0123456789ab", "ba9876543210")], ids=str
)
def test_a_build_id_says_what_it_was_made_of(build: BuildId) -> None:
    assert BuildId.parse(str(build)) == build


@pytest.mark.parametrize("text", ["", "2026-11-22", "v1", "a.b-c"])
def test_a_build_id_of_somebody_elses_says_nothing(text: str) -> None:
    assert BuildId.parse(text) is None
