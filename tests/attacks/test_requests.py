"""Small requests that ask for too much: reserved ids, numbers that JSON has not, a model's own parts, cursors."""

from __future__ import annotations

import base64
import json
import math
import shutil
import subprocess
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from google.genai import types
from temporalio.client import Client, WorkflowFailureError

from perdure.errors import InvalidMessage, PerdureError
from perdure.journal.entries import MessageAccepted, SessionCreated
from perdure.journal.events import Event
from perdure.journal.fold import fold_journal
from perdure.messages.keys import SessionKey
from perdure.messages.session import MessageInput
from perdure.rules.intake import check_ids, check_message, check_parts
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.health import PROBE, Pulse
from perdure.sessions.pending import Wanted, _mark  # pyright: ignore[reportPrivateUsage] -- what a forger would compute
from perdure.views.explanation import EXPLAINED, explain_session
from perdure.worker import create_workers
from tests.api.auth_support import Keys
from tests.api.support import Api, api_and_worker, call_of
from tests.cli.test_main import free_port
from tests.workflows.support import agent, eventually, make_app

RESERVED = [".", "..", "__x", "__", "__proto__", ""]
OTHERS = ["...", "a.b", "_x", ".x", "a__b", "-", "%2E%2E", "a/.."]


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_ids_are_refused(name: str) -> None:
    for user, session in ((name, "s"), ("u", name)):
        with pytest.raises(InvalidMessage):
            check_ids(SessionKey("shop", user, session))


@pytest.mark.parametrize("name", OTHERS)
def test_other_ids_are_taken(name: str) -> None:
    check_ids(SessionKey("shop", name, name))


MODELS_OWN = {
    "thought": types.Part(text="I may", thought=True),
    "thought_signature": types.Part(text="I may", thought_signature=b"x"),
    "executable_code": types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON)),
    "code_execution_result": types.Part(code_execution_result=types.CodeExecutionResult(output="1")),
    "tool_call": types.Part(tool_call=types.ToolCall(id="c")),
    "tool_response": types.Part(tool_response=types.ToolResponse(id="c")),
    "function_call": types.Part(function_call=types.FunctionCall(name="pay")),
}


@pytest.mark.parametrize("name", MODELS_OWN)
def test_a_user_says_nothing_that_only_a_model_may_say(name: str) -> None:
    content = types.Content(role="user", parts=[types.Part(text="hello"), MODELS_OWN[name]])
    with pytest.raises(InvalidMessage, match="only a model may"):
        check_message(MessageInput(content=content))


def test_every_part_there_is_is_a_users_or_a_models() -> None:
    """A field that comes with a newer library is refused until somebody has thought of it."""
    users = types.Part(
        text="t",
        inline_data=types.Blob(data=b"x", mime_type="a/b"),
        file_data=types.FileData(file_uri="f"),
        video_metadata=types.VideoMetadata(fps=1),
        part_metadata={"a": 1},
        thought=False,
    )
    check_parts(types.Content(parts=[users]))
    own = {name for name in types.Part.model_fields if name in MODELS_OWN} | {"audio_transcription"}
    described = {name for name in types.Part.model_fields if name.endswith("_metadata")}
    taken = {"text", "inline_data", "file_data", "function_response", "media_resolution", "media_processing"}
    assert own | described | taken == types.Part.model_fields.keys()


def test_of_thousands_that_are_queued_a_page_is_explained() -> None:
    """Five thousand made 131 MB."""
    projection = fold_journal(
        [
            SessionCreated(state={}),
            *(
                MessageAccepted(
                    event=Event(
                        id=f"v-{number}",
                        timestamp=1.0,
                        author="user",
                        invocation_id=f"e-{number:032}",
                        content=types.Content(role="user", parts=[types.Part(text="hi")]),
                    ),
                    request_id=f"r-{number}",
                )
                for number in range(5000)
            ),
        ]
    )
    told = explain_session(projection, SessionKey("travel", "ann", "s"))
    assert (len(told.invocations), told.open_count, told.next) == (EXPLAINED, 5000, EXPLAINED)
    assert told.invocations[-1].behind_count == EXPLAINED - 1
    assert len(told.model_dump_json()) < 50_000
    last = explain_session(projection, SessionKey("travel", "ann", "s"), since=4990, limit=100)
    assert (len(last.invocations), last.next, last.invocations[-1].behind_count) == (10, None, 4999)
    assert len(last.invocations[-1].behind) < 10


@pytest.fixture(scope="module")
async def api(client: Client) -> AsyncGenerator[Api]:
    async with api_and_worker(client) as running:
        yield running


