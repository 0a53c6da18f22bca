"""Large messages, answers and changes of state, many at once: none is lost, and none ends the session's run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from perdure.agents import ParallelAgent
from perdure.client import Runner
from perdure.errors import InvalidMessage
from perdure.journal.events import USER, user_content
from perdure.messages.keys import SessionKey
from perdure.messages.large_requests import MAX_UPDATE_BYTES, NOT_HERE, SEND_AHEAD, RequestsAhead, SentAhead
from perdure.messages.session import RESPOND, SEND_MESSAGE, InvocationResult, MessageInput, Trial
from perdure.sessions import requests as client_requests
from perdure.sessions.lifecycle import Lifecycle
from tests.workflows.support import (
    Gate,
    User,
    agent,
    calls,
    long_running,
    make_app,
    responses,
    serving,
    text,
)
from tests.workflows.test_encryption import encrypted
from tests.workflows.test_large_journals import noise

pytestmark = pytest.mark.server

LARGE = 1_500_000
AT_ONCE = 4
"""So many of these are more than the 4 MB that Temporal takes in one message."""

MESSAGE = MessageInput(content=user_content("hello"))


async def signals(user: User) -> int:
    """Return how many signals the history of a session's run has."""
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return sum(event.event_type == kind for event in (await user.workflow.fetch_history()).events)


async def signal(user: User, *args: Any) -> None:
    await user.workflow.signal(SEND_AHEAD, args=args)  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads


async def update(user: User, name: str, sent: str) -> InvocationResult:
    """Send an update whose request was sent ahead under a name."""
    request = SentAhead(sent_ahead=sent)
    return await user.workflow.execute_update(name, request, result_type=InvocationResult)  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads


async def why_refused(user: User, name: str, sent: str) -> str | None:
    """Return the type of the failure of such an update."""
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await update(user, name, sent)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.type


async def check_none_was_ended(user: User) -> None:
    ended = f"WorkflowType = '{user.app}' AND ExecutionStatus != 'Running' AND ExecutionStatus != 'ContinuedAsNew'"
    assert not [run.id async for run in user.client.list_workflows(ended)], "the server ended a session's run"


@pytest.mark.parametrize("cached", [0, 100])
async def test_many_large_messages_at_once(client: Client, app_name: str, cached: int) -> None:
    """All updates in flight travel in the answer to one workflow task, whether they are taken or refused."""
    clerk = agent("clerk", [text(f"read {number}") for number in range(AT_ONCE)])
    async with serving(client, make_app(app_name, clerk), cached=cached) as user:
        await user.create()
        messages = [noise(LARGE, number) for number in range(AT_ONCE)]
        sent = await asyncio.gather(*map(user.send, messages))
        for invocation in sent:
            assert (await user.settled(invocation, patience=60)).status == "finished"
        events = await user.events()
        assert sorted(str(event.text) for event in events if event.author == USER) == sorted(messages)
        assert sum(str(event.text).startswith("read") for event in events) == AT_ONCE
        await check_none_was_ended(user)


async def test_many_large_answers_at_once(client: Client, app_name: str) -> None:
    """One to a call in each branch, as from so many people."""
    branches = [agent(f"b{n}", [calls(f"ask{n}"), text("read")], [long_running(f"ask{n}")]) for n in range(AT_ONCE)]
    async with serving(client, make_app(app_name, ParallelAgent(name="fan", sub_agents=[*branches]))) as user:
        await user.create()
        invocation = await user.send("ask all")
        asked = await user.open(*(f"ask{n}" for n in range(AT_ONCE)))
        await asyncio.gather(*(user.answer({call: {"said": noise(LARGE, n)}}) for n, call in enumerate(asked)))
        assert (await user.settled(invocation, patience=60)).status == "finished"
        events = await user.events()
        for number in range(AT_ONCE):
            assert responses(events, f"ask{number}")[-1] == {"said": noise(LARGE, number)}
        await check_none_was_ended(user)


