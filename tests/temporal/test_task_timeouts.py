"""How long a session's runs let a worker be at a workflow task, and that those with little time stay short."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App, FunctionTool
from perdure.client import Runner
from perdure.journal import entries as journal
from perdure.journal import packing
from perdure.messages.keys import SessionKey
from perdure.messages.session import Trial
from perdure.sessions.lifecycle import Lifecycle
from perdure.temporal.task_timeouts import LONG, SHORT
from perdure.workflows.run import limits
from tests.api.support import Obedient, served
from tests.workflows.support import (
    Counted,
    Gate,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    serving,
    text,
)

pytestmark = pytest.mark.server

ROUNDS = 16


async def timeouts(user: User) -> list[tuple[timedelta, int]]:
    """Return the timeout of each of the session's runs, the first one first, and how many history events it has."""
    histories = [run.events for run in await user.histories()]
    starts = [events[0].workflow_execution_started_event_attributes for events in histories]
    given = [start.workflow_task_timeout.ToTimedelta() for start in starts]
    return list(zip(given, map(len, histories), strict=True))


def local_app(name: str, fn: Callable[..., Any], rounds: int = ROUNDS) -> App:
    return make_app(name, agent("clerk", [*[calls("tool")] * rounds, text("x")], [FunctionTool(fn, local=True)]))


