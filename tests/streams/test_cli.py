"""Tokens on the command line: printed as they come, from `perdure dev` or from workers that are named."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.genai import types
from temporalio.client import Client

from perdure.cli.streaming import Printer
from perdure.journal.events import Event
from perdure.streams.hub import Draft, Piece, TokenHub
from perdure.streams.partials import partial_events
from perdure.streams.server import StreamServer
from tests.cli.support import Perdure, perdure
from tests.cli.test_main import Process, free_port
from tests.streams.support import Typist, streaming
from tests.workflows.support import agent, eventually, make_app

__all__ = ["perdure"]

AGENT_FILE = """
from perdure.agents import App, LlmAgent, ResumabilityConfig
from perdure.models.scripted import ScriptedModel

model = ScriptedModel([{"text": "Oslo is fine.", "delay": 0.3}] * 2)
app = App(
    name="NAME",
    root_agent=LlmAgent(name="clerk", model=model),
    resumability_config=ResumabilityConfig(is_resumable=True),
)
"""


# Printing.


def partial(text: str, id: str = "e1", attempt: int = 1, author: str = "clerk", *, thought: bool = False) -> Event:
    draft = Draft(session="a/u/s", id=id, attempt=attempt, offset=0, author=author, invocation_id="i1")
    return partial_events(draft, [Piece(text, thought)])[0]


def whole(text: str, id: str = "e1", author: str = "clerk", call: str | None = None) -> Event:
    parts = [types.Part(text=text)]
    parts += [types.Part(function_call=types.FunctionCall(name=call, args={}))] if call else []
    return Event(id=id, author=author, content=types.Content(role="model", parts=parts))


@pytest.mark.parametrize(
    ("events", "printed"),
    [
        ([partial("Os"), partial("lo"), whole("Oslo is fine")], "[clerk] Oslo is fine\n"),
        ([partial("Oslo"), whole("Oslo", call="look")], "[clerk] Oslo\n[clerk] calls look()\n"),
        ([whole("Oslo")], "[clerk] Oslo\n"),
        ([partial("hm", thought=True), whole("Oslo")], "[clerk] Oslo\n"),
        ([partial("\x1b[2JOslo"), whole("\x1b[2JOslo")], "[clerk] \\x1b[2JOslo\n"),
        (
            # A second attempt begins anew.
            [partial("Osl"), partial("Be", attempt=2), whole("Bergen")],
            "[clerk] Osl\n[clerk] Bergen\n",
        ),
        (
            # Two branches write at the same time.
            [partial("le", "l", author="left"), partial("right", "r", author="right"), whole("left", "l", "left")],
            "[left] le\n[right] right\n[left] left\n",
        ),
        ([partial("cut off")], "[clerk] cut off\n"),
    ],
)
def test_words_extend_their_line(events: list[Event], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(as_json=False)
    for event in events:
        printer.show(event)
    printer.close()
    assert capsys.readouterr().out == printed


# Options.


@pytest.mark.parametrize(
    ("arguments", "key", "why"),
    [
        (["worker", "t", "--stream-listen", "0.0.0.0:7400"], "", "set PERDURE_STREAM_KEY to a secret"),
        (["worker", "t", "--stream-listen", "stream.example:7400"], "", "set PERDURE_STREAM_KEY to a secret"),
        (["dev", "t", "--stream-listen", "[::]:7400"], "", "set PERDURE_STREAM_KEY to a secret"),
        (["worker", "t", "--stream-listen", "7400"], "", "write HOST:PORT"),
        (["worker", "t", "--stream-listen", "127.0.0.1:7400"], "short", "give it 16 at least"),
        (["run", "app", "hello", "--stream", "--stream-from", "nowhere"], "", "write HOST:PORT"),
    ],
)
async def test_what_cannot_be_meant_is_wrong_usage(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch, arguments: list[str], key: str, why: str
) -> None:
    monkeypatch.setenv("PERDURE_STREAM_KEY", key)
    done = await perdure(*arguments)
    assert done.code == 64
    assert why in " ".join(done.err.split())


# Commands.


@pytest.mark.server
async def test_run_prints_words_as_they_come(
    client: Client, temporal_server: str, app_name: str, perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STREAM_KEY", "a key of some length")
    hub = TokenHub()
    model = Typist("Oslo is fine", "Bergen too", "nobody listens", held=False)
    at = ("--address", temporal_server)
    async with (
        streaming(client, make_app(app_name, agent("clerk", model)), hub),
        StreamServer(hub, key="a key of some length") as server,
    ):
        listen = ("--stream", "--stream-from", server.address, *at)
        done = await perdure("run", app_name, "hello", "--session", "s", *listen)
        assert (done.code, done.out) == (0, "[clerk] Oslo is fine\n[clerk] ends\n"), done.err
        done = await perdure("run", app_name, "hello", "--session", "s", "--json", *listen)
        *partials, final, _, _ = done.json_lines
        assert {event["id"] for event in partials if event["partial"]} == {final["id"]}
        assert model.streamed == [True, True]
        nowhere = f"127.0.0.1:{free_port()}"
        done = await perdure("run", app_name, "hello", "--session", "s", "--stream", "--stream-from", nowhere, *at)
        assert (done.code, done.out) == (0, "[clerk] nobody listens\n[clerk] ends\n"), done.err
        assert f"no worker tells at {nowhere} what models write" in done.err
        assert model.streamed == [True, True, False]


async def streamed_over(url: str, app: str, session: str) -> str:
    """Run a turn over HTTP; returns what the partial events say."""
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        path = f"/apps/{app}/users/u/sessions/{session}"

        async def created() -> bool:
            """An app is not there before its worker is."""
            return (await http.post(path)).status_code == 200

        await eventually(created)
        body: dict[str, Any] = {"appName": app, "userId": "u", "sessionId": session, "streaming": True}
        text = (await http.post("/run_sse", json={**body, "newMessage": {"parts": [{"text": "hi"}]}})).text
    pieces = re.findall(r'"parts":\[\{"text":"([^"]*)"\}\],"role":"model"\},"partial":true', text)
    return "".join(pieces)


async def api_of(process: Process) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", await process.read_until("HTTP API"))
    assert found is not None
    return found[0]


@pytest.mark.server
@pytest.mark.process
async def test_dev_streams_to_its_api_and_to_run(
    perdure: Perdure, temporal_server: str, app_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    address = f"127.0.0.1:{free_port()}"
    at = ("--address", temporal_server)
    dev = await Process.start("dev", f"{app_name}.py", "--port", "0", "--stream-listen", address, *at, cwd=tmp_path)
    url = await api_of(dev)
    assert await streamed_over(url, app_name, "s1") == "Oslo is fine."
    monkeypatch.setenv("PERDURE_STREAM_FROM", address)
    done = await perdure("run", app_name, "hello", "--json", "--stream", *at)
    assert "".join(e["content"]["parts"][0]["text"] for e in done.json_lines if e.get("partial")) == "Oslo is fine."
    assert await dev.end(signal.SIGINT) == 0


@pytest.mark.server
@pytest.mark.process
async def test_an_api_streams_what_workers_in_other_processes_write(
    temporal_server: str, app_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    monkeypatch.setenv("PERDURE_STREAM_KEY", "a key of some length")
    address = f"127.0.0.1:{free_port()}"
    at = ("--address", temporal_server)
    # The API first: it looks for workers until there are some.
    api = await Process.start("api", "--port", "0", "--stream-from", address, *at, cwd=tmp_path)
    url = await api_of(api)
    worker = await Process.start("worker", f"{app_name}.py", "--stream-listen", address, *at, cwd=tmp_path)
    await worker.read_until("serving")
    heard, sessions = "", iter(range(100))
    while not heard:
        # It may take the API some seconds to try again.
        heard = await streamed_over(url, app_name, f"s{next(sessions)}")
    assert heard == "Oslo is fine."
    assert [await process.end(signal.SIGTERM) for process in (worker, api)] == [0, 0]
