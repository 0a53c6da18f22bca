"""Apps that are not resumable: no checkpoints in the log, answers that start invocations, stops for good."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from perdure.agents import SequentialAgent
from perdure.errors import CallAnswered
from tests.workflows.support import Counted, Gate, agent, calls, long_running, make_app, serving, text

pytestmark = pytest.mark.server


async def test_checkpoints_are_in_the_journal_and_not_in_the_log(client: Client, app_name: str) -> None:
    """So that its runs survive crashes too."""
    steps = [agent("one", [text("1")]), agent("two", [text("2")])]
    root = SequentialAgent(name="all", sub_agents=[*steps])
    async with serving(client, make_app(app_name, root, resumable=False)) as user:
        await user.create()
        await user.run("a")
        events = await user.events()
        assert not [e for e in events if e.actions.end_of_agent or e.actions.agent_state is not None]
        assert [event.author for event in events] == ["user", "one", "two"]
        journal = await user.journal()
        assert journal.events == events
        hidden = [entry for entry in journal.entries if entry.kind == "event" and entry.hidden]
        assert len(hidden) == 5, "two checkpoints and three ends"


async def test_an_unanswered_call_stays_answerable_and_the_answer_starts_an_invocation(
    client: Client, app_name: str
) -> None:
    script = [calls("pick"), text("pending"), text("other"), text("picked")]
    clerk = agent("clerk", script, [long_running("pick")])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        first = await user.run("a")
        assert (first.status, [call.name for call in first.pending]) == ("finished", ["pick"])
        assert (await user.view()).status == "idle"
        await user.run("b")
        call_id = first.pending[0].id
        second = await user.answered({call_id: {"ok": 1}})
        assert (second.status, second.id == first.id) == ("finished", False)
        assert (await user.log())[-2:] == ["user answers pick", "clerk: picked"]
        with pytest.raises(CallAnswered):
            await user.answer({call_id: {"ok": 2}})
        assert await user.pending() == {}


async def test_an_answer_while_its_invocation_still_runs_takes_its_turn(client: Client, app_name: str) -> None:
    """It starts an invocation of its own, so never before the response event of its call either."""
    gate = Gate()
    script = [calls("pick", "work"), text("pending"), text("picked")]
    clerk = agent("clerk", script, [long_running("pick"), gate.tool("work")])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        first = await user.send("a")
        await gate.reached()
        (call_id,) = await user.open("pick")
        assert (await user.answer({call_id: {"ok": 1}})).status == "queued"
        gate.open()
        await user.settled(first)
        await user.logged("clerk: picked")
        log = await user.log()
        assert log[2:] == ["clerk got pick, work", "clerk: pending", "user answers pick", "clerk: picked"]


async def test_a_call_of_a_stopped_invocation_stays_answerable(client: Client, app_name: str) -> None:
    gate = Gate()
    script = [calls("pick"), calls("work"), text("picked")]
    clerk = agent("clerk", script, [long_running("pick"), gate.tool("work")])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        first = await user.send("a")
        await gate.reached()
        (call_id,) = await user.open("pick")
        await user.stop(first)
        second = await user.answered({call_id: {"ok": 1}})
        assert (second.status, second.id == first) == ("finished", False)
        assert (await user.log())[-2:] == ["user answers pick", "clerk: picked"]


async def test_after_a_failure_a_new_message_goes_on(client: Client, app_name: str) -> None:
    bad = Counted("bad", fail=1)
    clerk = agent("clerk", [calls("bad"), text("fine")], [bad.once])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        assert (await user.run("a")).status == "failed"
        assert (await user.view()).status == "failed"
        assert (await user.run("b")).status == "finished"
        assert (await user.view()).status == "idle"
