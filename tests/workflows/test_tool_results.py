"""A tool that returned never runs again by itself, whatever it returned or wrote; the model is told what was wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.activities.payload_checks import MAX_LOCAL_BYTES
from perdure.agents import LongRunningFunctionTool, ToolContext
from perdure.agents.tools import FunctionTool
from perdure.artifacts import FileArtifactService
from perdure.artifacts.sealing import SEALED, SealedArtifacts
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import Key, KeyRing
from perdure.errors import ArtifactError
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import MAX_EVENT_BYTES
from perdure.journal.events import Event
from perdure.logs import configure_logging
from perdure.rules.in_doubt import Reconciled
from perdure.rules.large_results import MAX_RESULT_BYTES
from tests.workflows.support import (
    Counted,
    User,
    agent,
    calls,
    long_running,
    make_app,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server

_HALF = "\ud83d"


class _Broken(Mapping[str, Any]):
    """As a row whose connection is closed."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("the connection is closed")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class _Classless:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("it has no class")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise AttributeError


def _cycle() -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def _nothing_more() -> Iterator[int]:
    raise RuntimeError("the cursor is closed")
    yield 1


def _set_state(key: Any, value: Any) -> Callable[[ToolContext], Any]:
    def write(tool_context: ToolContext) -> None:
        tool_context.state["fine"] = 1
        tool_context.state[key] = value

    return write


def _set_action(name: str, value: Any) -> Callable[[ToolContext], Any]:
    def write(tool_context: ToolContext) -> None:
        setattr(tool_context.actions, name, value)

    return write


def _put_into(name: str, key: Any, value: Any) -> Callable[[ToolContext], Any]:
    def write(tool_context: ToolContext) -> None:
        getattr(tool_context.actions, name)[key] = value

    return write


def _forget(tool_context: ToolContext) -> None:
    _ = tool_context.save_artifact("map.png", types.Part(text="a map"))


ODD_RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (object, "an object of type object, which is no JSON"),
    "deep": (lambda: {"rows": [object()]}, "at ['rows'][0] it is an object"),
    "equal keys": (lambda: {1: 1, "1": 2}, "two keys that are '1' as texts"),
    "cycle": (_cycle, "holds itself"),
    "half a character": (lambda: _HALF, "half of a character"),
    "without a class": (_Classless, "cannot be read: RuntimeError: it has no class"),
    "broken": (_Broken, "RuntimeError: the connection is closed"),
    "broken iterator": (lambda: map(int, ["x"]), "cannot be read: ValueError"),
    "iterator of another function": (_nothing_more, "RuntimeError: the cursor is closed"),
    "endless": (itertools.count, "more than 100,000 items"),
}

ODD_WRITES: dict[str, tuple[Callable[[ToolContext], Any], str]] = {
    "state of an object": (_set_state("k", object()), "of key 'k', at ['k'] it is an object of type object"),
    "state of half a character": (_set_state("k", [_HALF]), "half of a character"),
    "state under a number": (_set_state(3, 1), "its key '3' is of type int"),
    "state under half a character": (_set_state(_HALF, 1), "half of a character"),
    "too large a state": (_set_state("k", "x" * 3_000_000), "it has 3.00 MB"),
    "state that is none": (_set_action("state_delta", [1]), "no mapping, but list"),
    "an action of another type": (_set_action("transfer_to_agent", {"a": 1}), "transfer_to_agent was not kept"),
    "a text for a flag": (
        _set_action("skip_summarization", "perhaps"),
        "skip_summarization was not kept: input should be a valid boolean",
    ),
    "a confirmation of another type": (
        _set_action("requested_tool_confirmations", {"c": 1}),
        "requested_tool_confirmations was not kept",
    ),
    "an action of an object": (_set_action("agent_state", object()), "agent_state was not kept"),
    **{
        f"the session's {name}": (_set_action(name, value), f"{name} was not kept: it is the session's to say")
        for name, value in (
            ("agent_state", {"current_sub_agent": "b"}),
            ("end_of_agent", True),
            ("compaction", {"a": 1}),
            ("rewind_before_invocation_id", "e-1"),
        )
    },
    "an artifact's version": (_put_into("artifact_delta", "a.txt", "latest"), "artifact_delta was not kept"),
    "an artifact that nobody awaited": (_forget, "artifact 'map.png' was not saved"),
}