@pytest.mark.server
async def test_no_session_comes_to_be_under_a_reserved_id(api: Api, client: Client, app_name: str) -> None:
    # Of an app of its own: Temporal keeps what it started for a while, and other tests list their app's sessions.
    [worker] = create_workers(client, [make_app(app_name, agent("clerk", []))])
    async with worker:
        for name in (".", "..", "__x"):
            for body in ({"sessionId": name}, {"sessionId": name, "events": [{"author": "user"}]}):
                answer = await api.http.post(api.path(), json=body)
                assert (answer.status_code, "are reserved" in answer.json()["detail"]) == (400, True)
            with pytest.raises(InvalidMessage):
                await api.user("s").runner.create_session(user_id=name, session_id="s")
            # Whoever may start workflows goes around all of them.
            session = SessionKey(app_name, "ann", name).workflow_id
            started = await client.start_workflow(app_name, id=session, task_queue=app_name)
            with pytest.raises(WorkflowFailureError) as failed:
                await started.result()
            assert "are reserved" in str(failed.value.cause)


@pytest.mark.server
async def test_parts_of_a_model_are_422(api: Api) -> None:
    session = await api.create()
    for name in MODELS_OWN.keys() - {"function_call"}:
        part = MODELS_OWN[name].model_dump(mode="json", by_alias=True, exclude_none=True)
        answer = await api.run(session, newMessage={"parts": [part]})
        assert (answer.status_code, name in answer.text) == (422, True), answer.text
    assert (await api.session(session)).get("events", []) == []


@pytest.mark.server
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_a_number_that_json_has_not_is_no_answer(api: Api, client: Client, number: float) -> None:
    session = await api.create()
    call, _ = call_of(await api.ran(session, "ask"))
    handle = client.get_workflow_handle(SessionKey(api.app, "ann", session).workflow_id)
    await handle.signal("function_response", {"id": call, "response": {"sum": [number]}})
    with pytest.raises((PerdureError, ValueError)):
        await api.user(session).runner.respond(
            user_id="ann", session_id=session, responses={call: {"sum": {"a": number}}}
        )
    assert [waiting.id for _, waiting in await api.user(session).runner.pending(user_id="ann", session_id=session)] == [
        call
    ]
    await handle.signal("function_response", {"id": call, "response": {"sum": "NaN"}})

    async def is_answered() -> bool:
        return not await api.user(session).runner.pending(user_id="ann", session_id=session)

    await eventually(is_answered)


@pytest.mark.server
async def test_a_cursor_that_was_made_up_or_is_anothers_is_refused(client: Client) -> None:
    keys = Keys()
    async with api_and_worker(client, auth=keys.auth) as api:
        whole = f"/v1/apps/{api.app}/pending"
        cursors = ["x", "é", "AAAA", base64.urlsafe_b64encode(b"x" * 40).decode()]
        for token in (b"{}", b"junk", b"\x00" * 30, json.dumps({"StartTime": "x", "RunID": 1}).encode()):
            wanted = Wanted(app=api.app, user_id="ann")
            cursors.append(base64.urlsafe_b64encode(_mark(token, wanted) + token).decode())
        for cursor in cursors:
            answer = await api.http.get(whole, params={"cursor": cursor, "userId": "ann"}, headers=keys.of("ann"))
            # On a token that it did not give Temporal itself may fail, until it is asked no more: 503 then.
            assert answer.status_code in (200, 400, 503), (cursor, answer.text)
            assert answer.status_code != 200 or answer.json()["calls"] == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 20 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = shutil.which("mount")
    arguments = ["-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)]
    if command is None or subprocess.run([command, *arguments], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filling:
        while True:
            filling.write(b"x" * 4096)


@pytest.mark.server
async def test_a_server_whose_disk_is_full_is_not_ready(disk: Path) -> None:
    """It answers every question, and takes nothing."""
    port = free_port()
    async with DevServer(DevServerConfig(headless=True, port=port, data_file=disk / "temporal.db")):
        client = await Client.connect(f"127.0.0.1:{port}")
        pulse = Pulse(client, writes=timedelta(0))
        assert await pulse.trouble() is None
        filling = disk / "filling"
        with pytest.raises(OSError, match="No space"):
            fill(filling)

        async def is_full() -> bool:
            return "writes nothing" in (await pulse.trouble() or "")

        await eventually(is_full)
        filling.unlink()
        await eventually(pulse.beats)

        async def nothing_is_left() -> bool:
            return [run.id async for run in client.list_workflows(f"WorkflowType = '{PROBE}'")] == []

        await eventually(nothing_is_left)
