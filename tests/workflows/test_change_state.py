"""A user's change of a session's state: beside the invocations, in the log, and wherever the log goes."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App, ToolContext
from perdure.client import Runner
from perdure.errors import SessionNotFound, SharedStateFull
from perdure.journal.events import Event
from perdure.messages.session import Trial
from perdure.messages.shared_state import CHANGE_STATE, StateChangeInput, StateChangeResult
from tests.workflows.support import User, agent, calls, eventually, long_running, make_app, serving, short, text

pytestmark = pytest.mark.server


def read(tool_context: ToolContext) -> Any:
    """Read the state."""
    return {"a": tool_context.state.get("a"), "user:b": tool_context.state.get("user:b")}


def reader(name: str) -> App:
    script = [calls("read"), calls("ask"), calls("read"), text("done")]
    return make_app(name, agent("clerk", script, [read, long_running("ask")]))


async def changed(user: User, **delta: Any) -> Event:
    return await user.runner.change_state(**user.who, state_delta=delta)


def seen(events: list[Event]) -> list[Any]:
    """Return what the tool read, in log order."""
    return [r.response for event in events for r in event.get_function_responses() if r.name == "read"]


async def started(user: User) -> str:
    """Begin a turn that waits, and change the state meanwhile; returns the open call."""
    await user.create(a=1)
    await user.run("go")
    [call_id] = await user.open("ask")
    event = await changed(user, a=2, **{"temp:x": 3})
    assert (event.author, event.content, event.invocation_id) == ("user", None, f"p-{event.id}")
    assert event.actions.state_delta == {"a": 2}
    return call_id


async def ended(user: User, call_id: str) -> None:
    """Answer, and check that the agents have seen the change from there on, and that the log holds it once."""
    assert (await user.answered({call_id: {"ok": True}})).status == "finished"
    events = await user.events()
    assert [value["a"] for value in seen(events)] == [1, 2]
    assert [event.actions.state_delta for event in events if event.invocation_id.startswith("p-")] == [{"a": 2}]
    assert (await user.view()).state["a"] == 2


@pytest.mark.parametrize("cached", [100, 0], ids=["cached", "replayed"])
async def test_agents_see_a_change_that_came_while_they_waited(client: Client, app_name: str, cached: int) -> None:
    async with serving(client, reader(app_name), cached=cached) as user:
        await ended(user, await started(user))


async def test_a_change_survives_runs_that_continue_as_new(client: Client, app_name: str) -> None:
    async with serving(client, reader(app_name)) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=1))
        await ended(user, await started(user))


async def test_a_change_survives_the_loss_of_the_workflow(client: Client, app_name: str) -> None:
    async with serving(client, reader(app_name)) as user:
        call_id = await started(user)
        await user.workflow.terminate()
        await ended(user, call_id)


async def test_a_change_is_read_out_of_history_by_those_who_take_over(client: Client, app_name: str) -> None:
    async with serving(client, reader(app_name)) as user:
        call_id = await started(user)
        before = await user.events()
        invocation = before[0].invocation_id
        await user.runner.resume(**user.who, invocation_id=invocation, fresh=True)
        # Agents' events get ids of their own as they are read out of history; a change keeps its one.
        after = await user.events()
        assert [short(event) for event in after] == [short(event) for event in before]
        assert (after[-1].id, after[-1].invocation_id) == (before[-1].id, before[-1].invocation_id)
        await ended(user, call_id)


@pytest.mark.parametrize("journal", [True, False], ids=["journal", "bare"])
async def test_an_exported_change_is_imported(client: Client, app_name: str, journal: bool) -> None:
    async with serving(client, reader(app_name)) as user:
        call_id = await started(user)
        lines = [line async for line in user.runner.export_session(**user.who, journal=journal)]
        other = user.other(session_id="imported")
        await user.runner.import_session(lines, session_id="imported", allow_pending_calls=True)
        assert await other.events() == await user.events()
        assert (await other.view()).state == (await user.view()).state
        assert [view.status for view in (await other.view()).invocations] == ["waiting"]
        await ended(other, call_id)


async def test_a_change_of_one_request_id_is_made_once(client: Client, app_name: str) -> None:
    async with serving(client, reader(app_name)) as user:
        await user.create()
        for value in (1, 2):
            request = StateChangeInput(state_delta={"a": value}, request_id="r")
            result: StateChangeResult = await user.workflow.execute_update(  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
                CHANGE_STATE, request, result_type=StateChangeResult
            )
            assert result.event.actions.state_delta == {"a": 1}
        assert [event.id for event in await user.events()] == ["r"]


async def test_a_change_of_shared_keys_reaches_other_sessions(client: Client, app_name: str) -> None:
    async with serving(client, reader(app_name)) as user:
        await user.create()
        await changed(user, **{"user:b": "shared"})
        other = user.other(session_id="other")
        await other.create()

        async def known() -> bool:
            return (await other.runner.get_session(**other.who)).state.get("user:b") == "shared"

        await other.run("go")
        await eventually(known)
        assert [value["user:b"] for value in seen(await other.events())] == ["shared"]
        with pytest.raises(SharedStateFull):
            await changed(user, **{"user:b": "x" * 900_000})


async def test_a_session_that_does_not_exist_has_no_state_to_change(client: Client, app_name: str) -> None:
    async with serving(client, reader(app_name)) as user:
        with pytest.raises(SessionNotFound):
            await changed(user, a=1)