async def test_many_large_changes_of_state_at_once(client: Client, app_name: str) -> None:
    """What they return is as large, and travels in the answer to one workflow task, too."""
    async with serving(client, make_app(app_name, agent("clerk", [text("hi")]))) as user:
        await user.create()
        delta = {"same": noise(LARGE), "temp:gone": 1}
        changed = await asyncio.gather(
            *(user.runner.change_state(**user.who, state_delta=delta) for _ in range(AT_ONCE))
        )
        assert all(event.actions.state_delta == {"same": noise(LARGE)} for event in changed)
        assert len({event.id for event in changed}) == AT_ONCE
        assert (await user.view()).state == {"same": noise(LARGE)}
        await check_none_was_ended(user)


async def test_a_stop_gives_any_reason(client: Client, app_name: str) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("work"), text("done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("go")
        await gate.reached()
        reason = "r" * (MAX_UPDATE_BYTES + 1)
        assert (await user.stop(invocation, reason=reason)).reason == reason
        gate.open()
        result = await user.runner.resume(**user.who, invocation_id=invocation, request_id=reason)
        assert (await user.settled(result.invocation.id)).status == "finished"


async def test_only_what_is_large_is_sent_ahead(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("one"), text("two")]))) as user:
        await user.create()
        small, large = "x" * (MAX_UPDATE_BYTES - 1_000), "y" * MAX_UPDATE_BYTES
        await user.run(small)
        await user.runner.change_state(**user.who, state_delta={"small": 1})
        assert not await signals(user)
        await user.run(large, request_id="large")
        await user.runner.change_state(**user.who, state_delta={"large": "z" * MAX_UPDATE_BYTES})
        assert await signals(user) == 2
        assert (await user.view()).state == {"small": 1, "large": "z" * MAX_UPDATE_BYTES}
        # Known again by its id, also where it is sent another time.
        again = await user.send(large, request_id="large")
        assert len([view for view in (await user.view()).invocations if view.id == again]) == 1
        assert await user.log() == [f"user: {small}", "clerk: one", f"user: {large}", "clerk: two"]


async def test_a_run_near_its_end_gets_no_signal(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not refuse one, and a session whose log is full takes nothing any more."""
    monkeypatch.setattr(client_requests, "_MAX_HISTORY_BYTES", 10)
    async with serving(client, make_app(app_name, agent("clerk", [text("hi")]))) as user:
        await user.create()
        assert (await user.run("y" * MAX_UPDATE_BYTES)).status == "finished"
        assert not await signals(user)


async def test_what_another_run_got_is_sent_again(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a run continues as new between the signal and the update."""
    send, lost = WorkflowHandle[Any, Any].signal, list[Any]()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- the SDK's overloads

    async def losing(handle: WorkflowHandle[Any, Any], name: str, **options: Any) -> None:
        if not lost:
            lost.append(options["args"][0])
            return
        await send(handle, name, **options)

    monkeypatch.setattr(WorkflowHandle, "signal", losing)
    async with serving(client, make_app(app_name, agent("clerk", [text("hi")]))) as user:
        await user.create()
        assert (await user.run("y" * MAX_UPDATE_BYTES)).status == "finished"
        assert await user.log() == ["user: " + "y" * MAX_UPDATE_BYTES, "clerk: hi"]
        assert lost


async def test_large_messages_while_runs_hand_over(client: Client, app_name: str) -> None:
    """A signal may come between the last task of a run and the next run; the server then gives that task out again."""
    number = 12
    async with serving(client, make_app(app_name, agent("clerk", [text("read")] * number)), cached=0) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=1))
        await user.create()
        messages = [noise(2 * MAX_UPDATE_BYTES, seed) for seed in range(number)]

        async def send(place: int) -> str:
            await asyncio.sleep(place * 0.1)
            return await user.send(messages[place])

        for invocation in await asyncio.gather(*map(send, range(number))):
            assert (await user.settled(invocation, patience=60)).status == "finished"
        assert sorted(line.removeprefix("user: ") for line in await user.log() if line != "clerk: read") == sorted(
            messages
        )
        runs = [run.run_id async for run in client.list_workflows(f"WorkflowType = '{app_name}'")]
        assert len(runs) > number / 2
        await check_none_was_ended(user)


