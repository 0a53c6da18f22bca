"""With a payload codec histories hold nothing readable, and what is read out of them is read all the same."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from perdure.agents import FunctionTool
from perdure.agents.custom import BaseAgent
from perdure.agents.expiry import AnswerWith
from perdure.cli import run_command
from perdure.config import ConnectionConfig, connect
from perdure.errors import HistoryDiffers
from perdure.journal import packing
from perdure.messages.keys import SessionKey
from perdure.messages.waiting import WAITING_MEMO
from perdure.prove.replay import replay_history
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.pending import Wanted, find_waiting
from perdure.temporal.payloads import data_converter
from tests.recovery.test_rescue_effects import is_recorded
from tests.workflows.support import (
    Counted,
    User,
    agent,
    calls,
    check_log,
    eventually,
    long_running,
    make_app,
    serving,
    text,
)
from tests.workflows.test_deadlines import LATER, asking, timed
from tests.workflows.test_large_journals import SMALL, loads, noise

pytestmark = pytest.mark.server

_ENCODING = b"binary/turned"
_KEY = bytes(range(255, -1, -1))


class Turned(PayloadCodec):
    """Turns every byte over; no cipher, but as unreadable to whoever forgets to decode."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": _ENCODING}, data=payload.SerializeToString().translate(_KEY))
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(payload.data.translate(_KEY))
            if payload.metadata.get("encoding") == _ENCODING
            else payload
            for payload in payloads
        ]


codec = Turned()
"""As `--payload-codec` names it."""


def encrypted(client: Client) -> Client:
    """Return a client whose payloads and error messages are unreadable in history."""
    converter = dataclasses.replace(
        data_converter, payload_codec=codec, failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    )
    config = client.config()
    config["data_converter"] = converter
    return Client(**config)


async def take_over(user: User) -> None:
    await Lifecycle(user.client).take_over(SessionKey(user.app, "u", "s"))


def clerk(local: Counted, work: Counted) -> BaseAgent:
    tools = [FunctionTool(local.fn, local=True), work.once, long_running("pick")]
    return agent("clerk", [calls("note"), calls("work", "pick"), text("the secret is out")], tools)


async def test_a_session_is_taken_over_from_its_history(client: Client, app_name: str) -> None:
    """Slices, updates, signals, results and markers are decoded."""
    note, work = Counted("note", "secret"), Counted("work", "secret")
    async with serving(encrypted(client), make_app(app_name, clerk(note, work))) as user:
        await user.create(who="secret")
        waiting = await user.run("a secret")
        before = await user.log()
        assert await is_recorded(user)
        assert "secret" not in (await user.workflow.fetch_history()).to_json()
        await take_over(user)
        assert (await user.settled(waiting.id)).status == "waiting"
        assert await user.log() == before
        await user.signal({"id": waiting.pending[0].id, "response": {"secret": 1}})
        await take_over(user)
        assert (await user.settled(waiting.id)).status == "finished"
        assert (await user.view()).state == {"who": "secret"}
        assert (len(note.keys), len(work.keys)) == (1, 1)


async def test_what_waits_is_listed_to_who_has_the_codec_and_stands_nowhere_readable(
    client: Client, app_name: str
) -> None:
    app = make_app(app_name, agent("clerk", [calls("ask", secret="rosebud"), text("done")], [long_running("ask")]))
    async with serving(encrypted(client), app) as user:
        await user.create()
        await user.run("a")

        async def listed() -> bool:
            [run] = [run async for run in client.list_workflows(f"WorkflowType = '{app_name}'")]
            memo = run.raw_info.memo.fields
            assert WAITING_MEMO not in memo or memo[WAITING_MEMO].metadata["encoding"] == _ENCODING
            return WAITING_MEMO in memo

        await eventually(listed)
        page = await find_waiting(encrypted(client), Wanted(app=app_name))
        assert [call.args for _, call in page.calls] == [{"secret": "rosebud"}]
        # Without the codec, nobody knows what waits, but that something does.
        page = await find_waiting(client, Wanted(app=app_name), patience=timedelta(seconds=5))
        assert (page.calls, len(page.unanswered)) == ((), 1)


