"""A function of the operator's sees every text before it stands in a history, a log line or an answer."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from perdure import logs
from perdure.agents import FunctionTool, LlmAgent, SequentialAgent, ToolContext
from perdure.artifacts import FileArtifactService
from perdure.artifacts.sealing import SEALED, SealedArtifacts
from perdure.client import Runner
from perdure.config import ConnectionConfig, connect
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import Key, KeyRing
from perdure.errors import ModelError
from perdure.journal.events import REQUEST_RECONCILE
from perdure.logs import configure_logging, get_logger
from perdure.messages.large_requests import MAX_UPDATE_BYTES
from perdure.messages.session import Trial
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.redaction import WITHHELD, RedactingCodec, safely
from tests.api.support import Obedient, served
from tests.workflows.support import ONCE, Counted, User, agent, calls, long_running, make_app, serving, text

SECRET = "4111-1111-1111-1111"


def hide(words: str) -> str:
    return words.replace(SECRET, "[card]")


def scramble(words: str) -> str:
    """Leave nothing of a text: what then still works has none of its own parts redacted."""
    return re.sub(r"\w", "x", words)


@pytest.fixture(autouse=True)
def _no_redaction_after() -> Generator[None]:
    yield
    logs.redact_logs(lambda words: words)


class Talker(Obedient):
    """Says the number in all that it says, and fails with it once."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = (llm_request.contents[-1].parts or [])[-1]
        part = types.Part(text=f"it is {SECRET}")
        if last.text and last.text.startswith("break"):
            raise ModelError(f"no card {SECRET}", retryable=False)
        if last.text and last.text.startswith(("pay", "crash")):
            name = last.text.split()[0]
            part = types.Part(function_call=types.FunctionCall(name=name, args={"card": SECRET, "id": SECRET}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def talking_app(name: str, model: Talker) -> Any:
    def pay(card: str, id: str, tool_context: ToolContext) -> dict[str, Any]:
        """Pay."""
        get_logger("perdure.test").info("paying", card=card)
        logging.getLogger("perdure.other").warning("paid with %s", SECRET)
        tool_context.state["card"] = SECRET
        tool_context.state["temp:card"] = SECRET
        return {"card": SECRET, "deep": [{"card": f"<{SECRET}>"}], "id": SECRET}

    def crash(card: str, id: str) -> None:
        """Crash."""
        raise ValueError(f"the card {SECRET} is bad") from KeyError(SECRET)

    tools = [pay, FunctionTool(crash, retry=ONCE)]
    return make_app(name, LlmAgent(name="clerk", model=model, tools=list(tools)))


@pytest.mark.server
@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_secret_stands_in_no_history_log_or_answer(
    temporal_server: str, client: Client, app_name: str, encrypted: bool
) -> None:
    """Wherever it comes from: a message, a model, a tool's arguments, result, state and errors, with their traces."""
    codec = EncryptionCodec(KeyRing((Key.new("k"),))) if encrypted else None
    config = ConnectionConfig(address=temporal_server, tls=False, redact=hide, payload_codec=codec)
    redacting = await connect(config)
    stream = io.StringIO()
    configure_logging(json=True, level="debug", stream=stream)
    model = Talker()
    app = talking_app(app_name, model)
    async with serving(redacting, app), served(redacting, app, model) as api:
        user = User(redacting, app_name, "ann")
        await user.create(card=SECRET, deep={"card": [SECRET]})
        for message in ("say", "pay", "crash", "break"):
            await user.run(f"{message} {SECRET}", state_delta={"note": SECRET})
        answers = [
            await api.http.get(path)
            for path in (
                api.path("s"),
                f"/v1{api.path('s')}/events",
                f"/v1{api.path('s')}/invocations",
                f"/v1{api.path('s')}/effects",
                f"/v1{api.path('s')}/explain",
                f"/v1{api.path('s')}/export?journal=true",
                f"/inbox{api.path('s')}",
            )
        ]
        assert {answer.status_code for answer in answers} == {200}
        assert SECRET not in "".join(answer.text for answer in answers)
        assert "[card]" in answers[0].text
        for history in await user.histories():
            told = history.to_json()
            assert SECRET not in told
            assert encrypted or "[card]" in told
    assert SECRET not in stream.getvalue()
    assert "the card [card] is bad" in stream.getvalue()
    assert "paid with [card]" in stream.getvalue()


@pytest.mark.server
async def test_a_worker_redacts_whoever_the_client_is(client: Client, app_name: str) -> None:
    """What tools and models say; what a client writes is that client's."""
    model = Talker()
    async with serving(client, talking_app(app_name, model), redact=hide) as user:
        await user.create()
        for message in ("say", "pay", "crash"):
            await user.run(message)
        for history in await user.histories():
            assert SECRET not in history.to_json()


@pytest.mark.server
@pytest.mark.timeout(120)
@pytest.mark.parametrize("cached", [100, 0])
async def test_names_and_ids_stay_as_they_are(temporal_server: str, app_name: str, cached: int) -> None:
    """A function that leaves no letter standing breaks no session: waits, doubts, approvals, replays, later runs."""
    scrambling = await connect(ConnectionConfig(address=temporal_server, tls=False, redact=scramble))
    paid: list[str] = []

    def pay(amount: int, tool_context: ToolContext) -> dict[str, int]:
        """Pay."""
        paid.append(tool_context.idempotency_key)
        if len(paid) == 1:
            raise RuntimeError("cut off")
        return {"paid": amount}

    def send(to: str) -> str:
        """Send."""
        return to

    script = [calls("pay", amount=5), calls("send", to="Oslo"), calls("ask"), text("done")]
    tools = [FunctionTool(pay, at_most_once=True), FunctionTool(send, require_confirmation=True), long_running("ask")]
    app = make_app(app_name, agent("clerk", ScriptedModel(script), tools, output_key="said"))
    async with serving(scrambling, app, cached=cached) as user:
        await user.create(city="Oslo")
        view = await user.run("go")
        assert view.status == "failed"
        await user.resume(view.id)
        (doubt,) = await user.open(REQUEST_RECONCILE)
        await user.answered({doubt: {"run_again": True}})
        (approval,) = await user.open("adk_request_confirmation")
        await user.answered({approval: {"confirmed": True}})
        (question,) = await user.open("ask")
        assert (await user.answered({question: {"value": "a word"}})).status == "finished"
        assert len(paid) == 2
        assert (await user.view()).state == {"city": "xxxx", "said": "xxxx"}
        assert [event.text for event in await user.events() if event.text] == ["xx", "xxxx"]


def opaque(words: str) -> str:
    """Hide what looks like a key or a UUID: base64 and ids of Perdure's own do, too."""
    return re.sub(r"[A-Za-z0-9/+]{40}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "[key]", words)


@pytest.mark.server
@pytest.mark.timeout(120)
@pytest.mark.parametrize("redact", [opaque, scramble])
async def test_what_perdure_encodes_is_handed_over_whole(
    temporal_server: str, app_name: str, redact: Callable[[str], str]
) -> None:
    """From run to run, from a large request to its own update, and from an export to a session made of it."""
    redacting = await connect(ConnectionConfig(address=temporal_server, tls=False, redact=redact))
    look = Counted("look", "a result")
    first = agent("first", [calls("look"), calls("look"), text("so"), text("again")], [look.fn])
    app = make_app(app_name, SequentialAgent(name="root", sub_agents=[first, agent("second", [text("b"), text("d")])]))
    async with serving(redacting, app) as user:
        user.runner = Runner(app_name, redacting, trial=Trial(steps_per_run=1))
        await user.create()
        assert (await user.run("go")).status == "finished"
        large = [f"{letter} " * MAX_UPDATE_BYTES for letter in "pq"]
        for words in large:
            assert (await user.run(words)).status in ("finished", "failed")
        told = [event.text for event in await user.events() if event.author == "user"]
        assert told[1:] == [redact(words) for words in large]
        assert len(await user.histories()) > 3
        lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
        other = user.other(session_id="t")
        await other.runner.import_session(lines, user_id="u", session_id="t")
        assert [event.id for event in await other.events()] == [event.id for event in await user.events()]


@pytest.mark.server
@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_large_result_is_kept_redacted(
    temporal_server: str, app_name: str, tmp_path: Path, encrypted: bool
) -> None:
    """As text and as data; in a form that is readable where nothing is encrypted."""
    codec = EncryptionCodec(KeyRing((Key.new("k"),))) if encrypted else None
    config = ConnectionConfig(address=temporal_server, tls=False, redact=hide, payload_codec=codec)
    redacting = await connect(config)

    def page() -> str:
        """Get a text."""
        return f"the card {SECRET} " * 120_000

    def rows() -> dict[str, Any]:
        """Get data."""
        return {"id": SECRET, "rows": [SECRET, 1, None] * 100_000}

    service = FileArtifactService(tmp_path)
    app = make_app(app_name, agent("clerk", [calls("page"), calls("rows"), text("so")], [page, rows]))
    async with serving(redacting, app, artifacts=service) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
    where: dict[str, Any] = {"app_name": app_name, "user_id": "u", "session_id": "s"}
    read: list[bytes] = []
    for name in await service.list_artifact_keys(**where):
        stored = await service.load_artifact(**where, filename=name)
        opened = await SealedArtifacts(service, codec).load_artifact(**where, filename=name)
        assert stored is not None
        assert stored.inline_data is not None
        assert opened is not None
        assert opened.inline_data is not None
        assert (stored.inline_data.mime_type == SEALED) is encrypted
        assert SECRET.encode() not in (stored.inline_data.data or b"")
        read.append(opened.inline_data.data or b"")
    assert sorted(read) == sorted(
        [hide(page()).encode(), to_json({"id": "[card]", "rows": ["[card]", 1, None] * 100_000})]
    )


def encode(redact: Callable[[str], Any], value: bytes, encoding: bytes = b"json/plain") -> bytes:
    codec = RedactingCodec(safely(redact))
    (payload,) = asyncio.run(codec.encode([Payload(metadata={"encoding": encoding}, data=value)]))
    return payload.data


def test_a_function_that_fails_leaks_nothing_and_spoils_nothing_else() -> None:
    """The text is withheld, and says so; what is no text stays."""

    def picky(words: str) -> Any:
        if "a" in words:
            raise KeyError(words)
        return None if "b" in words else words

    told = encode(picky, b'{"id":"a","text":"a","more":["b","c",1,null,true,1.5],"args":{"id":"a"}}')
    withheld = WITHHELD.encode()
    assert told == (
        b'{"id":"a","text":"%b","more":["%b","c",1,null,true,1.5],"args":{"id":"%b"}}' % (withheld, withheld, withheld)
    )


def test_what_is_not_changed_is_passed_on_as_it_is() -> None:
    """To the byte, and what is no JSON is left alone."""
    value = b'{ "text" : "\\u00e4" }'
    assert encode(hide, value) == value
    assert encode(scramble, b"\x00\xff", b"binary/plain") == b"\x00\xff"
