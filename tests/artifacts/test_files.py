"""Artifacts in a folder that several processes share, and that die in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from perdure.artifacts import FileArtifactService

WHO: dict[str, Any] = {"app_name": "travel", "user_id": "u", "session_id": "s"}

SAVER = """
import asyncio, sys
from google.genai import types
from perdure.artifacts import FileArtifactService

async def main(folder, name, saves):
    service = FileArtifactService(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(saves):
        part = types.Part(text=f"{name} {number} " + "x" * 20_000)
        key = None if number % 2 else f"both {number}"
        part = part if key is None else types.Part(text=f"both {number}")
        version = await service.save_artifact(
            app_name="travel", user_id="u", session_id="s", filename="shared.txt", artifact=part, key=key
        )
        print(version, part.text.partition(" x")[0], sep="\\t", flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def saver(folder: Path, name: str, saves: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SAVER, str(folder), name, str(saves)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def start(*processes: subprocess.Popen[str]) -> None:
    """Let processes begin to save at the same time."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


@pytest.mark.process
async def test_processes_that_save_at_once_never_share_a_version(tmp_path: Path) -> None:
    """Half of the saves are the same in all processes, as attempts of one call are: those share theirs."""
    saves = 12
    processes = [saver(tmp_path, name, saves) for name in ("a", "b", "c")]
    said: list[list[str]] = []
    start(*processes)
    for process in processes:
        out, _ = await asyncio.to_thread(process.communicate, timeout=60)
        said += [line.split("\t") for line in out.splitlines()]
        assert process.returncode == 0
    assert len(said) == 3 * saves
    told = {(int(version), text) for version, text in said}
    own = 3 * saves // 2
    assert sorted(version for version, _ in told) == list(range(own + saves // 2))
    service = FileArtifactService(tmp_path)
    for version, text in told:
        part = await service.load_artifact(**WHO, filename="shared.txt", version=version)
        assert part is not None
        assert (part.text or "").partition(" x")[0] == text
    assert list((tmp_path / ".unfinished").iterdir()) == []


@pytest.mark.process
async def test_a_process_killed_while_it_saves_leaves_whole_versions_only(tmp_path: Path) -> None:
    process = saver(tmp_path, "a", 100_000)
    start(process)
    service = FileArtifactService(tmp_path)
    deadline = time.monotonic() + 20
    while len(await service.list_versions(**WHO, filename="shared.txt")) < 5:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=20)
    versions = await service.list_versions(**WHO, filename="shared.txt")
    # One that was saved may not have been told any more.
    assert len(versions) - len(out.splitlines()) in (0, 1)
    for version in versions:
        part = await service.load_artifact(**WHO, filename="shared.txt", version=version)
        assert part is not None
        assert (part.text or "").startswith("both") or len(part.text or "") > 20_000
    assert await service.save_artifact(**WHO, filename="shared.txt", artifact=types.Part(text="on")) == len(versions)


async def test_a_save_beside_a_deletion_has_its_folder(tmp_path: Path) -> None:
    service = FileArtifactService(tmp_path)

    async def save() -> None:
        for number in range(100):
            await service.save_artifact(**WHO, filename="f", artifact=types.Part(text=str(number)))

    async def delete() -> None:
        for _ in range(100):
            await service.delete_artifact(**WHO, filename="f")

    await asyncio.gather(save(), delete(), delete(), save(), delete(), delete())
    await service.delete_artifact(**WHO, filename="f")
    assert await service.list_artifact_keys(**WHO) == []


async def test_a_stray_file_in_the_folder_is_passed_over(tmp_path: Path) -> None:
    service = FileArtifactService(tmp_path)
    await service.save_artifact(**WHO, filename="f", artifact=types.Part(text="x"))
    leave_a_stray_file(tmp_path)
    assert await service.save_artifact(**WHO, filename="f", artifact=types.Part(text="y")) == 1
    assert await service.list_versions(**WHO, filename="f") == [0, 1]
    assert await service.list_artifact_keys(**WHO) == ["f"]


async def test_files_get_the_permissions_that_the_process_gives(tmp_path: Path) -> None:
    """API and workers may run as two users of one group."""
    before = os.umask(0o027)
    try:
        await FileArtifactService(tmp_path).save_artifact(**WHO, filename="f", artifact=types.Part(text="x"))
    finally:
        os.umask(before)
    assert modes(tmp_path) == {0o640}


def leave_a_stray_file(folder: Path) -> None:
    [versions] = folder.rglob("versions")
    for place in (versions, versions.parent, versions.parent.parent):
        (place / ".DS_Store").write_bytes(b"")


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
