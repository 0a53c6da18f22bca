"""Changes of apps' code, as the system tells of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.serving.changes import Changes

PATIENCE = 10.0


async def told(changes: Changes) -> set[str]:
    async with asyncio.timeout(PATIENCE):
        return {path.name for path in await changes.next()}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with an agent."""
    folder = tmp_path / "shop"
    (folder / "deep").mkdir(parents=True)
    (folder / "agent.py").write_text("")
    return folder


@pytest.mark.parametrize("file", ["agent.py", "new.py", "deep/new.py", "root_agent.yaml", ".env"])
async def test_code_in_a_folder_is_told_of(shop: Path, file: str) -> None:
    async with Changes([shop]) as changes:
        await asyncio.sleep(0.3)
        (shop / file).write_text("x = 1\n")
        assert await told(changes) == {Path(file).name}


@pytest.mark.parametrize("file", ["notes.md", ".#agent.py", "agent.py~", "__pycache__/a.py", ".git/a.py", "../a.py"])
async def test_what_is_no_code_of_the_folder_is_not_told_of(shop: Path, file: str) -> None:
    (shop / file).parent.mkdir(exist_ok=True)
    async with Changes([shop]) as changes:
        await asyncio.sleep(0.3)
        (shop / file).write_text("x = 1\n")
        (shop / "agent.py").write_text("x = 1\n")
        assert await told(changes) == {"agent.py"}


async def test_a_file_that_an_editor_replaces_is_told_of(shop: Path) -> None:
    async with Changes([shop]) as changes:
        await asyncio.sleep(0.3)
        (shop / "agent.py.tmp").write_text("x = 1\n")
        (shop / "agent.py.tmp").rename(shop / "agent.py")
        assert await told(changes) == {"agent.py"}


async def test_a_folder_that_is_added_is_told_of_with_its_code(shop: Path) -> None:
    async with Changes([shop]) as changes:
        await asyncio.sleep(0.3)
        (shop / "added").mkdir()
        (shop / "added" / "agent.py").write_text("x = 1\n")
        assert await told(changes) == {"agent.py"}
        (shop / "added" / "agent.py").write_text("x = 2\n")
        assert await told(changes) == {"agent.py"}


async def test_what_code_imports_from_elsewhere_is_told_of_once_it_is_known(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    async with Changes([shop]) as changes:
        changes.know([shop / "agent.py", tmp_path / "common" / "words.py"])
        await asyncio.sleep(0.3)
        (tmp_path / "common" / "words.py").write_text("x = 1\n")
        assert await told(changes) == {"words.py"}
        (shop / "agent.py").write_text("x = 1\n")
        assert await told(changes) == {"agent.py"}
        changes.know([shop / "agent.py"])
        (tmp_path / "common" / "words.py").write_text("x = 2\n")
        (shop / "agent.py").write_text("x = 2\n")
        assert await told(changes) == {"agent.py"}


async def test_where_only_files_are_named_their_folders_are_watched(shop: Path) -> None:
    async with Changes([]) as changes:
        changes.know([shop / "agent.py"])
        await asyncio.sleep(0.3)
        (shop / "tools.py").write_text("x = 1\n")
        assert await told(changes) == {"tools.py"}


@pytest.mark.parametrize("file", ["shop/prompts/clerk.md", "shop/.hidden/clerk.txt", "words/clerk.json", "words/none"])
async def test_a_file_that_code_has_read_is_told_of_wherever_it_is_and_no_other_beside_it(
    shop: Path, tmp_path: Path, file: str
) -> None:
    read = tmp_path / file
    read.parent.mkdir(parents=True)
    async with Changes([shop]) as changes:
        changes.know([shop / "agent.py"], [read])
        await asyncio.sleep(0.3)
        (read.parent / "other.md").write_text("x")
        read.with_suffix(".tmp").write_text("Be brief.")
        read.with_suffix(".tmp").rename(read)
        assert await told(changes) == {read.name}
        changes.know([shop / "agent.py"])
        read.write_text("x")
        (shop / "agent.py").write_text("x = 2\n")
        assert await told(changes) == {"agent.py"}
        changes.know(read=[read])
        await asyncio.sleep(0.3)
        read.unlink()
        assert await told(changes) == {read.name}
