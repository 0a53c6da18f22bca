"""Sessions under encryption keys: nothing readable in histories, rotation, readers, wrong keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure.agents import FunctionTool, ToolContext
from perdure.config import ConnectionConfig, connect
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import Key, KeyRing, add_key
from perdure.errors import EncryptionError
from perdure.messages.keys import SessionKey
from perdure.sessions.lifecycle import Lifecycle
from tests.cli.support import Perdure, perdure
from tests.workflows.support import ONCE, User, agent, calls, long_running, make_app, named, serving, text

__all__ = ["perdure"]

pytestmark = pytest.mark.server

OLD, NEW = Key.new("old"), Key.new("new")
WORD = "marzipan"
"""What must not be found in any history."""


async def client_with(address: str, *keys: Key) -> Client:
    codec = EncryptionCodec(KeyRing(keys)) if keys else None
    return await connect(ConnectionConfig(address=address, namespace="default", tls=False, payload_codec=codec))


def failing(name: str, broken: set[str], *, local: bool = False) -> FunctionTool:
    """A tool that fails as long as it is broken, and says the word."""

    def run(tool_context: ToolContext, what: str = "") -> Any:
        if name in broken:
            raise RuntimeError(f"no {WORD} left")
        tool_context.state["user:likes"] = WORD
        return {WORD: what}

    return FunctionTool(named(run, name), retry=ONCE, local=local)


def payloads(message: Message, path: str = "") -> Iterator[tuple[str, Payload]]:
    """Yield every payload inside of a message, with where it stands."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if isinstance(value, Payload):
            yield here, value
        elif isinstance(value, Message):
            yield from payloads(value, here)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in value:
                if isinstance(value[key], Message):
                    yield from (
                        payloads(value[key], f"{here}[{key}]")
                        if not isinstance(value[key], Payload)
                        else [(f"{here}[{key}]", value[key])]
                    )
        elif field.message_type is not None and field.is_repeated:
            for item in value:
                yield from [(here, item)] if isinstance(item, Payload) else payloads(item, here)


PLAIN = ("search_attributes.indexed_fields", "marker_recorded_event_attributes.details[data]", "patch-data", "version")
"""Payloads that Temporal's server or SDK reads itself: they hold statuses, names of tools, ids, times."""


def check_hidden(events: list[HistoryEvent], *, keys: set[bytes]) -> None:
    """Check that no event shows the word, and that all payloads but Temporal's own are encrypted, with these keys."""
    used: set[bytes] = set()
    for event in events:
        assert WORD.encode() not in event.SerializeToString(), event
        for where, payload in payloads(event):
            if any(part in where for part in PLAIN):
                continue
            assert payload.metadata["encoding"] == b"binary/encrypted", (where, payload)
            used.add(payload.metadata["encryption-key-id"])
    assert used == keys


async def history(client: Client, workflow_id: str) -> list[HistoryEvent]:
    return list((await client.get_workflow_handle(workflow_id).fetch_history()).events)


async def test_no_history_shows_what_was_said_done_or_failed(temporal_server: str, app_name: str) -> None:
    """Messages, arguments, results, answers, states, reasons, errors of tools and of local tools, summaries."""
    script = [calls("work", what=WORD), calls("note", what=WORD), calls("ask", what=WORD), text(f"Here is {WORD}.")]
    broken = {"work", "note"}
    tools = [failing("work", broken), failing("note", broken, local=True), long_running("ask", {"was": WORD})]
    clerk = agent("clerk", script, tools)
    client = await client_with(temporal_server, OLD)
    async with serving(client, make_app(app_name, clerk), cached=0) as user:
        await user.create(word=WORD)
        failed = await user.run(f"I want {WORD}", state_delta={"user:wants": WORD})
        assert failed.failures[0].cause == f"RuntimeError: no {WORD} left"
        broken.remove("work")
        again = await user.resumed(failed.id)
        assert (again.status, again.failures[0].step) == ("failed", "note")
        broken.remove("note")
        waiting = await user.resumed(failed.id)
        assert waiting.status == "waiting"
        await user.stop(failed.id, reason=f"too much {WORD}")
        await user.resumed(failed.id)
        (call,) = await user.open("ask")
        await user.answer({call: {"answer": WORD}}, metadata={"why": WORD})
        assert (await user.settled(failed.id)).status == "finished"
        assert f"Here is {WORD}." in "".join(await user.log())
        assert (await user.view()).state["user:likes"] == WORD

        check_hidden(await history(client, user.key), keys={b"old"})
        state = [run.id async for run in client.list_workflows("WorkflowType = 'perdure:state'") if app_name in run.id]
        assert state
        for workflow_id in state:
            check_hidden(await history(client, workflow_id), keys={b"old"})
        described = (await user.workflow.describe()).raw_description
        assert WORD.encode() not in described.SerializeToString()


