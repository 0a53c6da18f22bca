"""A session that another version of Perdure cannot go on with: what is said, and how it goes on all the same."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App
from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.errors import InvocationNotFound, SessionStuck
from perdure.messages.session import ModelOutput, Trial
from perdure.worker import create_workers
from perdure.workflows.run.activities import Activities
from tests.cli.test_main import Process
from tests.workflows.support import (
    Counted,
    Gate,
    User,
    agent,
    calls,
    check_log,
    eventually,
    long_running,
    make_app,
    text,
)

pytestmark = pytest.mark.server

DYING = """
import os, pathlib
from perdure.agents import App, LlmAgent
from perdure.models.scripted import ScriptedModel
from perdure.workflows.run.activities import Activities

ask = Activities.model

def die(self, *args, **options):
    # Stands for a fault of Perdure's own: no code of an app runs in a workflow.
    if not pathlib.Path(__file__).with_name("mended").exists():
        os._exit(1)
    return ask(self, *args, **options)

Activities.model = die
app = App(name="NAME", root_agent=LlmAgent(name="clerk", model=ScriptedModel([{"text": "I live."}])))
"""


def project(name: str, tools: list[Any]) -> App:
    script = [calls("work", "ask"), text("thanks"), calls("ask"), text("thanks again")]
    return make_app(name, agent("clerk", script, tools))


@pytest.fixture
def deploy_another_perdure(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have workers run another version of Perdure from here on: it takes other steps."""

    def deploy() -> None:
        model = Activities.model

        async def later(self: Activities, *args: Any, **options: Any) -> ModelOutput:
            await asyncio.sleep(0.01)
            return await model(self, *args, **options)

        monkeypatch.setattr(Activities, "model", later)

    return deploy


@asynccontextmanager
async def deployed(client: Client, app: App) -> AsyncGenerator[User]:
    """Run a worker as in production: a defect does not fail a session's workflow."""
    (worker,) = create_workers(client, [app], WorkerConfig(max_cached_workflows=10))
    async with worker:
        yield User(client, app.name)


