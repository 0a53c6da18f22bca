"""Credentials that tools of google.adk ask users for: asked, answered, used once, and in no history."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_schemes import AuthScheme
from google.adk.auth.auth_tool import AuthConfig
from google.adk.tools import ToolContext
from google.adk.tools.authenticated_function_tool import AuthenticatedFunctionTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from pydantic import TypeAdapter
from temporalio.client import Client

from perdure.adk import internals
from perdure.client import Runner
from perdure.credentials import CredentialStore, FileCredentialStore
from perdure.encryption.codec import EncryptionCodec, Key, KeyRing
from perdure.errors import CallNotFound, InvalidMessage
from perdure.messages.session import InvocationView
from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import User, serving

pytestmark = pytest.mark.server

CLIENT_SECRET, CODE, TOKEN, KEY = "hush-client", "hush-code", "hush-token", "hush-key"


def scheme(**fields: Any) -> AuthScheme:
    return TypeAdapter[AuthScheme](AuthScheme).validate_python(fields)


KEY_CONFIG = AuthConfig(auth_scheme=scheme(**{"type": "apiKey", "in": "header", "name": "X-Key"}), credential_key="key")


def read_mail(folder: str, tool_context: ToolContext) -> dict[str, Any]:
    """Read the mail."""
    credential = tool_context.get_auth_response(KEY_CONFIG)
    if credential is None:
        tool_context.request_credential(KEY_CONFIG)
        return {"status": "a key is needed"}
    return {"mail": f"of {folder}", "right": credential.api_key == KEY}


def send_mail(tool_context: ToolContext) -> dict[str, Any]:
    """Send a mail."""
    return read_mail("out", tool_context)


class Tokens:
    """A token endpoint, which takes a code once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.exchanges: list[str] = []


@pytest.fixture
def tokens() -> Generator[Tokens]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            code = form["code"][0]
            right = code == CODE and code not in served.exchanges
            served.exchanges.append(code)
            body = {"access_token": TOKEN, "token_type": "Bearer"} if right else {"error": "invalid_grant"}
            text = json.dumps(body).encode()
            self.send_response(200 if right else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Tokens(f"http://127.0.0.1:{server.server_port}/token")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def oauth_config(tokens: Tokens) -> AuthConfig:
    flow = {"authorizationUrl": "https://login.example/", "tokenUrl": tokens.url, "scopes": {"read": "Read"}}
    return AuthConfig(
        auth_scheme=scheme(type="oauth2", flows={"authorizationCode": flow}),
        raw_auth_credential=AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2,
            oauth2=OAuth2Auth(client_id="desk", client_secret=CLIENT_SECRET, redirect_uri="https://app.example/back"),
        ),
        credential_key="files",
    )


SIGNED_IN = {
    "exchangedAuthCredential": {
        "authType": "oauth2",
        "oauth2": {"authResponseUri": f"https://app.example/back?code={CODE}"},
    }
}
GIVEN_KEY = {"exchangedAuthCredential": {"authType": "apiKey", "apiKey": KEY}}


@contextmanager
def keeping(client: Client, how: str, folder: Path) -> Generator[tuple[Client, CredentialStore | None]]:
    """Yield a client, and a store: one of both keeps secrets."""
    if how == "by reference":
        yield client, FileCredentialStore(folder)
        return
    codec = EncryptionCodec(KeyRing((Key.new("k"),)))
    config = client.config()
    config["data_converter"] = replace(client.data_converter, payload_codec=codec)
    yield Client(**config), FileCredentialStore(folder) if how == "both" else None


def user_of(client: Client, app: str, store: CredentialStore | None) -> User:
    user = User(client, app)
    user.runner = Runner(app, client, credentials=store)
    return user


async def check_no_history_has(user: User, *secrets: str) -> None:
    """Check what stands in histories: as it is, and, where they are not encrypted, in what is packed there."""
    raw = b"".join(event.SerializeToString() for history in await user.histories() for event in history.events)
    if user.client.data_converter.payload_codec is None:
        raw += "".join(entry.model_dump_json() for entry in (await user.journal()).entries).encode()
    for secret in secrets:
        assert secret.encode() not in raw, f"{secret} stands in a history"


EVERY_WAY = pytest.mark.parametrize("how", ["by reference", "encrypted", "both"])


@EVERY_WAY
async def test_a_tool_runs_again_with_the_key_that_it_asked_for(
    client: Client, app_name: str, tmp_path: Path, how: str
) -> None:
    """Another worker takes the answer up; nothing that holds it is readable in a history."""
    clerk = agent("clerk", call("read_mail", folder="in"), tools=[read_mail])
    with keeping(client, how, tmp_path) as (own, store):
        async with serving(own, make_app(app_name, clerk, resumable=True), credentials=store):
            user = user_of(own, app_name, store)
            await user.create()
            waiting = await user.run("Any mail?")
            assert waiting.status == "waiting", waiting.failures
            [asked] = waiting.pending
            assert (asked.name, asked.about) == ("adk_request_credential", "read_mail")
        clerk.model = Script(say("You have mail."))
        async with serving(own, make_app(app_name, clerk, resumable=True), credentials=store):
            done = await user.answered({asked.id: GIVEN_KEY})
            assert (done.status, done.id) == ("finished", waiting.id)
            assert (await user.log())[1:] == [
                "clerk calls read_mail",
                "clerk calls adk_request_credential",
                "clerk got read_mail",
                "user answers adk_request_credential",
                "clerk got read_mail",
                "clerk: You have mail.",
            ]
            responses = [r for event in await user.events() for r in event.get_function_responses()]
            assert responses[-1].response == {"mail": "of in", "right": True}
            await check_no_history_has(user, KEY)


