"""`run APP` where standard input is no terminal: its lines are messages, and the exit code tells."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App, LlmAgent, LongRunningFunctionTool
from perdure.models.scripted import ScriptedModel
from perdure.worker import create_workers
from tests.cli.support import Done, Perdure, perdure
from tests.cli.talk.apps import RESUMABLE, ask_anybody

__all__ = ["perdure"]

pytestmark = pytest.mark.server

ASKS = {"calls": [{"name": "ask_anybody", "args": {"question": "Who?"}}]}


class Lines:
    """Sends lines to an app that answers by a script."""

    def __init__(self, perdure: Perdure, patch: pytest.MonkeyPatch, client: Client, app: str, server: str) -> None:
        self._perdure, self._patch, self._client, self._server = perdure, patch, client, server
        self.app = app

    async def send(self, lines: str, *script: Mapping[str, Any], options: tuple[str, ...] = ()) -> Done:
        agent = LlmAgent(name="clerk", model=ScriptedModel(script), tools=[LongRunningFunctionTool(ask_anybody)])
        app = App(name=self.app, root_agent=agent, resumability_config=RESUMABLE)
        async with AsyncExitStack() as stack:
            for worker in create_workers(self._client, [app]):
                await stack.enter_async_context(worker)
            self._patch.setattr(sys, "stdin", io.StringIO(lines))
            return await self._perdure("run", self.app, "--session", "s", "--address", self._server, *options)


@pytest.fixture
def lines(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch, client: Client, app_name: str, temporal_server: str
) -> Lines:
    """Sends lines to an app."""
    return Lines(perdure, monkeypatch, client, app_name, temporal_server)


@pytest.mark.parametrize(
    ("script", "code", "taken"),
    [
        (({"text": "1"}, {"text": "2"}), 0, 2),
        (({"text": "1"}, ASKS), 2, 2),
        # What waits is answered by `respond`; a message more is a message.
        ((ASKS, {"text": "2"}), 2, 2),
        (({"error": "down"}, {"text": "2"}), 1, 1),
        ((ASKS, {"error": "down"}), 1, 2),
    ],
    ids=["done", "waits", "waited before", "fails", "waits, and fails"],
)
async def test_the_exit_code_tells_what_became_of_the_lines(
    lines: Lines, script: tuple[dict[str, Any], ...], code: int, taken: int
) -> None:
    done = await lines.send("first\n\n  second  \n", *script)
    assert done.code == code, done.err
    assert done.err.count("invocation e-") == taken
    assert "> " not in done.out + done.err


async def test_no_line_is_no_message(lines: Lines) -> None:
    done = await lines.send("\n", {"text": "1"})
    assert (done.code, done.out) == (0, "")
    assert "nothing was sent" in done.err


async def test_json_has_a_line_for_each_event_and_each_message(lines: Lines) -> None:
    done = await lines.send("first\nsecond", {"text": "1"}, {"text": "2"}, options=("--json", "--state", "seats=2"))
    ends = [line["invocation"]["status"] for line in done.json_lines if "invocation" in line]
    texts = [part["text"] for line in done.json_lines for part in line.get("content", {}).get("parts", [])]
    assert (done.code, ends, texts) == (0, ["finished", "finished"], ["1", "2"])


@pytest.mark.parametrize("option", ["--no-wait", "--request-id=r"])
async def test_what_belongs_to_one_message_is_refused(perdure: Perdure, option: str) -> None:
    done = await perdure("run", "shop", option)
    assert (done.code, "go with a MESSAGE" in done.err) == (64, True)


@pytest.mark.process
async def test_ctrl_c_ends_a_pipe_at_once(client: Client, app_name: str, temporal_server: str) -> None:
    """Also while nothing comes from it."""
    app = App(name=app_name, root_agent=LlmAgent(name="clerk", model=ScriptedModel([{"text": "Hello."}])))
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, [app]):
            await stack.enter_async_context(worker)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", "run", app_name, "--address", temporal_server),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            # A shell's background job, as a test run may be, hands an ignored SIGINT down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hi\n")
        await process.stdin.drain()
        assert await process.stdout.readline() == b"[clerk] Hello.\n"
        assert process.stderr is not None
        await process.stderr.readuntil(b" is finished\n")
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130, err
    assert err.strip() == b"perdure: interrupted", err.decode()
