"""`perdure api` and the API of `perdure dev`, as processes."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import httpx2
import pytest

from perdure.cli.api import listening
from perdure.cli.exits import ExitCode
from perdure.cli.main import run_command
from tests.test_cli import AGENT_FILE, Process

pytestmark = [pytest.mark.server, pytest.mark.process]


async def url_told_by(process: Process) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", await process.read_until("HTTP API"))
    assert found is not None
    return found[0]


async def test_dev_and_api_serve_the_same_sessions_until_they_are_told_to_end(
    temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    at = ("--port", "0", "--address", temporal_server)
    dev = await Process.start("dev", f"{app_name}.py", *at, cwd=tmp_path)
    api = await Process.start("api", *at, cwd=tmp_path)
    first, second = await url_told_by(dev), await url_told_by(api)
    session = f"/apps/{app_name}/users/u/sessions"
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:
        assert (await http.get(f"{first}/list-apps")).json() == [app_name]
        assert (await http.get(f"{second}/list-apps")).json() == []
        assert (await http.post(f"{first}{session}", json={"sessionId": "s"})).status_code == 200
        body = {"appName": app_name, "userId": "u", "sessionId": "s", "newMessage": {"parts": [{"text": "To Oslo"}]}}
        events = (await http.post(f"{second}/run", json=body)).json()
        assert events[-1]["author"] == "picker"
        assert (await http.get(f"{first}{session}/s")).json()["events"][1:] == events
        for process, url, inbox in ((dev, first, f"inbox        {first}/"), (api, second, f"inbox at {second}/")):
            await process.read_until(inbox)
            # An app that the server was not given is there, too.
            assert f"/inbox{session}/s" in (await http.get(f"{url}/")).text
    assert await asyncio.gather(api.end(signal.SIGTERM), dev.end(signal.SIGTERM)) == [0, 0]


async def test_dev_can_do_without_the_api(temporal_server: str, app_name: str, tmp_path: Path) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    dev = await Process.start("dev", f"{app_name}.py", "--no-api", "--address", temporal_server, cwd=tmp_path)
    assert "HTTP API" not in await dev.read_until("Ctrl-C")
    assert await dev.end(signal.SIGINT) == 0


@pytest.mark.parametrize("command", ["api", "dev"])
def test_a_port_that_is_taken_is_explained(
    command: str,
    temporal_server: str,
    app_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    monkeypatch.chdir(tmp_path)
    with listening("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])
        code = run_command([command, f"{app_name}.py", "--port", port, "--address", temporal_server])
    assert code == 1
    assert f"the HTTP API cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["localhost:8233", "javascript:alert(1)", "http://", ""])
def test_the_temporal_ui_has_an_address_of_the_web(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["api", "--port", "0", "--temporal-ui", url]) == ExitCode.USAGE
    assert "is no address of a web page, such as http://localhost:8233" in capsys.readouterr().err


def test_without_the_extra_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.api")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setitem(sys.modules, "starlette.datastructures", None)
    assert run_command(["api"]) == 1
    assert "pip install 'perdure[api]'" in capsys.readouterr().err


def test_an_origin_that_is_malformed_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["api", "--allow-origins", "regex:("]) == 64
    assert "--allow-origins: '(' is no regular expression" in capsys.readouterr().err