@EVERY_WAY
async def test_a_code_is_exchanged_once(
    client: Client, app_name: str, tmp_path: Path, tokens: Tokens, how: str
) -> None:
    """Also where the tool fails behind the exchange, and the invocation is resumed."""
    calls: list[str | None] = []

    async def list_files(credential: AuthCredential) -> dict[str, Any]:
        """List files."""
        assert credential.oauth2 is not None
        calls.append(credential.oauth2.access_token)
        if len(calls) == 1:
            raise OSError("the disk is full")
        return {"files": []}

    tool = AuthenticatedFunctionTool(func=list_files, auth_config=oauth_config(tokens))
    clerk = agent("clerk", call("list_files"), say("none"), call("list_files"), say("none"), tools=[tool])
    with keeping(client, how, tmp_path) as (own, store):
        async with serving(own, make_app(app_name, clerk, resumable=True), credentials=store):
            user = user_of(own, app_name, store)
            await user.create()
            waiting = await user.run("files?")
            [asked] = waiting.pending
            assert "https://login.example/" in str(asked.args)
            assert CLIENT_SECRET not in str(asked.args)
            failed = await user.answered({asked.id: SIGNED_IN})
            assert failed.status == "failed"
            done = await user.resumed(failed.id)
            assert done.status == "finished", done.failures
            # ADK keeps the token for the user's next invocation.
            assert (await user.run("files?")).status == "finished"
            assert (calls, tokens.exchanges) == ([TOKEN] * 3, [CODE])
            await check_no_history_has(user, CLIENT_SECRET, CODE, TOKEN)


