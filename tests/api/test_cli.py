"""`perdure api` and the API of `perdure dev`, as processes."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from click import ClickException

from perdure.api.auth.api_keys import ApiKey, append_key
from perdure.api.auth.config import AuthConfig
from perdure.api.auth.watch import EVERY
from perdure.cli.api import listening, warn_of
from perdure.cli.exits import ExitCode
from perdure.cli.main import run_command
from tests.cli.test_main import AGENT_FILE, Process

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
    dev = await Process.start("dev", f"{app_name}.py", "--web", *at, cwd=tmp_path)
    api = await Process.start("api", *at, cwd=tmp_path)
    first, second = await url_told_by(dev), await url_told_by(api)
    session = f"/apps/{app_name}/users/u/sessions"
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:
        assert (await http.get(f"{first}/list-apps")).json() == [app_name]
        assert (await http.get(f"{second}/list-apps")).json() == []
        assert "Agent Development Kit" in (await http.get(f"{first}/dev-ui/")).text
        assert (await http.get(f"{second}/dev-ui/")).status_code == 404
        assert (await http.post(f"{first}{session}", json={"sessionId": "s"})).status_code == 200
        body = {"appName": app_name, "userId": "u", "sessionId": "s", "newMessage": {"parts": [{"text": "To Oslo"}]}}
        events = (await http.post(f"{second}/run", json=body)).json()
        assert events[-1]["author"] == "picker"
        assert (await http.get(f"{first}{session}/s")).json()["events"][1:] == events
        for process, url, told in (
            (dev, first, f"inbox        {first}/\nchat         {first}/chat"),
            (api, second, f"inbox at {second}/, chat at {second}/chat"),
        ):
            for line in told.splitlines():
                await process.read_until(line)
            # An app that the server was not given is there, too.
            assert f"/inbox{session}/s" in (await http.get(f"{url}/")).text
            assert f"/chat{session}/s" in (await http.get(f"{url}/chat")).text
    assert await asyncio.gather(api.end(signal.SIGTERM), dev.end(signal.SIGTERM)) == [0, 0]


async def test_with_auth_only_who_is_known_is_let_in(temporal_server: str, app_name: str, tmp_path: Path) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    key, text = ApiKey.new("ann", now=datetime.now(UTC))
    append_key(tmp_path / "auth.toml", key)
    serving = ("--auth", "auth.toml", "--port", "0", "--address", temporal_server)
    api = await Process.start("api", f"{app_name}.py", *serving, cwd=tmp_path)
    url = await url_told_by(api)
    async with httpx2.AsyncClient(timeout=30, trust_env=False, base_url=url) as http:
        assert (await http.get("/list-apps")).status_code == 401
        known = {"authorization": f"Bearer {text}"}
        assert (await http.get("/list-apps", headers=known)).json() == [app_name]
        assert (await http.get(f"/apps/{app_name}/users/bob/sessions", headers=known)).status_code == 404
        # The key is taken back while the server runs.
        (tmp_path / "auth.toml").write_text(ApiKey.new("bob", now=datetime.now(UTC))[0].block)
        await asyncio.sleep(EVERY + 0.1)
        assert (await http.get("/list-apps", headers=known)).status_code == 401
    assert await api.end(signal.SIGTERM) == 0


async def test_without_auth_a_name_that_was_rebound_is_refused_on_every_address(
    temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    """A port of a container is published to this machine, and reached by a browser, too."""
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    at = ("--host", "0.0.0.0", "--port", "0", "--allow-origins", "http://shop.example")
    api = await Process.start("api", f"{app_name}.py", *at, "--address", temporal_server, cwd=tmp_path)
    port = re.search(r"HTTP API at http://[^/,]*:(\d+)", await api.read_until("inbox at"))
    assert port is not None
    async with httpx2.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port[1]}") as http:
        found = {
            host: (await http.get("/list-apps", headers={"host": host})).status_code
            for host in ("evil.example", "shop.example", "localhost", "10.0.0.7:8000")
        }
    assert found == {"evil.example": 403, "shop.example": 200, "localhost": 200, "10.0.0.7:8000": 200}
    assert await api.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("host", "auth", "told"),
    [
        ("127.0.0.1", None, ""),
        ("localhost", AuthConfig(), ""),
        ("0.0.0.0", None, "WARNING: the API has no authentication: whoever reaches 0.0.0.0 can read and run every"),
        ("::", AuthConfig(), "the API speaks plain HTTP"),
    ],
)
def test_who_can_be_reached_from_outside_is_warned(
    host: str, auth: AuthConfig | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of(host, open=auth is None)
    said = capsys.readouterr().err
    assert (told in said, bool(told)) == (True, bool(said))


def test_a_file_of_auth_that_is_wrong_ends_dev_at_once(
    tmp_path: Path,
    app_name: str,
    temporal_server: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never serves without what it was told to ask for."""
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_AUTH", "no-such.toml")
    assert run_command(["dev", f"{app_name}.py", "--address", temporal_server]) == 64
    assert "--auth: 'no-such.toml' cannot be read" in capsys.readouterr().err


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


def test_a_host_that_is_no_name_is_told_of() -> None:
    with pytest.raises(ClickException, match=r"the HTTP API cannot listen on a\.\.b:0: .+; name another port"):
        listening("a..b", 0)


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
