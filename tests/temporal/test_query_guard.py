"""A query that is answered by a replay must not run a tool for a step that no workflow task has taken."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHistory
from temporalio.common import RawValue

from perdure.agents import App, FunctionTool
from perdure.client import Runner
from perdure.messages.session import CALL_MODEL
from tests.workflows.support import Counted, Gate, GatedModel, User, agent, calls, make_app, serving, text

pytestmark = pytest.mark.server


@dataclass
class Shop:
    """An app whose model can be held, and answered for from outside of any worker."""

    app_name: str
    tool: Counted = field(default_factory=lambda: Counted("tool"))
    gates: dict[int, Gate] = field(default_factory=dict[int, Gate])

    @property
    def app(self) -> App:
        model = GatedModel([calls("tool"), text("done")], self.gates)
        return make_app(self.app_name, agent("clerk", model, [FunctionTool(self.tool.fn, local=True)]))

    async def asked_without_a_worker(self, client: Client) -> tuple[User, str, Payload]:
        """Return a user whose model was called, its invocation, and what the model will say; no worker is up."""
        async with serving(client, self.app) as other:
            await other.create()
            assert (await other.run("go")).status == "finished"
            answer = _first_answer(await other.histories())
        self.tool.keys.clear()
        user = other.other(session_id="held")
        user.runner = Runner(self.app_name, client, local_tools=True)
        gate = self.gates[0] = Gate()
        async with serving(client, self.app):
            await user.create()
            sent = await user.send("go")
            await gate.reached()
        gate.open()
        return user, sent, answer

    async def answer_for_the_model(self, user: User, answer: Payload) -> None:
        """End the model call: no worker takes that up yet."""
        (pending,) = (await user.workflow.describe()).raw_description.pending_activities
        handle = user.client.get_async_activity_handle(
            workflow_id=user.key, run_id=None, activity_id=pending.activity_id
        )
        await handle.complete(RawValue(answer))

    async def closed_between_steps(self, client: Client) -> tuple[User, str]:
        """Return a user whose session was closed right behind the model's answer, and the invocation."""
        user, sent, answer = await self.asked_without_a_worker(client)
        await self.answer_for_the_model(user, answer)
        await user.workflow.terminate()
        return user, sent


async def test_a_look_at_a_closed_session_runs_no_tool(client: Client, app_name: str) -> None:
    shop = Shop(app_name)
    user, sent = await shop.closed_between_steps(client)
    async with serving(client, shop.app):
        assert [invocation.status for invocation in (await user.view()).invocations] == ["stopped"]
        assert await user.log() == ["user: go", "clerk calls tool"]
        assert [effect.outcome for effect in await user.runner.effects(**user.who)] == ["running"]
        assert not await user.runner.pending(**user.who)
        assert shop.tool.keys == []
        assert (await user.resumed(sent)).status == "finished"
        assert await user.log() == ["user: go", "clerk calls tool", "clerk got tool", "clerk: done"]
    assert len(shop.tool.keys) == 1


async def test_a_closed_session_that_is_replaced_is_kept_and_runs_no_tool(client: Client, app_name: str) -> None:
    shop = Shop(app_name)
    user, _ = await shop.closed_between_steps(client)
    async with serving(client, shop.app):
        lines = [line async for line in user.runner.export_session(**user.who)]
        imported = await user.runner.import_session(lines, replace=True)
        assert imported.replaced is not None
        for session_id in (imported.replaced, imported.session_id):
            assert await user.other(session_id=session_id).log() == ["user: go", "clerk calls tool"]
    assert shop.tool.keys == []


async def test_a_look_ahead_of_a_workflow_task_is_answered_after_it(client: Client, app_name: str) -> None:
    """The query is on its way as the model call ends, so it is no part of the task that takes that up."""
    shop = Shop(app_name)
    user, sent, answer = await shop.asked_without_a_worker(client)
    looks = [asyncio.create_task(user.view()) for _ in range(3)]
    await asyncio.sleep(0.5)
    await shop.answer_for_the_model(user, answer)
    async with serving(client, shop.app):
        for look in looks:
            assert len((await look).invocations) == 1
        assert (await user.settled(sent)).status == "finished"
    assert len(shop.tool.keys) == 1


def _first_answer(runs: list[WorkflowHistory]) -> Payload:
    """Return what the first model call returned."""
    events = [event for run in runs for event in run.events]
    at = next(
        index
        for index, event in enumerate(events)
        if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL
    )
    return next(
        event.activity_task_completed_event_attributes.result.payloads[0]
        for event in events[at:]
        if event.activity_task_completed_event_attributes.result.payloads
    )