def _tools(fn: Callable[..., Any], kind: str) -> FunctionTool:
    if kind == "long_running":
        return LongRunningFunctionTool(fn)
    return FunctionTool(fn, local=kind == "local")


async def _finished(user: User, kind: str) -> None:
    """Run to the end, whatever kind of tool it was."""
    await user.create()
    view = await user.run("a")
    if kind == "long_running":
        assert view.status == "waiting", view
        [call] = view.pending
        view = await user.answered({call.id: {"ok": True}})
    assert view.status == "finished", view


@pytest.mark.parametrize("kind", ["normal", "local", "long_running"])
@pytest.mark.parametrize("odd", ODD_RESULTS)
async def test_a_result_that_cannot_be_written_is_told_to_the_model(
    client: Client, app_name: str, odd: str, kind: str
) -> None:
    """With the default of three attempts: there is one run."""
    make, expected = ODD_RESULTS[odd]
    runs: list[str] = []

    def pay(tool_context: ToolContext) -> Any:
        """Pay."""
        runs.append(tool_context.idempotency_key)
        tool_context.state["paid"] = True
        return make()

    clerk = agent("clerk", [calls("pay"), text("so")], [_tools(pay, kind)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await _finished(user, kind)
        told = responses(await user.events(), "pay")[0]
        assert expected in told["error"]
        assert told["error"].startswith("Tool 'pay' has run to its end, but its result cannot be passed on")
        assert len(runs) == 1
        assert (await user.view()).state == {"paid": True}


@pytest.mark.parametrize("kind", ["normal", "local"])
@pytest.mark.parametrize("odd", ODD_WRITES)
async def test_what_a_tool_wrote_and_cannot_be_kept_is_told_to_the_model(
    client: Client, app_name: str, odd: str, kind: str
) -> None:
    """Beside the result, which is not lost; of the state all is kept or nothing."""
    write, expected = ODD_WRITES[odd]
    runs: list[str] = []

    def pay(tool_context: ToolContext) -> Any:
        """Pay."""
        runs.append(tool_context.idempotency_key)
        tool_context.actions.skip_summarization = True
        write(tool_context)
        return {"receipt": 7}

    clerk = agent("clerk", [calls("pay"), text("so")], [_tools(pay, kind)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await _finished(user, kind)
        [told] = responses(await user.events(), "pay")
        assert expected in told["error"]
        assert told["result"] == {"receipt": 7}
        assert len(runs) == 1
        assert (await user.view()).state == {}
        # The model reads of it, whatever the tool asked for.
        assert (await user.log())[-1] == "clerk: so"


def _sizes(most: int) -> list[int]:
    return [most - 3_000, most - 1_200, most - 900, most - 100, most, MAX_EVENT_BYTES, 1_890_000, 2_100_000, 5_000_000]


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("kind", ["normal", "local", "long_running"])
async def test_a_result_of_any_size_is_told_whole_or_by_its_beginning(
    client: Client, app_name: str, tmp_path: Path, kind: str, store: bool
) -> None:
    """Around the limit, with a state beside it; nothing fails, nothing runs twice."""
    sizes = _sizes(MAX_LOCAL_BYTES if kind == "local" else MAX_RESULT_BYTES)
    runs: list[int] = []

    def fetch(size: int, tool_context: ToolContext) -> Any:
        """Fetch."""
        runs.append(size)
        tool_context.state["size"] = size
        return "é" * 1_000 + "x" * (size - 2_000)

    script = [step for size in sizes for step in (calls("fetch", size=size), text("so"))]
    service = FileArtifactService(tmp_path) if store else None
    clerk = agent("clerk", script, [_tools(fetch, kind)])
    async with serving(client, make_app(app_name, clerk), artifacts=service) as user:
        await user.create()
        for size in sizes:
            view = await user.run(str(size))
            if kind == "long_running":
                view = await user.answered({view.pending[0].id: "ok"})
            assert view.status == "finished", view
        assert runs == sizes
        events = [event for event in await user.events() if event.author == "clerk" and event.get_function_responses()]
        whole = [size for size, event in zip(sizes, events, strict=True) if "beginning" not in _told(event)]
        assert whole == sizes[:2]
        for size, event in list(zip(sizes, events, strict=True))[2:]:
            told = _told(event)
            assert told["beginning"].startswith("é" * 1_000 + "x")
            assert len(told["beginning"]) == 4_000
            assert told["size"] == size
            assert event.actions.state_delta == {"size": size}
            if store:
                [(name, version)] = event.actions.artifact_delta.items()
                assert repr(name) in told["note"]
                part = await FileArtifactService(tmp_path).load_artifact(
                    app_name=app_name, user_id="u", session_id="s", filename=name, version=version
                )
                assert part is not None
                assert part.inline_data is not None
                assert len(part.inline_data.data or b"") == size
            else:
                assert "the rest was not kept" in told["note"]


def _told(event: Event) -> dict[str, Any]:
    return event.get_function_responses()[0].response or {}


@pytest.mark.parametrize("kind", ["normal", "confirmed", "long_running"])
async def test_results_that_fit_one_by_one_and_not_together_are_shortened_the_largest_first(
    client: Client, app_name: str, tmp_path: Path, kind: str
) -> None:
    runs: list[int] = []

    def fetch(size: int) -> Any:
        """Fetch."""
        runs.append(size)
        return {"page": "x" * size}

    sizes = [300_000, 900_000, 400_000, 800_000]
    step = {"calls": [{"name": "fetch", "args": {"size": size}} for size in sizes]}
    tool = (
        LongRunningFunctionTool(fetch)
        if kind == "long_running"
        else FunctionTool(fetch, require_confirmation=kind == "confirmed")
    )
    clerk = agent("clerk", [step, text("so")], [tool])
    service = FileArtifactService(tmp_path)
    async with serving(client, make_app(app_name, clerk), artifacts=service) as user:
        await user.create()
        view = await user.run("a")
        if kind != "normal":
            view = await user.answered({call.id: {"confirmed": True} for call in view.pending})
        assert view.status == "finished", view
        assert sorted(runs) == sorted(sizes)
        events = [event for event in await user.events() if event.author == "clerk" and event.get_function_responses()]
        event = events[-1]
        told = [response.response or {} for response in event.get_function_responses()]
        assert ["beginning" in answer for answer in told] == [False, True, False, False]
        assert told[1]["size"] == 900_011
        assert len(event.actions.artifact_delta) == 1
        assert payload_size(event) <= MAX_EVENT_BYTES


async def test_many_results_of_one_answer_leave_room_for_each_other(client: Client, app_name: str) -> None:
    """Their beginnings, too, must fit together."""

    def fetch() -> Any:
        """Fetch."""
        return "é" * 30_000

    async with serving(
        client, make_app(app_name, agent("clerk", [calls(*["fetch"] * 60), text("so")], [fetch]))
    ) as user:
        await _finished(user, "normal")
        told = responses(await user.events(), "fetch")
        assert len(told) == 60
        assert any("beginning" in answer for answer in told)
        assert any("beginning" not in answer for answer in told)


async def test_states_that_fit_one_by_one_and_not_together_are_refused_the_largest_first(
    client: Client, app_name: str
) -> None:
    runs: list[str] = []

    def write(key: str, size: int, tool_context: ToolContext) -> str:
        """Write."""
        runs.append(key)
        tool_context.state[key] = "x" * size
        return "written"

    sizes = {"a": 900_000, "b": 1_000_000}
    step = {"calls": [{"name": "write", "args": {"key": key, "size": size}} for key, size in sizes.items()]}
    async with serving(client, make_app(app_name, agent("clerk", [step, text("so")], [write]))) as user:
        await _finished(user, "normal")
        one, other = responses(await user.events(), "write")
        assert one == {"result": "written"}
        assert "was not kept" in other["error"]
        assert other["result"] == "written"
        assert list((await user.view()).state) == ["a"]
        assert sorted(runs) == ["a", "b"]


async def test_a_large_result_survives_a_failed_sibling_and_a_resume(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    """What returned is kept, also what had to be shortened; only what failed runs again."""
    fetch, pay = Counted("fetch", "x" * 2_500_000), Counted("pay", fail=1)
    clerk = agent("clerk", [calls("fetch", "pay", "fetch"), text("so")], [fetch.fn, pay.once])
    service = FileArtifactService(tmp_path)
    async with serving(client, make_app(app_name, clerk), artifacts=service) as user:
        await user.create()
        view = await user.run("a")
        assert view.status == "failed"
        assert (await user.resumed(view.id)).status == "finished"
        assert [answer["size"] for answer in responses(await user.events(), "fetch")] == [2_500_000] * 2
        assert (len(fetch.keys), len(pay.keys)) == (2, 2)


class _Down(FileArtifactService):
    """A store that cannot be reached."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tries = 0

    async def save_artifact(self, **given: Any) -> int:
        self.tries += 1
        raise ConnectionError("no route to the store")


@pytest.mark.parametrize("together", [False, True])
async def test_a_store_that_is_down_fails_no_tool(
    client: Client, app_name: str, tmp_path: Path, together: bool
) -> None:
    """What the store says is for operators: end users read the note in the response."""
    fetch = Counted("fetch", "x" * (1_000_000 if together else 2_000_000))
    clerk = agent("clerk", [calls(*["fetch"] * (2 if together else 1)), text("so")], [fetch.fn])
    store = _Down(tmp_path)
    stream = io.StringIO()
    configure_logging(json=True, stream=stream)
    async with serving(client, make_app(app_name, clerk), artifacts=store) as user:
        await _finished(user, "normal")
        told = responses(await user.events(), "fetch")[0]
        assert "the rest was not kept: ConnectionError" in told["note"]
        assert "no route" not in told["note"]
        assert "no route to the store" in stream.getvalue()
        assert len(fetch.keys) == (2 if together else 1)
        assert store.tries == 3


class _Hanging(FileArtifactService):
    """A store that says nothing."""

    async def save_artifact(self, **given: Any) -> int:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits for so long")


@pytest.mark.parametrize("kind", ["normal", "local", "at most once"])
async def test_a_store_that_hangs_runs_no_tool_again(client: Client, app_name: str, tmp_path: Path, kind: str) -> None:
    fetch = Counted("fetch", "x" * 2_000_000)
    tool = FunctionTool(
        fetch.fn, local=kind == "local", at_most_once=kind == "at most once", timeout=timedelta(seconds=1.5)
    )
    clerk = agent("clerk", [calls("fetch"), text("so")], [tool])
    async with serving(client, make_app(app_name, clerk), artifacts=_Hanging(tmp_path)) as user:
        await _finished(user, "normal")
        [told] = responses(await user.events(), "fetch")
        assert told["note"].endswith("the rest was not kept: TimeoutError.")
        assert len(fetch.keys) == 1


@pytest.mark.parametrize("kind", ["normal", "local"])
async def test_a_result_that_hangs_runs_no_tool_again(client: Client, app_name: str, kind: str) -> None:
    over = threading.Event()

    def rows() -> Iterator[int]:
        yield 1
        over.wait(60)

    fetch = Counted("fetch", rows())
    tool = FunctionTool(fetch.fn, local=kind == "local", timeout=timedelta(seconds=1.5))
    async with serving(client, make_app(app_name, agent("clerk", [calls("fetch"), text("so")], [tool]))) as user:
        try:
            await _finished(user, "normal")
        finally:
            over.set()
        [told] = responses(await user.events(), "fetch")
        assert "its result cannot be passed on: reading it took too long" in told["error"]
        assert len(fetch.keys) == 1


def _encrypting(client: Client, codec: EncryptionCodec) -> Client:
    config = client.config()
    config["data_converter"] = dataclasses.replace(config["data_converter"], payload_codec=codec)
    return Client(**config)


async def test_a_large_result_is_encrypted_where_histories_are(client: Client, app_name: str, tmp_path: Path) -> None:
    """With the same keys; tools, models and the API read it as it was."""
    secret = "the secret " * 200_000
    read: list[types.Part | None] = []

    def fetch() -> Any:
        """Fetch."""
        return secret

    async def look(tool_context: ToolContext) -> None:
        """Look."""
        [name] = await tool_context.list_artifacts()
        read.append(await tool_context.load_artifact(name))

    codec = EncryptionCodec(KeyRing((Key.new("k"),)))
    clerk = agent("clerk", [calls("fetch"), calls("look"), text("so")], [fetch, look])
    app = make_app(app_name, clerk)
    service = FileArtifactService(tmp_path)
    async with serving(_encrypting(client, codec), app, artifacts=service) as user:
        await _finished(user, "normal")
    [part] = read
    assert part is not None
    assert part.inline_data is not None
    assert part.inline_data.data == secret.encode()
    assert part.inline_data.mime_type == "text/plain"
    assert not any(b"secret" in content for content in _contents(tmp_path))
    where: dict[str, Any] = {"app_name": app_name, "user_id": "u", "session_id": "s"}
    [name] = await service.list_artifact_keys(**where)
    stored = await service.load_artifact(**where, filename=name)
    assert stored is not None
    assert stored.inline_data is not None
    assert stored.inline_data.mime_type == SEALED
    other = EncryptionCodec(KeyRing((Key.new("other"),)))
    for keys in (None, other):
        with pytest.raises(ArtifactError, match="the keys here do not open it"):
            await SealedArtifacts(service, keys).load_artifact(**where, filename=name)


def _contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("result", [object(), "x" * 3_000_000], ids=["object", "large"])
async def test_what_reconcile_found_and_cannot_be_kept_is_told_to_the_model(
    client: Client, app_name: str, result: Any
) -> None:
    """The call took effect, as it said: nobody is asked, and nothing runs again."""
    pay = Counted("pay", fail=1)

    def find() -> Reconciled:
        return Reconciled(happened=True, result=result)

    tool = FunctionTool(pay.fn, at_most_once=True, reconcile=find)
    async with serving(client, make_app(app_name, agent("clerk", [calls("pay"), text("so")], [tool]))) as user:
        await user.create()
        view = await user.run("a")
        assert view.status == "failed"
        assert (await user.resumed(view.id)).status == "finished"
        [told] = responses(await user.events(), "pay")
        assert "error" in told or told["size"] == 3_000_000
        assert len(pay.keys) == 1


@pytest.mark.parametrize("answers", [1, 2])
@pytest.mark.parametrize("size", [600_000, 890_000, 950_000, 1_700_000, 1_745_000])
async def test_an_answer_that_the_state_takes_too_works_up_to_the_limit(
    client: Client, app_name: str, size: int, answers: int
) -> None:
    """It stands twice in its event, or in two of them where one could not hold both."""
    script = [text("a" * size)] * answers
    clerk = agent("clerk", script, output_key="report")
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        for number in range(answers):
            assert (await user.run(str(number))).status == "finished"
        events = await user.events()
        assert len([event for event in events if event.text == "a" * size]) == answers
        assert [event.actions.state_delta for event in events if event.actions.state_delta] == [
            {"report": "a" * size}
        ] * answers
        assert max(map(payload_size, events)) <= MAX_EVENT_BYTES


@pytest.mark.parametrize("long", [False, True])
async def test_a_large_text_beside_calls_is_in_the_state_and_the_calls_run(
    client: Client, app_name: str, long: bool
) -> None:
    """Text beside a long-running call ends the turn, so it is the state's; the run goes on behind it, also resumed."""
    step = {"text": "a" * 950_000, **calls("pick")}
    tool = long_running("pick") if long else Counted("pick").fn
    clerk = agent("clerk", [step, text("so")], [tool], output_key="report")
    async with serving(client, make_app(app_name, clerk), cached=0) as user:
        await user.create()
        view = await user.run("a")
        if long:
            await user.stop(view.id)
            view = await user.resumed(view.id)
            assert view.status == "waiting"
            view = await user.answered({view.pending[0].id: "blue"})
        assert view.status == "finished"
        assert (await user.log())[-1] == "clerk: so"


async def test_an_answer_over_the_limit_is_refused_by_the_step_that_made_it(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text("a" * 1_850_000)] * 3, output_key="report")
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        view = await user.run("a")
        assert [(failure.agent, failure.step) for failure in view.failures] == [("clerk", "model")]
        assert "has 1.85 MB, and the log takes 1.75 MB at the most" in view.failures[0].cause