async def test_keys_are_replaced_while_a_session_waits(temporal_server: str, app_name: str) -> None:
    """The worker and the client get a new key; what the old one encrypted is read, and can be without it no more."""

    def app() -> Any:
        return make_app(app_name, agent("clerk", [calls("ask"), text("done")], [long_running("ask")]))

    async with serving(await client_with(temporal_server, OLD), app()) as user:
        await user.create()
        waiting = await user.run(f"I want {WORD}")
    client = await client_with(temporal_server, NEW, OLD)
    async with serving(client, app()) as user:
        assert (await user.answered({waiting.pending[0].id: {"word": WORD}})).status == "finished"
        assert (await user.log())[0] == f"user: I want {WORD}"
        check_hidden(await history(client, user.key), keys={b"old", b"new"})
        with pytest.raises(EncryptionError, match=r"'old', which is not among the keys here \('new'\)"):
            await Lifecycle(await client_with(temporal_server, NEW)).take_over(SessionKey(app_name, "u", "s"))
        assert (await user.view()).status == "idle"


async def test_every_reader_decrypts_and_a_wrong_key_is_refused_in_words(
    perdure: Perdure, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right.txt", tmp_path / "wrong.txt"
    add_key(right, OLD)
    add_key(wrong, Key.new("wrong"))
    add_key(right, NEW)
    clerk = agent("clerk", [calls("ask", what=WORD), text("x"), text("y")], [long_running("ask")])
    async with serving(await client_with(temporal_server, NEW, OLD), make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run(f"I want {WORD}")
        name = (app_name, "--user", "u", "--session", "s", "--address", temporal_server)
        readers = [
            ("events", *name),
            ("export", *name, "--journal"),
            ("explain", *name),
            ("pending", *name),
            ("effects", *name),
        ]
        for command in readers:
            done = await perdure(*command, "--encryption-keys", str(right))
            assert done.code == 0, done.err
            assert WORD in done.out or command[0] == "effects"
            if command[0] not in ("events", "export"):
                continue
            done = await perdure(*command, "--encryption-keys", str(wrong))
            assert (done.code, done.out) == (1, "")
            assert "encrypted with the key 'new', which is not among the keys here ('wrong')" in done.err
            done = await perdure(*command)
            assert (done.code, "no keys are given here" in done.err) == (1, True)
        done = await perdure("replay", user.key, "--address", temporal_server, "--encryption-keys", str(right))
        assert done.code == 0, done.err

        # Nor can somebody with a wrong key hold the session up, by a message or a signal.
        done = await perdure("run", *name, "hello", "--encryption-keys", str(wrong))
        assert (done.code, "which is not among the keys here ('wrong')" in done.err) == (1, True)
        stranger = User(await client_with(temporal_server, Key.new("wrong")), app_name)
        await stranger.signal({"id": waiting.pending[0].id, "response": {}})
        assert (await user.run("b")).status == "finished"
        await Lifecycle(user.client).take_over(SessionKey(user.app, "u", "s"))
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
