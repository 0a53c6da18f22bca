"""The codec endpoint over HTTP: Temporal's protocol, tokens, origins, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload

from perdure.config import ConnectionConfig, connect
from perdure.encryption import codec_server
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.codec_server import CodecServerConfig, create_codec_app, read_tokens
from perdure.encryption.keys import Key, KeyRing, add_key
from perdure.errors import DefinitionError
from perdure.serving.dev_server import find_temporal
from perdure.serving.http_server import serve
from perdure.serving.sockets import is_loopback, listen
from tests.cli.support import Perdure, perdure
from tests.workflows.support import agent, make_app, serving, text

__all__ = ["perdure"]

TOKEN, OTHER = "a-token-that-is-long", "another-token-of-some-length"
UI = "http://localhost:8233"
KEY = Key.new("k1")
CODEC = EncryptionCodec(KeyRing((KEY,)))
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data='"Grüße"'.encode())


@dataclass
class Answer:
    status: int
    body: Any
    headers: Message


class Endpoint:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    async def ask(self, path: str, body: bytes | None, method: str = "POST", **headers: str) -> Answer:
        """Send a request; headers are named with `_` for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.url}{path}", data=body, method=method, headers=named)

        def send() -> Answer:
            try:
                with urllib.request.urlopen(request, timeout=10) as response:
                    return Answer(response.status, _json(response.read()), response.headers)
            except urllib.error.HTTPError as error:
                with error:
                    return Answer(error.code, _json(error.read()), error.headers)

        return await asyncio.to_thread(send)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


@asynccontextmanager
async def endpoint(*tokens: str, origins: tuple[str, ...] = (UI,)) -> AsyncGenerator[Endpoint]:
    app = create_codec_app(CODEC, CodecServerConfig(tokens=tokens, origins=origins))
    stop = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(serve(app, listener, stop))
        try:
            yield Endpoint(listener.getsockname()[1])
        finally:
            stop.set()
            await task


def written(*payloads: Payload) -> bytes:
    """Return payloads as Temporal's UI writes them."""
    return json.dumps(
        {
            "payloads": [
                {
                    "metadata": {name: base64.b64encode(value).decode() for name, value in payload.metadata.items()},
                    "data": base64.b64encode(payload.data).decode(),
                }
                for payload in payloads
            ]
        }
    ).encode()


async def test_payloads_are_decrypted_and_encrypted() -> None:
    encrypted = CODEC.encrypt(PLAIN)
    foreign = EncryptionCodec(KeyRing((Key.new("lost"),))).encrypt(PLAIN)
    async with endpoint(TOKEN, OTHER) as at:
        for token in (TOKEN, OTHER):
            known = {"Authorization": f"Bearer {token}", "X_Namespace": "default"}
            answer = await at.ask("/decode", written(encrypted, PLAIN, foreign), **known)
            assert answer.status == 200
            plain = json.loads(written(PLAIN))["payloads"][0]
            first, second, third = answer.body["payloads"]
            assert first == second == plain
            # One whose key is not here comes back as it is, with word why.
            assert third["data"] == base64.b64encode(foreign.data).decode()
            assert b"'lost'" in base64.b64decode(third["metadata"]["encryption-fault"])
            assert answer.headers["cache-control"] == "no-store"
        answer = await at.ask("/encode", written(PLAIN), **known)
        assert answer.body["payloads"][0]["metadata"]["encoding"] == base64.b64encode(b"binary/encrypted").decode()
        assert (await at.ask("/decode", json.dumps(answer.body).encode(), **known)).body["payloads"] == [plain]
        assert (await at.ask("/decode", b"{}", **known)).body == {"payloads": []}


@pytest.mark.parametrize("given", [None, "", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN])
async def test_without_the_token_nothing_is_decrypted(given: str | None) -> None:
    async with endpoint(TOKEN) as at:
        headers = {"Authorization": given} if given is not None else {}
        answer = await at.ask("/decode", written(CODEC.encrypt(PLAIN)), **headers)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.body == {"message": "send a token: Authorization: Bearer TOKEN"}


async def test_the_pages_of_the_ui_may_ask_and_no_others() -> None:
    async with endpoint(TOKEN) as at:
        asks = {
            "Access_Control_Request_Method": "POST",
            "Access_Control_Request_Headers": "authorization,content-type,x-namespace",
        }
        answer = await at.ask("/decode", None, "OPTIONS", Origin=UI, **asks)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, UI)
        for name in ("authorization", "content-type", "x-namespace"):
            assert name in answer.headers["access-control-allow-headers"]
        evil = "http://evil.example"
        refused = await at.ask("/decode", None, "OPTIONS", Origin=evil, **asks)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (400, None)
        known = {"Authorization": f"Bearer {TOKEN}"}
        answer = await at.ask("/decode", written(PLAIN), Origin=UI, **known)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, UI)
        refused = await at.ask("/decode", written(PLAIN), Origin=evil, **known)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (403, None)
        # The page learns that its token is missing.
        unknown = await at.ask("/decode", written(PLAIN), Origin=UI)
        assert (unknown.status, unknown.headers["access-control-allow-origin"]) == (401, UI)


async def test_without_tokens_only_this_machine_is_answered_by_its_own_name() -> None:
    async with endpoint(origins=()) as at:
        assert (await at.ask("/decode", written(PLAIN))).status == 200
        assert (await at.ask("/decode", written(PLAIN), Host="localhost:8888")).status == 200
        assert (await at.ask("/decode", written(PLAIN), Host="rebound.example")).status == 403
        assert (await at.ask("/decode", written(PLAIN), Origin="http://localhost:3000")).status == 403