@pytest.mark.parametrize("cached", [0, 100])
async def test_sessions_with_local_tools_stay_quick_to_replay(
    client: Client, app_name: str, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_SHORT_EVENTS", 40)
    tool = Counted("tool")
    async with serving(client, local_app(app_name, tool.fn), cached=cached) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        (first, before), *others = await timeouts(user)
    # The model has been called before there was anything to run.
    assert first == LONG
    assert before < 30
    assert len(others) > 2
    assert {timeout for timeout, _ in others} == {SHORT}
    # What begins and ends a run is not counted; all in one would have 120.
    assert max(events for _, events in others) < 40 + 30
    # Temporal's core runs a local activity again, now and then, of a session that is replayed for a query meanwhile.
    assert len(set(tool.keys)) == ROUNDS
    assert not cached or len(tool.keys) == ROUNDS


async def test_a_client_that_knows_of_local_tools_spares_the_session_a_run(client: Client, app_name: str) -> None:
    async with serving(client, local_app(app_name, Counted("tool").fn, 2)) as user:
        user.runner = Runner(app_name, client, local_tools=True)
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert [timeout for timeout, _ in await timeouts(user)] == [SHORT]


@pytest.mark.parametrize(("local", "timeout"), [(True, SHORT), (False, LONG)])
async def test_the_http_api_knows_of_the_tools_of_an_app_that_it_is_given(
    client: Client, app_name: str, local: bool, timeout: timedelta
) -> None:
    app = make_app(app_name, agent("clerk", [text("x")], [FunctionTool(Counted("tool").fn, local=local)]))
    async with serving(client, app), served(client, app, Obedient()) as api:
        user = api.user(await api.create())
        assert [given for given, _ in await timeouts(user)] == [timeout]


async def test_sessions_without_local_tools_do_not_hand_over_for_that(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_SHORT_EVENTS", 40)
    tool = Counted("tool")
    app = make_app(app_name, agent("clerk", [*[calls("tool")] * ROUNDS, text("x")], [tool.fn]))
    async with serving(client, app) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert [timeout for timeout, _ in await timeouts(user)] == [LONG]


async def test_a_local_tool_does_not_wait_for_what_is_at_work_beside_it(client: Client, app_name: str) -> None:
    gate, tool = Gate(), Counted("tool")
    tools = [gate.tool("slow"), FunctionTool(tool.fn, local=True)]
    app = make_app(app_name, agent("clerk", [calls("slow", "tool"), calls("tool"), text("x")], tools))
    async with serving(client, app) as user:
        await user.create()
        invocation = await user.send("go")
        await eventually(lambda: len(tool.keys) == 1)
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        assert [timeout for timeout, _ in await timeouts(user)] == [LONG, SHORT]
    assert len(tool.keys) == 2


async def test_a_session_whose_tools_are_local_no_more_gets_more_time(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_SHORT_EVENTS", 40)
    async with serving(client, local_app(app_name, Counted("tool").fn, 2)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
    plain = make_app(app_name, agent("clerk", [*[calls("tool")] * ROUNDS, text("x")], [Counted("tool").fn]))
    async with serving(client, plain) as user:
        assert (await user.run("go")).status == "finished"
        assert [timeout for timeout, _ in await timeouts(user)] == [LONG, SHORT, LONG]


async def test_an_invocation_whose_pinned_plan_alone_has_local_tools_hands_over_once(
    client: Client, app_name: str
) -> None:
    """The newest plan, which the next message has, would let the next run begin with long tasks again."""
    tool = Counted("tool")
    ask, fast = long_running("ask"), FunctionTool(tool.fn, local=True)
    script = [calls("ask"), text("meanwhile"), calls("tool"), text("x")]
    async with serving(client, make_app(app_name, agent("clerk", script, [ask, fast]))) as user:
        await user.create()
        waiting = await user.run("go")
    async with serving(client, make_app(app_name, agent("clerk", script, [ask, tool.fn]))) as user:
        await user.run("meanwhile")
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        assert [timeout for timeout, _ in await timeouts(user)] == [LONG, SHORT]


async def test_a_run_that_fetches_its_journal_has_more_time_whatever_its_tools(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_SHORT_EVENTS", 40)
    monkeypatch.setattr(packing, "MAX_PAYLOAD_BYTES", 100)
    tool = Counted("tool")
    async with serving(client, local_app(app_name, tool.fn)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert [timeout for timeout, _ in await timeouts(user)] == [LONG, LONG]
    assert len(tool.keys) == ROUNDS


@pytest.mark.parametrize(("largest", "expected"), [(journal.MAX_PAYLOAD_BYTES, [LONG, SHORT]), (500, [LONG])])
async def test_a_session_that_is_brought_in_hands_over_if_its_journal_came_whole(
    client: Client, app_name: str, largest: int, expected: list[timedelta], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = FunctionTool(Counted("tool").fn, local=True)
    app = make_app(app_name, agent("clerk", [calls("ask"), calls("tool"), text("x")], [long_running("ask"), tool]))
    async with serving(client, app) as user:
        await user.create()
        await user.run("go")
        lifecycle = Lifecycle(client)
        monkeypatch.setattr(packing, "MAX_PAYLOAD_BYTES", largest)
        await lifecycle.restore(
            SessionKey(app_name, "u", "copy"), await lifecycle.read_journal(SessionKey(app_name, "u", "s"))
        )
        copy = user.other(session_id="copy")
        (call,) = await copy.open("ask")
        assert (await copy.answered({call: {}})).status == "finished"
        assert [timeout for timeout, _ in await timeouts(copy)] == expected


async def test_updates_count_as_well(client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SHORT_EVENTS", 40)
    async with serving(client, local_app(app_name, Counted("tool").fn, 1)) as user:
        user.runner = Runner(app_name, client, local_tools=True)
        await user.create()
        for number in range(10):
            await user.runner.change_state(**user.who, state_delta={"number": number})
        assert len(await user.histories()) == 2
        assert (await user.run("go")).status == "finished"


@pytest.mark.parametrize("seconds", [3.0, 6.0, 10.0])
async def test_a_proof_says_itself_how_long_tasks_may_take(client: Client, app_name: str, seconds: float) -> None:
    tool = Counted("tool")
    async with serving(client, local_app(app_name, tool.fn, 3)) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=2, dead_after=seconds))
        await user.create()
        assert (await user.run("go")).status == "finished"
        found = await timeouts(user)
    assert len(found) > 1
    assert {timeout for timeout, _ in found} == {timedelta(seconds=seconds)}


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("first", ["charge", "fast"])
async def test_a_failure_beside_a_call_that_is_held_back_is_one(
    client: Client, app_name: str, at_most_once: bool, first: str
) -> None:
    """The next run would run the tool again, or ask what has become of it."""
    charge, fast = Counted("charge", fail=1), Counted("fast")
    once = FunctionTool(charge.fn, at_most_once=True) if at_most_once else charge.once
    names = ("charge", "fast") if first == "charge" else ("fast", "charge")
    app = make_app(app_name, agent("clerk", [calls(*names), text("x")], [once, fast.fn]))
    async with serving(client, app) as user:
        # So many steps that the second call of the round is held back.
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=3))
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert "of charge fails" in failed.failures[0].cause
        assert not failed.pending
    assert (len(charge.keys), len(fast.keys)) == (1, 1)
