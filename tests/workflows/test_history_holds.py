"""History holds the journal at a workflow task's end, whatever is given up in that task; who wrote reads it back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from temporalio.client import Client

from perdure.agents import FunctionTool, SequentialAgent
from perdure.agents.custom import InvocationContext
from perdure.journal.events import Event
from perdure.messages.session import JournalPage, PageInput
from perdure.recovery.slices import read_archive
from tests.workflows.support import Gate, GatedModel, agent, calls, make_app, named, serving, text
from tests.workflows.test_custom_code import Coded, app_of, heard

pytestmark = pytest.mark.server


async def test_what_a_step_carried_that_is_given_up_as_it_is_scheduled(client: Client, app_name: str) -> None:
    """A local tool holds the task in which a sub-agent's next step is scheduled, and its agent given up."""
    first_is_done, tool_runs, gave_up = Gate(), Gate(), Gate()

    async def quick() -> str:
        tool_runs.open()
        await gave_up.pass_through("quick")
        # The results of both come into its workflow task.
        await asyncio.sleep(1)
        return "ok"

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        tasks = [asyncio.ensure_future(heard(one, ctx)) for one in self.sub_agents]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first_is_done.open()
        # In a thread, which counts as the code's own work.
        while not gave_up.keys:
            await asyncio.to_thread(time.sleep, 0.01)
        await asyncio.to_thread(time.sleep, 0.7)
        for task in tasks:
            task.cancel()
        gave_up.open()
        yield self.says("gave up")
        yield self.says("end")

    slow_1 = agent("slow_1", GatedModel([text("one")], {0: tool_runs}))
    slow = SequentialAgent(name="slow", sub_agents=[slow_1, agent("slow_2", [text("two")])])
    model = GatedModel([calls("quick"), text("it ran")], {0: first_is_done})
    local = agent("local", model, [FunctionTool(quick, local=True)])
    async with serving(client, app_of(app_name, code, agent("first", [text("I am first")]), slow, local)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        page = await user.workflow.query("journal", PageInput(), result_type=JournalPage)
        assert len(await read_archive(client, user.key, None)) == page.total
        # The next turn's steps see all of it.
        assert (await user.run("again")).status == "finished"


async def test_a_stop_beside_a_local_tool_is_read_back(client: Client, app_name: str) -> None:
    end = Gate()

    async def work() -> str:
        await end.pass_through("work")
        return "ok"

    tool = FunctionTool(named(work, "work"), local=True, timeout=timedelta(seconds=30))
    clerk = agent("clerk", [calls("work"), text("a done"), text("b done")], [tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first = await user.send("a")
        await end.reached()
        second = await user.send("b")
        assert (await user.stop(second)).status == "stopped"
        assert await user.status(second) == "stopped"
        assert await user.status(first) == "running"
        end.open()
        assert (await user.settled(first)).status == "finished"