async def test_a_failure_says_why_after_it_was_taken_over(client: Client, app_name: str) -> None:
    """The text of an error stands in a payload of its own where a failure converter hides it."""
    work = Counted("work", fail=9)
    app = make_app(app_name, agent("clerk", [calls("work"), text("done")], [work.once]))
    async with serving(encrypted(client), app) as user:
        await user.create()
        failed = await user.run("a")
        assert failed.status == "failed"
        await take_over(user)
        assert (await user.settled(failed.id)).failures == failed.failures
        assert "call 1 of work fails" in failed.failures[0].cause


async def test_a_deadlines_timer_is_known(client: Client, app_name: str) -> None:
    """Its summary tells it, which is encoded, too; taken for an agent's, it would hide that the invocation failed."""
    tool = timed(AnswerWith(1), expires_in=LATER)
    work = Counted("work", fail=9)
    app = make_app(app_name, agent("clerk", [calls("ask"), text("x"), calls("work"), text("y")], [tool, work.once]))
    async with serving(encrypted(client), app) as user:
        await user.create()
        assert (await user.run("a")).status == "waiting"
        await user.run("b")
        failed = await user.run("c")
        assert failed.status == "failed"
        await take_over(user)
        assert (await user.settled(failed.id)).status == "failed"
        assert len(work.keys) == 1


async def test_a_closed_session_is_exported_and_brought_back(client: Client, app_name: str) -> None:
    note, work = Counted("note", "secret"), Counted("work")
    async with serving(encrypted(client), make_app(app_name, clerk(note, work))) as user:
        await user.create()
        waiting = await user.run("a")
        open_lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
        await user.workflow.terminate("a test")
        lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
        assert lines == open_lines
        assert '"secret"' in "".join(lines)
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"


@pytest.fixture
def small_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_PAYLOAD_BYTES", SMALL)
    monkeypatch.setattr(packing, "MAX_PART_BYTES", 4 * SMALL)


@pytest.mark.usefixtures("small_payloads")
async def test_a_journal_is_read_out_of_an_earlier_runs_history(small_client: Client, app_name: str) -> None:
    """One that the run fetched, and one that the client sent in parts."""
    texts = [text(noise(600, seed)) for seed in range(9)]
    app = make_app(app_name, agent("clerk", [calls("pick"), *texts, text("picked")], [long_running("pick")]))
    async with serving(encrypted(small_client), app) as user:
        await user.create(k=1)
        waiting = await user.run("a")
        for number in range(8):
            await user.run(f"m{number}")
        await user.workflow.terminate("a test")
        last = await user.run("m8")
        assert await loads(user) >= 1
        log = await user.log()
        await take_over(user)
        await user.settled(last.id)
        assert await user.log() == log
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        check_log(await user.events())


async def test_an_encrypted_history_replays(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python with the client's converter, on the command line with `--payload-codec`, from a server or a file."""
    async with serving(encrypted(client), make_app(app_name, clerk(Counted("note"), Counted("work")))) as user:
        await user.create()
        await user.run("a")
        history = await user.workflow.fetch_history()
        await replay_history(history, data_converter=user.client.data_converter)
        with pytest.raises(HistoryDiffers, match="payload codec"):
            await replay_history(history)
        path = tmp_path / "history.json"
        path.write_text(history.to_json())
        named = ("--payload-codec", f"{__name__}:codec", "--address", temporal_server)
        for where in (user.key, str(path)):
            assert await asyncio.to_thread(run_command, ("replay", where, *named)) == 0, capsys.readouterr().err


async def test_a_connection_takes_a_codec(temporal_server: str, app_name: str) -> None:
    config = ConnectionConfig(address=temporal_server, namespace="default", tls=False, payload_codec=codec)
    tool = timed(AnswerWith("secret"), expires_in=timedelta(seconds=0.5))
    async with serving(await connect(config), asking(app_name, tool)) as user:
        await user.create()
        waiting = await user.send("a secret")
        await user.logged("user answers ask")
        assert (await user.settled(waiting)).status == "finished"
        assert "secret" not in (await user.workflow.fetch_history()).to_json()
