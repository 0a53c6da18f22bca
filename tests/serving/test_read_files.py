"""What code opens to read is noted, however it opens it, and what it writes is not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.serving.read_files import Reads, is_below


def by_descriptor(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def by_bytes(path: Path) -> None:
    with open(os.fsencode(path), "rb") as file:
        file.read()


def as_json(path: Path) -> None:
    with path.open() as file:
        json.load(file)


def relative(path: Path) -> None:
    Path(path.name).read_bytes()


@pytest.mark.parametrize("read", [Path.read_text, by_descriptor, by_bytes, as_json, relative])
def test_reading_is_noted_in_the_block_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("before.json", "within.json", "after.json"):
        (tmp_path / name).write_text("{}")
    reads = Reads()
    read(tmp_path / "before.json")
    with reads.noted():
        read(tmp_path / "within.json")
    read(tmp_path / "after.json")
    assert reads.files == {tmp_path / "within.json"}


def test_a_file_that_is_missing_counts_and_one_that_is_written_does_not(tmp_path: Path) -> None:
    reads = Reads()
    with reads.noted():
        with pytest.raises(FileNotFoundError):
            (tmp_path / "missing.md").read_text()
        (tmp_path / "log.txt").write_text("x")
        (tmp_path / "log.txt").read_text()
        (tmp_path / "both.txt").open("a+").close()
        (tmp_path / "code.py").write_text("")
        (tmp_path / "code.py").read_text()
    assert reads.files == {tmp_path / "missing.md"}


@pytest.mark.parametrize(
    ("file", "below"),
    [("a/prompts/x.md", True), ("a/x.md", True), ("a/.git/x", False), ("a/venv/x", False), ("b/x.md", False)],
)
def test_what_is_below_a_folder(tmp_path: Path, file: str, below: bool) -> None:
    assert is_below(tmp_path / file, [tmp_path / "a"]) == below
