"""Session state and its prefixes, session ids, and deletion."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from perdure.activities import plan
from perdure.agents import ToolContext
from perdure.errors import InvalidMessage, SessionNotFound
from perdure.journal.events import Event
from perdure.messages.keys import SessionKey
from perdure.messages.shared_state import ShareStateInput
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.shared_state import read_state, share_state
from tests.workflows.support import (
    Counted,
    Gate,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    named,
    serving,
    text,
)

pytestmark = pytest.mark.server


def write(**keys: Any) -> Any:
    """Return a tool that writes state keys; `temp_x` stands for `temp:x`, and so on."""
    delta = {key.replace("_", ":", 1): value for key, value in keys.items()}

    def run(tool_context: ToolContext) -> str:
        for key, value in delta.items():
            tool_context.state[key] = value
        return "written"

    return named(run, "write")


class Reader:
    """A tool that keeps the state that it saw."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

        def run(tool_context: ToolContext) -> str:
            self.seen.append(tool_context.state.to_dict())
            return "read"

        self.fn = named(run, "read")


def deltas(events: list[Event]) -> list[dict[str, Any]]:
    return [event.actions.state_delta for event in events if event.actions.state_delta]


async def test_temp_state_lives_for_one_invocation_and_is_never_logged(client: Client, app_name: str) -> None:
    reader = Reader()
    script = [calls("write"), calls("read"), text("a"), calls("read"), text("b")]
    clerk = agent("clerk", script, [write(temp_t=1, plain=2), reader.fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create(**{"temp:gone": 0, "kept": 0})
        await user.run("a", state_delta={"temp:m": 3, "m": 4})
        await user.run("b")
        first = {"temp:t": 1, "temp:m": 3, "m": 4, "plain": 2, "kept": 0}
        assert reader.seen == [first, {"m": 4, "plain": 2, "kept": 0}]
        assert (await user.view()).state == {"m": 4, "plain": 2, "kept": 0}
        assert deltas(await user.events()) == [{"m": 4}, {"plain": 2}]
        assert "temp:" not in "".join(event.to_json() for event in await user.events())


async def test_temp_state_survives_a_stop_and_a_failure(client: Client, app_name: str) -> None:
    reader, bad = Reader(), Counted("bad", fail=1)
    script = [calls("write"), calls("bad"), calls("read"), text("done")]
    clerk = agent("clerk", script, [write(temp_t=1), reader.fn, bad.once])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        await user.stop(failed.id)
        assert (await user.resumed(failed.id)).status == "finished"
        assert reader.seen == [{"temp:t": 1}]


async def test_user_and_app_keys_reach_other_sessions_at_their_next_invocation(client: Client, app_name: str) -> None:
    reader = Reader()
    # Calls of one answer see the state as it was before them all.
    tools = [write(user_u=1, app_a=2, own=3), reader.fn]
    clerk = agent("clerk", [calls("write", "read"), text("done")], tools, instruction="{user:u?} {app:a?}")
    async with serving(client, make_app(app_name, clerk)) as user:
        same, stranger = user.other(session_id="s2"), user.other(user_id="u2")
        for session in (user, same, stranger):
            await session.create()
        await user.run("a")
        assert (await user.view()).state == {"user:u": 1, "app:a": 2, "own": 3}
        # The write is a signal to another workflow: a moment later it is there.
        await eventually(lambda: _shared(client, app_name, {"user:u": 1}, "u"))
        await same.run("b")
        await stranger.run("c")
        assert reader.seen == [{}, {"user:u": 1, "app:a": 2}, {"app:a": 2}]


async def _shared(client: Client, app: str, expected: dict[str, Any], user_id: str | None) -> bool:
    return (await read_state(client, app, user_id)) == expected


async def test_a_session_can_be_created_with_state_of_every_prefix(client: Client, app_name: str) -> None:
    reader = Reader()
    clerk = agent("clerk", [calls("read"), text("done")] * 2, [reader.fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        view = await user.create(**{"user:u": 1, "app:a": 2, "own": 3, "temp:t": 4})
        assert view.state == {"user:u": 1, "app:a": 2, "own": 3}
        other = user.other(session_id="s2")
        await other.create()
        await user.run("a")
        await other.run("b")
        assert reader.seen == [{"user:u": 1, "app:a": 2, "own": 3}, {"user:u": 1, "app:a": 2}]


async def test_the_state_of_a_message_is_shared_too(client: Client, app_name: str) -> None:
    reader = Reader()
    clerk = agent("clerk", [calls("read"), text("done")] * 2, [reader.fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("a", state_delta={"user:u": 1, "app:a": {"deep": [1]}})
        other = user.other(session_id="s2")
        await other.create()
        await eventually(lambda: _shared(client, app_name, {"app:a": {"deep": [1]}}, None))
        await other.run("b")
        assert reader.seen == [{"user:u": 1, "app:a": {"deep": [1]}}] * 2


async def test_the_last_writer_wins(client: Client, app_name: str) -> None:
    reader = Reader()
    clerk = agent("clerk", [calls("read"), text("done")] * 3, [reader.fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        other = user.other(session_id="s2")
        await user.create(**{"app:a": "created"})
        await other.create()
        await user.run("a", state_delta={"app:a": "first"})
        await other.run("b", state_delta={"app:a": "second"})
        await user.run("c")
        assert [seen["app:a"] for seen in reader.seen] == ["first", "second", "second"]


async def test_an_app_without_shared_keys_has_no_state_workflows(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("write"), text("done")], [write(own=1)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("a")
        found = [run.id async for run in client.list_workflows("WorkflowType = 'perdure:state'")]
        assert not [id for id in found if app_name in id]


IDS = ["a/b", "ünïcode 会話 🙂", "100%25 & ?#", " ", "'quoted\"", "a" * 200]


@pytest.mark.parametrize("session_id", IDS)
async def test_any_text_is_a_session_id(client: Client, app_name: str, session_id: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("1"), text("2")]))) as owner:
        user = owner.other(session_id, session_id)
        view = await user.create(k=1)
        assert (view.user_id, view.id) == (session_id, session_id)
        assert (await user.run("a")).status == "finished"
        assert (await user.view()).id == session_id

        async def listed() -> bool:
            found = await user.runner.list_sessions(user_id=session_id)
            return [(session.user_id, session.id, session.status) for session in found] == [
                (session_id, session_id, "idle")
            ]

        await eventually(listed)
        await user.workflow.terminate()
        assert (await user.run("b")).status == "finished"
        await user.runner.delete_session(**user.who)


async def test_parts_of_an_id_do_not_run_into_each_other(client: Client, app_name: str) -> None:
    """User `a/b` with session `c` is not user `a` with session `b/c`; and users have sessions of one id."""
    async with serving(client, make_app(app_name, agent("clerk", [text("1")]))) as user:
        pairs = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("u1", "s"), ("u2", "s")]
        users = [user.other(*pair) for pair in pairs]
        for number, one in enumerate(users):
            await one.create(n=number)
        await users[3].run("hello")
        for number, one in enumerate(users):
            view = await one.view()
            assert (view.state, view.event_count) == ({"n": number}, 3 if number == 3 else 0)


@pytest.mark.parametrize(("user_id", "session_id"), [("", "s"), ("u", "")])
async def test_empty_ids(client: Client, app_name: str, user_id: str, session_id: str) -> None:
    user = User(client, app_name, user_id, session_id)
    if user_id:
        assert (await user.create()).id, "no session id: a fresh one"
        return
    with pytest.raises(InvalidMessage, match="not empty"):
        await user.create()


async def test_a_deleted_session_is_gone_and_its_id_is_free(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("1"), text("2")]))) as user:
        await user.create(old=1)
        await user.run("a")
        await user.workflow.terminate()
        # A second run of the same workflow, so that there are two to delete.
        await user.run("b")
        await user.runner.delete_session(**user.who)
        for look in (user.view, user.events, lambda: user.send("c"), lambda: user.resume("e-x")):
            with pytest.raises(SessionNotFound):
                await look()
        await user.runner.delete_session(**user.who)
        await eventually(lambda: _unlisted(user))
        await user.create(new=1)
        assert (await user.view()).state == {"new": 1}
        assert await user.events() == []


async def _unlisted(user: User) -> bool:
    return await user.runner.list_sessions() == []


@pytest.mark.parametrize("how", ["terminated", "taken over"])
async def test_a_write_that_was_logged_and_not_shared_is_shared_later(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The workflow ends between the two; who brings it back shares the write under the id of its event."""
    ask, gate, reader = long_running("ask"), Gate(), Reader()

    async def held(client: Client, app: str, request: ShareStateInput) -> None:
        await gate.pass_through(request.write_id)

    script = [calls("write", "ask"), text("done"), calls("read"), text("read it")]
    clerk = agent("clerk", script, [write(user_u=1, app_a=2), ask, reader.fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        monkeypatch.setattr(plan, "share_state", held)
        invocation = await user.send("a")
        await gate.reached()
        monkeypatch.undo()
        if how == "terminated":
            await user.workflow.terminate("a test")
            await user.resume(invocation)
        else:
            await Lifecycle(client).take_over(SessionKey(app_name, "u", "s"))
        assert await _shared(client, app_name, {"user:u": 1}, "u")
        assert await _shared(client, app_name, {"app:a": 2}, None)
        assert (await user.settled(invocation)).status == "waiting"
        [written] = [event.id for event in await user.events() if event.actions.state_delta]
        assert written == gate.keys[0]
        await share_state(client, app_name, ShareStateInput(user_id="u", write_id="later", delta={"app:a": 3}))
        gate.open()
        await Lifecycle(client).take_over(SessionKey(app_name, "u", "s"))
        [call_id] = await user.open("ask")
        assert (await user.answered({call_id: {}})).status == "finished"
        await user.run("b")
        assert reader.seen == [{"user:u": 1, "app:a": 3}]