@pytest.mark.parametrize(
    "body",
    [b"", b"marker", b"[]", b'"marker"', b"null", b'{"payloads": "marker"}', b'{"payloads": [{"data": 5}]}', b"\xff"],
)
async def test_a_malformed_request_is_refused_and_not_quoted(body: bytes) -> None:
    async with endpoint() as at:
        answer = await at.ask("/decode", body)
        assert answer.status == 400
        assert "marker" not in answer.body["message"]


async def test_a_deep_or_large_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoint() as at:
        assert (await at.ask("/decode", b"[" * 100_000)).status == 400
        monkeypatch.setattr(codec_server, "MAX_BODY_BYTES", 1000)
        assert (await at.ask("/decode", written(*[PLAIN] * 50))).status == 413


async def test_there_is_nothing_else_to_find() -> None:
    async with endpoint() as at:
        for path in ("/", "/docs", "/openapi.json", "/decode/x"):
            assert (await at.ask(path, None, "GET")).status == 404
        assert (await at.ask("/decode", None, "GET")).status == 405


def test_for_other_machines_tokens_are_needed() -> None:
    with pytest.raises(DefinitionError, match=r"'0\.0\.0\.0' would decrypt for everybody"):
        CodecServerConfig(host="0.0.0.0")
    assert TOKEN not in repr(CodecServerConfig(host="0.0.0.0", tokens=(TOKEN,)))
    for origin in ("*", "localhost:8233", "http://localhost:8233/ui", "file://x", "https://*.example"):
        with pytest.raises(DefinitionError, match="is no origin"):
            CodecServerConfig(origins=(origin,))
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "[::1]", "example.com", "0.0.0.0")] == [
        *([True] * 4),
        *([False] * 2),
    ]


def test_tokens_are_read_from_a_file_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# the UI's\n{TOKEN}\n\n{OTHER}\n")
    assert read_tokens(path) == (TOKEN, OTHER)
    for content, words in [
        ("", "holds no token"),
        ("# x", "holds no token"),
        ("short", "too short"),
        ("ü" * 20, "header"),
    ]:
        path.write_text(content)
        with pytest.raises(DefinitionError, match=words):
            read_tokens(path)
    with pytest.raises(DefinitionError, match="No such file"):
        read_tokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --token-file FILE, or --no-auth"),
        (["--no-auth", "--token-file", "x"], "not both"),
        (["--no-auth"], "give the keys"),
        (["--no-auth", "--keys", "KEYS", "--host", "0.0.0.0"], "would decrypt for everybody"),
        (["--no-auth", "--keys", "KEYS", "--allow-origin", "*"], "is no origin"),
        (["--token-file", "none", "--keys", "KEYS"], "the tokens cannot be read"),
    ],
)
async def test_the_command_starts_nothing_that_is_open(
    perdure: Perdure, tmp_path: Path, arguments: list[str], words: str
) -> None:
    add_key(tmp_path / "keys.txt", KEY)
    given = [str(tmp_path / "keys.txt") if word == "KEYS" else word for word in arguments]
    done = await perdure("codec", *given)
    assert (done.code, words in done.err) == (64, True), done.err


@pytest.mark.process
async def test_the_command_serves_until_it_is_told_to_end(perdure: Perdure, tmp_path: Path) -> None:
    keys, tokens = tmp_path / "keys.txt", tmp_path / "tokens.txt"
    add_key(keys, KEY)
    tokens.write_text(TOKEN)
    command = ("codec", "--keys", str(keys), "--token-file", str(tokens), "--port")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure", *command, "0"), stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        said = (await process.stderr.readline()).decode()
        port = int(said.rpartition(":")[2])
        known = {"Authorization": f"Bearer {TOKEN}"}
        assert (await Endpoint(port).ask("/decode", written(CODEC.encrypt(PLAIN)), **known)).status == 200
        taken = await perdure(*command, str(port))
        assert (taken.code, f"cannot listen on 127.0.0.1:{port}" in taken.err) == (1, True)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert await process.stderr.read() == b""


@pytest.mark.server
async def test_temporals_own_command_line_reads_a_session_through_it(temporal_server: str, app_name: str) -> None:
    config = ConnectionConfig(address=temporal_server, namespace="default", tls=False, payload_codec=CODEC)
    app = make_app(app_name, agent("clerk", [text("a marker word")]))
    async with serving(await connect(config), app) as user, endpoint(TOKEN) as at:
        await user.create()
        await user.run("hello")
        command = [str(find_temporal()), "workflow", "show", "-w", user.key, "--address", temporal_server, "-o", "json"]
        through = ["--codec-endpoint", at.url, "--codec-auth", f"Bearer {TOKEN}"]
        for extra, is_readable in [(through, True), ([], False)]:
            done = await asyncio.to_thread(
                subprocess.run, [*command, *extra], capture_output=True, text=True, timeout=60, check=True
            )
            assert _holds(json.loads(done.stdout), b"a marker word") is is_readable


def _holds(value: Any, word: bytes) -> bool:
    """Return whether a payload in Temporal's JSON holds a word, in the open or in base64."""
    match value:
        case dict():
            return any(_holds(inner, word) for inner in value.values())  # pyright: ignore[reportUnknownVariableType] -- JSON
        case list():
            return any(_holds(inner, word) for inner in value)  # pyright: ignore[reportUnknownVariableType] -- JSON
        case str():
            return word in value.encode() or _in_base64(value, word)
        case _:
            return False


def _in_base64(text: str, word: bytes) -> bool:
    try:
        return word in base64.b64decode(text, validate=True)
    except ValueError:
        return False


def test_small_responses_leave_at_once() -> None:
    """Else each one on a connection that is kept waits for the client's acknowledgement of the part before."""
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
