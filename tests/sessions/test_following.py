"""What following a run costs its worker, and what a client asks while nobody answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import App, FunctionTool, LongRunningFunctionTool, ToolContext
from perdure.client import Runner
from perdure.errors import InvocationFailed
from perdure.journal.entries import MessageAccepted, SessionCreated
from perdure.journal.events import Event
from perdure.journal.packing import pack
from perdure.messages.keys import SessionKey
from perdure.messages.session import EXTEND_JOURNAL, EventsPage, JournalPage, PageInput, SessionInput, Trial
from perdure.sessions import requests as session_requests
from perdure.sessions.log_reader import LogReader
from perdure.sessions.requests import WorkflowRequests
from tests.workflows.support import ONCE, PENDING, Counted, Gate, User, agent, calls, make_app, serving, text

pytestmark = pytest.mark.server

ROUNDS = 5


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[PageInput]:
    """The looks into logs that were made."""
    made: list[PageInput] = []
    ask = LogReader.page

    async def noted(self: LogReader, key: SessionKey, request: PageInput, **options: Any) -> EventsPage:
        made.append(request)
        return await ask(self, key, request, **options)

    monkeypatch.setattr(LogReader, "page", noted)
    return made


async def slow() -> str:
    """Take longer than a follower waits at first."""
    await asyncio.sleep(0.2)
    return "done"


def failing() -> str:
    """Fail."""
    raise RuntimeError("on purpose")


def approve() -> dict[str, str]:
    """Ask a person."""
    return PENDING


def rounds(name: str, *tools: Callable[..., Any] | FunctionTool, then: dict[str, Any]) -> App:
    turn = [*[calls("slow") for _ in range(ROUNDS)], then]
    return make_app(name, agent("clerk", turn * 2, [slow, *tools]))


def gated(name: str, gate: Gate) -> App:
    """Return an app whose tool `look` waits at a gate."""
    return make_app(name, agent("clerk", [calls("look"), text("done")], [gate.tool("look")]))


async def at_rest(user: User, message: str) -> list[Event]:
    return [event async for event in user.runner.run_async(**user.who, new_message=message, live=False)]


@pytest.mark.parametrize("cached", [100, 0])
async def test_who_wants_the_end_looks_once_at_it(
    client: Client, app_name: str, looks: list[PageInput], cached: int
) -> None:
    """The session says when its turn has ended; also one that is replayed at every step."""
    async with serving(client, rounds(app_name, then=text("done")), cached=cached) as user:
        await user.create()
        events = await at_rest(user, "go")
        assert events == [event for event in await user.events() if event.author != "user"]
        assert len(events) == 2 * ROUNDS + 2
        # One was the test's.
        assert len(looks) == 2
        looks.clear()
        assert [event.text for event in await at_rest(user, "again") if event.text] == ["done"]
        assert len(looks) == 1


async def test_who_follows_live_sees_each_step_as_it_is_made(client: Client, app_name: str) -> None:
    gate = Gate()
    app = gated(app_name, gate)
    async with serving(client, app) as user:
        await user.create()
        seen = user.runner.run_async(**user.who, new_message="go")
        assert [call.name for call in (await anext(seen)).get_function_calls()] == ["look"]
        await gate.reached()
        gate.open()
        assert [event.text async for event in seen if event.text] == ["done"]


async def test_the_end_is_a_wait_too(client: Client, app_name: str) -> None:
    app = rounds(app_name, LongRunningFunctionTool(approve), then=calls("approve"))
    async with serving(client, app) as user:
        await user.create()
        events = await at_rest(user, "go")
        assert events[-2].long_running_tool_ids
        assert (await user.view()).status == "waiting"
        # Nothing happens in a session that waits, so there is nothing to wait for.
        again = user.runner.follow(**user.who, invocation_id=events[0].invocation_id, live=False)
        async with asyncio.timeout(5):
            assert [event async for event in again] == events


async def test_the_end_is_a_failure_too(client: Client, app_name: str) -> None:
    tool = FunctionTool(failing, retry=ONCE, timeout=timedelta(seconds=5))
    async with serving(client, rounds(app_name, tool, then=calls("failing"))) as user:
        await user.create()
        with pytest.raises(InvocationFailed, match="on purpose"):
            await at_rest(user, "go")


async def test_the_end_of_a_turn_comes_though_another_has_begun(client: Client, app_name: str) -> None:
    """The session goes from one turn to the next without a pause."""
    first, second = Gate(), Gate()
    script = [calls("first"), text("one"), calls("second"), text("two")]
    app = make_app(app_name, agent("clerk", script, [first.tool("first"), second.tool("second")]))
    async with serving(client, app) as user:
        await user.create()
        told = asyncio.create_task(at_rest(user, "go"))
        await first.reached()
        after = await user.send("and then")
        first.open()
        await second.reached()
        async with asyncio.timeout(10):
            assert (await told)[-2].text == "one"
        assert await user.status(after) == "running"
        second.open()
        await user.settled(after)


async def test_many_who_wait_leave_room_for_a_stop(client: Client, app_name: str) -> None:
    """Temporal takes ten updates of a session at a time; those who find no room follow the run."""
    gate = Gate()
    app = gated(app_name, gate)
    async with serving(client, app) as user:
        await user.create()
        sent = await user.send("go")
        await gate.reached()
        waiting = [asyncio.create_task(ended(user, sent)) for _ in range(15)]
        await asyncio.sleep(1)
        async with asyncio.timeout(10):
            await user.runner.stop(**user.who, invocation_id=sent)
            assert {len(events) for events in await asyncio.gather(*waiting)} == {1}


async def test_the_end_comes_over_runs(client: Client, app_name: str, looks: list[PageInput]) -> None:
    """A session that continues as new lets those who wait ask the next run."""
    async with serving(client, rounds(app_name, then=text("done"))) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=3))
        await user.create()
        first = await user.workflow.describe()
        assert [event.text for event in await at_rest(user, "go") if event.text] == ["done"]
        assert len(looks) == 1
        assert (await user.workflow.describe()).run_id != first.run_id


async def test_the_end_comes_from_another_worker(client: Client, app_name: str, looks: list[PageInput]) -> None:
    gate = Gate()
    app = gated(app_name, gate)
    async with serving(client, app) as user:
        await user.create()
        told = asyncio.create_task(at_rest(user, "go"))
        await gate.reached()
    gate.open()
    async with serving(client, app), asyncio.timeout(30):
        assert (await told)[-2].text == "done"
    assert len(looks) == 1


async def test_an_older_worker_lets_nobody_wait_and_is_followed(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_requests, "WAIT", "an_update_of_a_later_version")
    async with serving(client, rounds(app_name, then=text("done"))) as user:
        await user.create()
        assert [event.text for event in await at_rest(user, "go") if event.text] == ["done"]


async def test_the_end_is_the_end_of_the_workflow_too(client: Client, app_name: str) -> None:
    gate = Gate()
    app = gated(app_name, gate)
    async with serving(client, app) as user:
        await user.create()
        told = asyncio.create_task(at_rest(user, "go"))
        await gate.reached()
        await asyncio.sleep(0.5)
        await user.workflow.terminate()
        async with asyncio.timeout(10):
            with pytest.raises(InvocationFailed, match="terminated"):
                await told
        gate.open()
        # What history tells brings it back; that somebody waited is no part of it.
        (invocation,) = (await user.view()).invocations
        resumed = await user.runner.resume(**user.who, invocation_id=invocation.id)
        assert (await user.settled(resumed.invocation.id)).status == "finished"


async def test_a_cancelled_workflow_does_not_wait_for_those_who_wait(client: Client, app_name: str) -> None:
    """While its tools end, it takes messages, whose turns come in the next run."""
    gate = Gate()
    tools = [gate.tool("look", sync=True)]
    async with serving(client, make_app(app_name, agent("clerk", [calls("look"), text("second")], tools))) as user:
        await user.create()
        first = await user.send("go")
        await gate.reached()
        await user.workflow.cancel()
        # A thread is not cancelled, only waited for.
        await asyncio.sleep(1)
        told = asyncio.create_task(at_rest(user, "second"))
        await asyncio.sleep(1)
        gate.open()
        async with asyncio.timeout(20):
            assert [event.text for event in await told if event.text] == ["second"]
        assert await user.status(first) == "stopped"


async def test_a_run_that_takes_long_to_hand_over_is_not_asked_all_the_time(client: Client, app_name: str) -> None:
    """It waits for a reminder that is at work. Each update that it took would be history."""
    reminded = Gate()

    async def remind(tool_context: ToolContext) -> None:
        await reminded.pass_through("r")

    tool = LongRunningFunctionTool(
        approve, expires_in=timedelta(days=1), remind_in=timedelta(seconds=1), reminder=remind
    )
    script = [calls("approve"), *[calls("look")] * 4, text("two"), text("three")]
    async with serving(client, make_app(app_name, agent("clerk", script, [tool, Counted("look").once]))) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=5))
        await user.create()
        await user.run("go")
        await reminded.reached()
        waiting = [asyncio.create_task(at_rest(user, "and")) for _ in range(2)]
        await asyncio.sleep(6)
        assert not any(task.done() for task in waiting)
        history = await user.workflow.fetch_history()
        taken = [
            event for event in history.events if event.HasField("workflow_execution_update_accepted_event_attributes")
        ]
        # Three messages, and two who waited, unless the run was about to hand over when they came.
        assert len(taken) <= 5
        reminded.open()
        async with asyncio.timeout(30):
            texts = [event.text for events in await asyncio.gather(*waiting) for event in events if event.text]
        assert sorted(texts) == ["three", "two"]


async def test_who_waits_leaves_room_for_the_journal(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("done")]))
    async with serving(client, app) as user:
        message = types.Content(role="user", parts=[types.Part(text="go")])
        event = Event(id="m", timestamp=time.time(), author="user", invocation_id="e-1", content=message)
        journal = (SessionCreated(), MessageAccepted(event=event))
        start = SessionInput(journal=pack(journal[:1]), length=2)
        await client.start_workflow(app_name, start, id=user.key, task_queue=app_name)
        waiting = [asyncio.create_task(ended(user, "e-1")) for _ in range(15)]
        await asyncio.sleep(2)
        rest = JournalPage(packed=pack(journal), total=2)
        async with asyncio.timeout(20):
            await user.workflow.execute_update(EXTEND_JOURNAL, rest)  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
            assert {len(events) for events in await asyncio.gather(*waiting)} == {2}


async def ended(user: User, invocation_id: str) -> list[Event]:
    return [event async for event in user.runner.follow(**user.who, invocation_id=invocation_id, live=False)]


async def test_all_who_wait_ask_for_a_worker_once(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers late is not asked by everybody why."""
    asked = 0
    is_served = WorkflowRequests.is_served

    async def counted(self: WorkflowRequests) -> bool:
        nonlocal asked
        asked += 1
        return await is_served(self)

    monkeypatch.setattr(WorkflowRequests, "is_served", counted)
    monkeypatch.setattr(session_requests, "_SAY_AFTER", 0.3)
    runner = User(client, app_name).runner
    for session in range(10):
        await runner.create_session(user_id="u", session_id=str(session))
    waiting = [
        asyncio.create_task(runner.send_message(user_id="u", session_id=str(number), message="a"))
        for number in range(10)
    ]
    await asyncio.sleep(0.5)
    for task in waiting:
        task.cancel()
    assert asked == 1
