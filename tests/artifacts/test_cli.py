"""`perdure artifacts`, and the option that says where artifacts are kept."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
from pathlib import Path

import pytest

from perdure.artifacts import FileArtifactService
from perdure.artifacts.sealing import SealedArtifacts
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import Key, KeyRing
from tests.cli.support import Done, Perdure, perdure

__all__ = ["perdure"]

SESSION = ("--session", "trip-1", "--user", "ann")
BYTES = bytes(range(256))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with artifacts in its folder `kept`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_ARTIFACTS", "kept")
    return tmp_path


async def run(perdure: Perdure, command: str, *arguments: str) -> Done:
    """Run a command that works."""
    done = await perdure("artifacts", command, "travel", *arguments, *SESSION)
    assert done.code == 0, done.err
    return done


async def test_put_list_get_and_delete(perdure: Perdure, folder: Path) -> None:
    (folder / "map.png").write_bytes(BYTES)
    (folder / "notes.txt").write_text("Grüße\n", encoding="utf-8")
    assert (await run(perdure, "put", "map.png")).out == "map.png, version 0\n"
    await run(perdure, "put", "notes.txt", "--name", "user:notes/a.txt")
    await run(perdure, "put", "notes.txt", "--name", "user:notes/a.txt")
    lines = (await run(perdure, "list")).out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["NAME", "VERSION", "TYPE"],
        ["map.png", "0", "image/png"],
        ["user:notes/a.txt", "1", "text/plain"],
    ]
    all_of_them = (await run(perdure, "list", "--versions", "--json")).json_lines
    assert [(line["filename"], line["version"]) for line in all_of_them] == [
        ("map.png", 0),
        ("user:notes/a.txt", 0),
        ("user:notes/a.txt", 1),
    ]
    assert all_of_them[0]["canonicalUri"].endswith("/users/ann/sessions/trip-1/artifacts/map.png/versions/0")
    assert (await run(perdure, "get", "user:notes/a.txt", "--version", "0")).out == "Grüße\n"
    await run(perdure, "get", "map.png", "--output", "copy.png")
    assert (folder / "copy.png").read_bytes() == BYTES
    part = (await run(perdure, "get", "map.png", "--json")).json_lines[0]
    assert part["inlineData"] == {"mimeType": "image/png", "data": base64.urlsafe_b64encode(BYTES).decode()}
    assert (await run(perdure, "delete", "map.png", "--json")).json_lines == [{"filename": "map.png", "deleted": True}]
    await run(perdure, "delete", "map.png")
    assert [line["filename"] for line in (await run(perdure, "list", "--json")).json_lines] == ["user:notes/a.txt"]


async def test_a_type_may_be_given_and_what_is_no_text_is_kept_as_bytes(perdure: Perdure, folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"\xff")
    saved = (await run(perdure, "put", "a.txt", "--json")).json_lines[0]
    assert (saved["filename"], saved["version"], saved["mimeType"]) == ("a.txt", 0, "text/plain")
    assert "inlineData" in (await run(perdure, "get", "a.txt", "--json")).json_lines[0]
    saved = (await run(perdure, "put", "a.txt", "--type", "x/y", "--json")).json_lines[0]
    assert (saved["version"], saved["mimeType"]) == (1, "x/y")


async def test_standard_input(perdure: Perdure, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    await run(perdure, "put", "-", "--name", "a.txt")
    assert (await run(perdure, "get", "a.txt")).out == "piped"


async def test_what_goes_wrong_is_told(perdure: Perdure, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*arguments: str) -> tuple[int, str]:
        done = await perdure("artifacts", *arguments, *SESSION)
        return done.code, done.err

    code, told = await refused("get", "travel", "none")
    assert (code, "there is no artifact 'none'" in told) == (1, True)
    code, told = await refused("get", "travel", "../x")
    assert (code, "is no relative path" in told) == (1, True)
    code, told = await refused("put", "travel", "-")
    assert (code, "--name" in told) == (64, True)
    (folder / "file").write_text("x")
    code, told = await refused("list", "travel", "--artifacts", "file")
    assert (code, "is a file" in told) == (64, True)
    code, told = await refused("list", "travel", "--artifacts", "no_such_module:service")
    assert (code, "cannot be loaded" in told) == (64, True)
    code, told = await refused("list", "travel", "--artifacts", "os:sep")
    assert (code, "is a str" in told) == (64, True)
    await run(perdure, "put", "file")
    code, told = await refused("get", "travel", "file", "--output", "none/file")
    assert (code, "cannot be written" in told) == (1, True)
    monkeypatch.delenv("PERDURE_ARTIFACTS")
    code, told = await refused("list", "travel")
    assert (code, "PERDURE_ARTIFACTS" in told) == (64, True)


async def test_a_service_of_ones_own_is_named_by_its_module(perdure: Perdure, folder: Path) -> None:
    (folder / "own_artifacts.py").write_text(
        "from perdure.artifacts import FileArtifactService\nservice = FileArtifactService('elsewhere')\n"
    )
    (folder / "a.txt").write_text("x")
    try:
        await run(perdure, "put", "a.txt", "--artifacts", "own_artifacts:service")
    finally:
        sys.modules.pop("own_artifacts", None)
    assert (folder / "elsewhere" / "apps" / "travel").is_dir()
    assert not (folder / "kept").exists()


AGENT = """
from google.genai import types
from perdure.agents import App, LlmAgent, ToolContext
from perdure.models.scripted import ScriptedModel

def write(tool_context: ToolContext) -> int:
    '''Write a plan.'''
    return tool_context.wait_for(tool_context.save_artifact("plan.md", types.Part(text="Fly to Oslo.")))

model = ScriptedModel([{"calls": [{"name": "write", "args": {}}]}, {"text": "Written."}])
app = App(name="NAME", root_agent=LlmAgent(name="clerk", model=model, tools=[write]))
"""


@pytest.mark.server
@pytest.mark.process
async def test_a_worker_and_the_command_share_a_folder(
    perdure: Perdure, folder: Path, temporal_server: str, app_name: str
) -> None:
    (folder / "agent.py").write_text(AGENT.replace("NAME", app_name))
    server = ("--address", temporal_server, "--namespace", "default")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure", "worker", "agent.py", *server, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        done = await perdure("run", app_name, "go", "--wait-for-worker", *SESSION, *server)
        assert (done.code, "Written." in done.out) == (0, True), done.err
        assert (await perdure("artifacts", "get", app_name, "plan.md", *SESSION)).out == "Fly to Oslo."
    finally:
        worker.terminate()
        await worker.wait()


async def test_a_large_result_that_is_encrypted_takes_the_keys_to_read_it(
    perdure: Perdure, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large results are encrypted as histories are; other artifacts are not, and need no keys."""
    key = Key.new("k")
    (folder / "keys").write_text(key.line)
    store = SealedArtifacts(FileArtifactService("kept"), EncryptionCodec(KeyRing((key,))))
    where = {"app_name": "travel", "user_id": "ann", "session_id": "trip-1"}
    await store.save_sealed(content='{"a": 1}', mime_type="application/json", filename="result.json", **where)
    done = await run(perdure, "get", "result.json", "--encryption-keys", str(folder / "keys"))
    assert done.out == '{"a": 1}'
    refused = await perdure("artifacts", "get", "travel", "result.json", *SESSION)
    assert refused.code != 0
    assert "the keys here do not open it" in refused.err