class Mail(BaseToolset):
    """Tools behind a login."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        self.listed += 1
        return [FunctionTool(func=look)]

    def get_auth_config(self) -> AuthConfig | None:
        return KEY_CONFIG


def look() -> dict[str, Any]:
    """Look into the mail."""
    return {"mail": "none"}


async def test_a_toolset_asks_before_its_model_does(client: Client, app_name: str, tmp_path: Path) -> None:
    mail, store = Mail(), FileCredentialStore(tmp_path)
    clerk = agent("clerk", call("look"), say("no mail"), tools=[mail])
    async with serving(client, make_app(app_name, clerk, resumable=True), credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        waiting = await user.run("hi")
        [asked] = waiting.pending
        assert (asked.about, mail.listed) == ("Mail", 0)
        assert (await user.answered({asked.id: GIVEN_KEY})).status == "finished"
        assert (await user.log())[1:] == [
            "clerk calls adk_request_credential",
            "user answers adk_request_credential",
            "clerk calls look",
            "clerk got look",
            "clerk: no mail",
        ]
        await check_no_history_has(user, KEY)


async def test_calls_that_need_one_key_are_asked_for_it_as_in_adk(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    """ADK 2 asks once, and runs all of them again; ADK 1 asks for each."""
    store = FileCredentialStore(tmp_path)
    asks = [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in _BOTH.items()]
    clerk = agent("clerk", asks, say("done"), tools=[read_mail, send_mail])
    async with serving(client, make_app(app_name, clerk, resumable=True), credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        waiting = await user.run("both")
        assert len(waiting.pending) == (1 if internals.MAJOR >= 2 else 2)
        done = await user.answered({asked.id: GIVEN_KEY for asked in waiting.pending})
        assert done.status == "finished", done.failures
        [*_, event, _] = [event for event in await user.events() if event.content]
        assert [r.response and r.response["right"] for r in event.get_function_responses()] == [True, True]


_BOTH: dict[str, dict[str, Any]] = {"read_mail": {"folder": "in"}, "send_mail": {}}


async def test_where_nothing_pauses_the_answer_starts_an_invocation(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    """ADK 1 asks its model what it makes of that; ADK 2 ends the turn, and the sequence, at the question."""
    store = FileCredentialStore(tmp_path)
    first = agent("first", call("read_mail", folder="in"), say("asked"), say("read"), tools=[read_mail])
    second = agent("second", say("noted"))
    if internals.MAJOR >= 2:
        first.model = Script(call("read_mail", folder="in"), say("read"))
    root = SequentialAgent(name="root", sub_agents=[first, second])
    async with serving(client, make_app(app_name, root), credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        ended = await user.run("Any mail?")
        assert ended.status == "finished", ended.failures
        said = [line for line in await user.log() if ": " in line][1:]
        assert said == ([] if internals.MAJOR >= 2 else ["first: asked", "second: noted"])
        [asked] = (await user.pending()).values() or [_asked(await user.events())]
        assert (await user.answered({asked: GIVEN_KEY})).status == "finished"
        assert (await user.log())[-3:] == [
            "user answers adk_request_credential",
            "first got read_mail",
            "first: read",
        ]


def _asked(events: Any) -> str:
    return next(
        call.id for event in events for call in event.get_function_calls() if call.name == "adk_request_credential"
    )


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"result": "hush-key"},
        {"apiKey": "hush-key"},
        {"exchangedAuthCredential": "hush-key"},
        {"exchangedAuthCredential": {"apiKey": "hush-key"}},
        {"exchangedAuthCredential": {"authType": "password", "apiKey": "hush-key"}},
        {"response": "no json"},
        {"response": '{"apiKey": "hush-key"}'},
    ],
)
async def test_an_answer_without_a_credential_is_refused(
    client: Client, app_name: str, tmp_path: Path, answer: dict[str, Any]
) -> None:
    """What it holds is not quoted, no history has it, and the session goes on waiting."""
    store = FileCredentialStore(tmp_path)
    clerk = agent("clerk", call("read_mail", folder="in"), say("read"), tools=[read_mail])
    async with serving(client, make_app(app_name, clerk, resumable=True), credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        waiting = await user.run("Any mail?")
        [asked] = waiting.pending
        with pytest.raises(InvalidMessage, match="exchangedAuthCredential: an object with an authType") as refused:
            await user.answer({asked.id: answer})
        assert KEY not in str(refused.value)
        with pytest.raises(CallNotFound):
            await user.answer({"adk-other": GIVEN_KEY})
        await check_no_history_has(user, KEY)
        # ADK's web page wraps what is typed in.
        given = GIVEN_KEY if "response" not in answer else {"response": json.dumps(GIVEN_KEY)}
        done = await user.answered({asked.id: given})
        assert done.status == "finished", done.failures


async def test_who_gives_no_credential_says_so(client: Client, app_name: str, tmp_path: Path) -> None:
    """The tool runs again without; what it asks for then is not asked again, as in ADK: the model says so."""
    store = FileCredentialStore(tmp_path)
    clerk = agent("clerk", call("read_mail", folder="in"), say("a key is needed"), tools=[read_mail])
    async with serving(client, make_app(app_name, clerk, resumable=True), credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        [asked] = (await user.run("Any mail?")).pending
        done = await user.answered({asked.id: {"exchangedAuthCredential": None}})
        assert (done.status, done.pending) == ("finished", ())
        assert (await user.log())[-2:] == ["clerk got read_mail", "clerk: a key is needed"]


@pytest.mark.parametrize(("tools", "name"), [([read_mail], "read_mail"), ([Mail()], "Mail")])
async def test_nobody_is_asked_where_a_history_would_show_it(
    client: Client, app_name: str, tools: list[Callable[..., Any] | BaseToolset], name: str
) -> None:
    """The message says who asks, and what to do; the session goes on."""
    clerk = agent("clerk", call("read_mail", folder="in"), tools=tools)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("hi")
        assert failed.status == "failed"
        cause = failed.failures[0].cause
        assert f"agent 'clerk': {name}" in cause or f"{name} asks the user" in cause, cause
        assert "--encryption-keys" in cause
        assert "--credentials" in cause
        clerk.tools, clerk.model = [], Script(say("read"))
        assert (await user.run("again")).status == "finished"


async def test_a_credential_in_the_state_is_kept_by_reference(client: Client, app_name: str, tmp_path: Path) -> None:
    """ADK's OpenAPI tools write their users' credentials there, and find them in later invocations."""
    seen: list[Any] = []

    def save(tool_context: ToolContext) -> dict[str, Any]:
        """Save."""
        tool_context.state["existing"] = {"auth_type": "apiKey", "api_key": KEY}
        return {}

    def find(tool_context: ToolContext) -> dict[str, Any]:
        """Find."""
        seen.append(tool_context.state["existing"]["api_key"])
        return {}

    store = FileCredentialStore(tmp_path)
    clerk = agent("clerk", call("save"), say("saved"), call("find"), say("found"), tools=[save, find])
    async with serving(client, make_app(app_name, clerk), credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        await user.run("save")
        assert (await user.run("find")).status == "finished"
        assert seen == [KEY]
        reference = (await user.view()).state["existing"]["api_key"]
        assert reference.startswith("perdure-secret:")
        await check_no_history_has(user, KEY)
        await check_nobody_else_opens(client, app_name, clerk, reference, store)
        await user.runner.delete_session(**user.who)
        assert files_of(tmp_path) == []


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def check_nobody_else_opens(
    client: Client, app: str, clerk: LlmAgent, reference: str, store: CredentialStore
) -> None:
    """Check that a reference is worth nothing in the state of another user."""
    thief = User(client, app, "thief", "s")
    thief.runner = Runner(app, client, credentials=store)
    await thief.create(existing={"auth_type": "apiKey", "api_key": reference})
    clerk.model = Script(call("find"), say("found"))
    failed: InvocationView = await thief.run("find")
    assert failed.status == "failed"
    assert "the store here does not have it" in failed.failures[0].cause
