"""A session that does not exist is begun by its first message, where that is asked for: in one request."""

from __future__ import annotations

import asyncio
import gc

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure.client import Runner
from perdure.errors import InvalidMessage, SessionNotFound
from perdure.rules.bounds import MAX_STATE_KEYS
from tests.workflows.support import User, agent, make_app, serving, text

pytestmark = pytest.mark.server


def _starting(user: User) -> User:
    user.runner = Runner(user.app, user.client, auto_create_session=True)
    return user


async def test_one_workflow_task_takes_start_and_message(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("one"), text("two")]))
    async with serving(client, app) as user:
        _starting(user)
        assert (await user.run("go")).status == "finished"
        assert (await user.run("again")).status == "finished"
        assert await user.log() == ["user: go", "clerk: one", "user: again", "clerk: two"]
        events = (await user.workflow.fetch_history()).events
        accepted = next(
            event.event_id
            for event in events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
        )
        tasks = [event for event in events if event.HasField("workflow_task_completed_event_attributes")]
        assert len([task for task in tasks if task.event_id < accepted]) == 1


async def test_many_first_messages_begin_one_session(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text(f"{number}") for number in range(20)]))
    async with serving(client, app) as user:
        users = [_starting(user), *(user.other() for _ in range(19))]
        for one in users:
            one.runner = user.runner
        ids = await asyncio.gather(*(one.send(f"m{number}") for number, one in enumerate(users)))
        for id in ids:
            assert (await user.settled(id)).status == "finished"
        log = await user.log()
        assert {line for line in log if line.startswith("user")} == {f"user: m{number}" for number in range(20)}
        assert len(log) == 40


async def test_a_closed_session_comes_back_and_a_deleted_one_begins_anew(
    client: Client, app_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(app_name, agent("clerk", [text("one"), text("two")]))
    async with serving(client, app) as user:
        _starting(user)
        await user.run("go")
        await user.workflow.terminate("by an operator")
        await user.run("again")
        assert await user.log() == ["user: go", "clerk: one", "user: again", "clerk: two"]
        await user.runner.delete_session(**user.who)
        await user.run("anew")
        assert await user.log() == ["user: anew", "clerk: one"]
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_without_a_worker_the_message_waits(client: Client, app_name: str) -> None:
    user = _starting(User(client, app_name))
    sent = asyncio.create_task(user.send("go"))
    await asyncio.sleep(1.0)
    assert not sent.done()
    async with serving(client, make_app(app_name, agent("clerk", [text("one")]))):
        assert (await user.settled(await sent)).status == "finished"


async def test_what_is_refused_is_refused(client: Client, app_name: str) -> None:
    """As in a session that exists."""
    too_many = {f"k{number}": 1 for number in range(MAX_STATE_KEYS + 1)}
    async with serving(client, make_app(app_name, agent("clerk", [text("one")]))) as user:
        with pytest.raises(SessionNotFound):
            await user.send("go")
        _starting(user)
        with pytest.raises(InvalidMessage):
            await user.send("go", state_delta=too_many)
        other = _starting(User(client, app_name, session_id="__s"))
        with pytest.raises(InvalidMessage):
            await other.send("go")
        assert (await user.run("go")).status == "finished"