@pytest.mark.nondeterminism
@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_stuck_session_is_told_and_taken_over(
    client: Client, app_name: str, deploy_another_perdure: Callable[[], None], answered: str
) -> None:
    """An answer that was sent while it was stuck is not lost, and nothing that completed runs again."""
    work = Counted("work")
    app = project(app_name, [work.once, long_running("ask")])
    async with deployed(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        assert waiting.status == "waiting"
        [call_id] = await user.open("ask")
    deploy_another_perdure()
    async with deployed(client, app) as user:
        if answered == "before":
            await user.signal({"id": call_id, "response": {"ok": True}})
            # It can be read all the same, and says so.
            await eventually(lambda: _halted(user, r"does something else.*TMPRL1100.*resume --fresh"))
            assert (await user.view()).id == "s"
            with pytest.raises(SessionStuck):
                await user.resume(waiting.id)
        result = await user.runner.resume(**user.who, invocation_id=waiting.id, fresh=True)
        assert result.invocation.id == waiting.id
        if answered == "after":
            assert (await user.settled(waiting.id)).status == "waiting"
            assert await user.open("ask") == [call_id]
            await user.answer({call_id: {"ok": True}})
        await eventually(lambda: _finished(user, waiting.id))
        check_log(await user.events())
        assert [line for line in await user.log() if line.startswith("clerk: ")] == ["clerk: thanks"]
        assert len(work.keys) == 1
        assert (await user.run("once more")).status == "waiting"


async def _halted(user: User, why: str) -> bool:
    halted = (await user.runner.explain(**user.who)).halted
    return halted is not None and re.search(why, halted) is not None


@pytest.mark.process
async def test_a_session_that_workers_die_of_is_told_as_stuck(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    """No workflow task of it fails: each times out, and is tried again for ever."""
    (tmp_path / f"{app_name}.py").write_text(DYING.replace("NAME", app_name))
    user = User(client, app_name)
    user.runner = Runner(app_name, client, trial=Trial(dead_after=1.0))
    await user.create()
    followed = asyncio.create_task(follow(user, live=False))
    async with asyncio.timeout(90):
        while not followed.done():
            worker = await Process.start("worker", f"{app_name}.py", "--address", temporal_server, cwd=tmp_path)
            await asyncio.wait({followed, ended := asyncio.create_task(worker.ended())}, return_when="FIRST_COMPLETED")
            if not ended.done():
                worker.send(signal.SIGTERM)
            await ended
        with pytest.raises(SessionStuck, match=r"\d+ attempts of its workflow task came to nothing: workers die"):
            await followed
    (tmp_path / "mended").touch()
    worker = await Process.start("worker", f"{app_name}.py", "--address", temporal_server, cwd=tmp_path)
    await eventually(lambda: _said(user, "I live."), patience=60)
    await worker.end(signal.SIGTERM)


async def _said(user: User, words: str) -> bool:
    try:
        return any(event.text == words for event in await user.events())
    except SessionStuck:
        # Until a worker has gone on with it.
        return False


@pytest.mark.nondeterminism
@pytest.mark.parametrize("live", [True, False])
async def test_who_follows_a_session_that_gets_stuck_is_told(
    client: Client, app_name: str, deploy_another_perdure: Callable[[], None], live: bool
) -> None:
    gate = Gate()
    app = project(app_name, [gate.tool("work"), long_running("ask")])
    async with deployed(client, app) as user:
        await user.create()
        followed = asyncio.create_task(follow(user, live=live))
        await gate.reached()
    gate.open()
    deploy_another_perdure()
    async with deployed(client, app):
        async with asyncio.timeout(30):
            with pytest.raises(SessionStuck, match="does something else"):
                await followed


async def follow(user: User, *, live: bool) -> None:
    async for _ in user.runner.run_async(**user.who, new_message="go", live=live):
        pass


async def _finished(user: User, invocation_id: str) -> bool:
    return (await user.invocation(invocation_id)).status == "finished"


async def test_a_session_that_is_not_stuck_can_be_taken_over_too(client: Client, app_name: str) -> None:
    work = Counted("work")
    app = project(app_name, [work.once, long_running("ask")])
    async with deployed(client, app) as user:
        await user.create(colour="red")
        waiting = await user.run("go")
        before = await user.log()
        await user.runner.resume(**user.who, invocation_id=waiting.id, fresh=True)
        assert (await user.settled(waiting.id)).status == "waiting"
        assert (await user.log(), (await user.view()).state) == (before, {"colour": "red"})
        with pytest.raises(InvocationNotFound):
            await user.runner.resume(**user.who, invocation_id="e-none", fresh=True)
        [call_id] = await user.open("ask")
        assert (await user.answered({call_id: {}})).status == "finished"
        assert len(work.keys) == 1


@pytest.mark.nondeterminism
async def test_a_terminated_session_comes_back_although_perdure_changed(
    client: Client, app_name: str, deploy_another_perdure: Callable[[], None]
) -> None:
    """Its journal cannot be asked for, but history tells it."""
    work = Counted("work")
    app = project(app_name, [work.once, long_running("ask")])
    async with deployed(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        [call_id] = await user.open("ask")
        await user.workflow.terminate()
    deploy_another_perdure()
    async with deployed(client, app) as user:
        assert (await user.answered({call_id: {}})).status == "finished"
        assert (await user.log(waiting.id))[-1] == "clerk: thanks"
        assert len(work.keys) == 1


@pytest.mark.nondeterminism
async def test_a_session_that_the_server_turns_clients_away_from_is_told_as_stuck(
    client: Client, app_name: str, deploy_another_perdure: Callable[[], None]
) -> None:
    """After some failed workflow tasks the server refuses at once; neither a traceback nor waiting would help."""
    app = project(app_name, [Counted("work").once, long_running("ask")])
    async with deployed(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        [call_id] = await user.open("ask")
    deploy_another_perdure()
    async with deployed(client, app) as user:
        await user.signal({"id": call_id, "response": {}})

        async def refused() -> bool:
            description = await user.workflow.describe()
            return description.raw_description.pending_workflow_task.attempt > 3

        await eventually(refused, patience=60)
        with pytest.raises(SessionStuck):
            await user.stop(waiting.id)
        assert (await user.invocation(waiting.id)).id == waiting.id
        await user.workflow.terminate("given up")