async def test_what_a_taken_over_session_was_sent_is_in_its_history(client: Client, app_name: str) -> None:
    """A message that waits for its turn, and an answer, neither of which a slice has told yet."""
    gate, small = Gate(), noise(2 * MAX_UPDATE_BYTES)
    branches = [
        agent("asker", [calls("ask"), text("thanks")], [long_running("ask")]),
        agent("worker", [calls("work"), text("done")], [gate.tool("work")]),
    ]
    client = encrypted(client)
    async with serving(client, make_app(app_name, ParallelAgent(name="fan", sub_agents=[*branches]))) as user:
        await user.create()
        first = await user.send("go")
        await gate.reached()
        (asked,) = await user.open("ask")
        await user.answer({asked: {"said": small}})
        second = await user.send(small)
        await Lifecycle(client).take_over(SessionKey(app_name, "u", "s"))
        gate.open()
        assert (await user.settled(first)).status == "finished"
        assert (await user.settled(second)).status != "queued"
        events = await user.events()
        assert responses(events, "ask")[-1] == {"said": small}
        assert [event.text for event in events if event.author == USER and event.text] == ["go", small]


@pytest.mark.parametrize("cached", [0, 100])
async def test_what_does_not_fit_is_dropped_or_refused(client: Client, app_name: str, cached: int) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("hi")])), cached=cached) as user:
        await user.create()
        for odd in ([], ["one"], [1, MESSAGE], ["odd", 7], ["odd", MESSAGE]):
            await signal(user, *odd)
        # A name counts once, and what it stands for must be what the update takes.
        assert await why_refused(user, SEND_MESSAGE, "odd") == InvalidMessage.__name__
        assert await why_refused(user, SEND_MESSAGE, "one") == NOT_HERE
        await signal(user, "good", MESSAGE)
        assert await why_refused(user, RESPOND, "good") == InvalidMessage.__name__
        result = await update(user, SEND_MESSAGE, "good")
        assert (await user.settled(result.invocation.id)).status == "finished"
        # It is taken once.
        assert await why_refused(user, SEND_MESSAGE, "good") == NOT_HERE
        assert await user.log() == ["user: hello", "clerk: hi"]


async def test_a_session_is_taken_over_with_what_it_took_and_not_what_it_dropped(client: Client, app_name: str) -> None:
    """A name may come again, be none, or stand for what no key opens; a request may have a key of that name."""
    gate = Gate()
    clerk = agent("clerk", [calls("work"), *[text("hi")] * 5], [gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first = await user.send("go")
        await gate.reached()
        await signal(user, 1, MessageInput(content=user_content("no text")))
        await signal(user, "junk", b"\xff\x00junk")
        await signal(user, b"\xff\x00junk", MESSAGE)
        for words in ("one", "two"):
            await signal(user, "1", MessageInput(content=user_content(words)))
            await update(user, SEND_MESSAGE, "1")
        odd = {"content": {"role": "user", "parts": [{"text": "three"}]}, "sent_ahead": "x"}
        await user.workflow.execute_update(SEND_MESSAGE, odd)  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
        await Lifecycle(client).take_over(SessionKey(app_name, "u", "s"))
        gate.open()
        assert (await user.settled(first)).status == "finished"
        await user.logged("user: three")
        assert [line for line in await user.log() if line.startswith("user")] == [
            f"user: {words}" for words in ("go", "one", "two", "three")
        ]


def test_what_came_first_is_forgotten_where_no_update_takes_it() -> None:
    ahead = RequestsAhead[str]()
    for number in range(25):
        ahead.keep(str(number), f"request {number}", 1_000_000)
    ahead.keep("7", "another of this name", 1_000_000)
    assert [ahead.find(str(number)) for number in (4, 5, 7)] == [None, "request 5", "request 7"]
    assert ahead.take("5") == "request 5"
    assert ahead.take("5") is None
    ahead.keep("25", "request 25", 1_000_000)
    assert ahead.find("6") == "request 6"
