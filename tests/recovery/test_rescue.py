"""A custom agent's code changes under an open session: what is said, and how the session goes on."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App, ResumabilityConfig
from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.errors import InvocationNotFound, SessionStuck
from perdure.messages.session import Trial
from perdure.worker import create_workers
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

MODULE = """
from perdure.agents.custom import BaseAgent
from perdure.journal.events import Event
from google.genai import types

def said(agent, words):
    return Event(author=agent.name, content=types.Content(role="model", parts=[types.Part(text=words)]))

ran = []

def price(city: str) -> int:
    ran.append(city)
    return len(city)

class Flow(BaseAgent):
    async def _run_async_impl(self, ctx):
BODY
"""

BEFORE = """
        yield said(self, f"Oslo costs {await ctx.run_activity(price, 'Oslo')}.")
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
        yield said(self, "Done as before.")
"""

AFTER = """
        first = await ctx.run_activity(price, 'Oslo')
        yield said(self, f"Oslo costs {first}.")
        second = await ctx.run_activity(price, 'Bergen')
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
        yield said(self, f"Bergen costs {second}.")
"""


DEADLY = """
import os, pathlib
# Neither the check of custom agents nor the sandbox sees through it.
WAYS = {"die": lambda: pathlib.Path(__file__).with_name("mended").exists() or os._exit(1)}
"""

DYING = """
from deadly_NAME import WAYS
from google.genai import types
from perdure.agents import App, ResumabilityConfig
from perdure.agents.custom import BaseAgent
from perdure.journal.events import Event

class Flow(BaseAgent):
    async def _run_async_impl(self, ctx):
        WAYS["die"]()
        yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text="I live.")]))

app = App(name="NAME", root_agent=Flow(name="flow"), resumability_config=ResumabilityConfig(is_resumable=True))
"""


class Project:
    """A user's project with a custom agent, whose code can be changed."""

    def __init__(self, folder: Path, app: str, tools: list[Any]) -> None:
        self.app = app
        self.path = folder / f"flow_{app}.py"
        self.tools = tools
        sys.path.insert(0, str(folder))

    def version(self, body: str) -> tuple[App, Any]:
        """Change the code; returns the app and the module with it."""
        self.path.write_text(MODULE.replace("BODY", body))
        sys.modules.pop(self.path.stem, None)
        importlib.invalidate_caches()
        module = importlib.import_module(self.path.stem)
        script = [calls("work", "ask"), text("thanks"), calls("ask"), text("thanks again")]
        root = module.Flow(name="flow", sub_agents=[agent("clerk", script, self.tools)])
        config = ResumabilityConfig(is_resumable=True)
        return App(name=self.app, root_agent=root, resumability_config=config, activities=[module.price]), module


@pytest.fixture
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions of a file that are written within a second look the same to Python's cache of bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@asynccontextmanager
async def deployed(client: Client, app: App) -> AsyncGenerator[User]:
    """Run a worker as in production: a defect does not fail a session's workflow."""
    (worker,) = create_workers(client, [app], WorkerConfig(max_cached_workflows=10))
    async with worker:
        yield User(client, app.name)


@pytest.mark.nondeterminism
@pytest.mark.usefixtures("no_bytecode")
@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_stuck_session_is_told_and_taken_over(
    client: Client, app_name: str, tmp_path: Path, answered: str
) -> None:
    """An answer that was sent while it was stuck is not lost, and nothing that completed runs again."""
    work = Counted("work")
    project = Project(tmp_path, app_name, [work.once, long_running("ask")])
    app, old = project.version(BEFORE)
    async with deployed(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        assert waiting.status == "waiting"
        [call_id] = await user.open("ask")
    app, new = project.version(AFTER)
    async with deployed(client, app) as user:
        with pytest.raises(SessionStuck, match=r"does something else.*TMPRL1100.*resume --fresh"):
            await user.view()
        if answered == "before":
            await user.signal({"id": call_id, "response": {"ok": True}})
            with pytest.raises(SessionStuck):
                await user.resume(waiting.id)
        result = await user.runner.resume(**user.who, invocation_id=waiting.id, fresh=True)
        assert result.invocation.id == waiting.id
        if answered == "after":
            assert (await user.settled(waiting.id)).status == "waiting"
            assert await user.open("ask") == [call_id]
            await user.answer({call_id: {"ok": True}})
        await eventually(lambda: _finished(user, waiting.id))
        events = await user.events()
        check_log(events)
        said = [event.text for event in events if event.author == "flow" and event.text]
        assert said == ["Oslo costs 4.", "Bergen costs 6."]
        assert (old.ran, new.ran, len(work.keys)) == (["Oslo"], ["Bergen"], 1)
        assert (await user.run("once more")).status == "waiting"


@pytest.mark.process
async def test_a_session_that_workers_die_of_is_told_as_stuck(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    """No workflow task of it fails: each times out, and is tried again for ever."""
    (tmp_path / f"deadly_{app_name}.py").write_text(DEADLY)
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
@pytest.mark.usefixtures("no_bytecode")
@pytest.mark.parametrize("live", [True, False])
async def test_who_follows_a_session_that_gets_stuck_is_told(
    client: Client, app_name: str, tmp_path: Path, live: bool
) -> None:
    gate = Gate()
    project = Project(tmp_path, app_name, [gate.tool("work"), long_running("ask")])
    app, _ = project.version(BEFORE)
    async with deployed(client, app) as user:
        await user.create()
        followed = asyncio.create_task(follow(user, live=live))
        await gate.reached()
    gate.open()
    app, _ = project.version(AFTER)
    async with deployed(client, app):
        async with asyncio.timeout(30):
            with pytest.raises(SessionStuck, match="does something else"):
                await followed


async def follow(user: User, *, live: bool) -> None:
    async for _ in user.runner.run_async(**user.who, new_message="go", live=live):
        pass


async def _finished(user: User, invocation_id: str) -> bool:
    return (await user.invocation(invocation_id)).status == "finished"


@pytest.mark.usefixtures("no_bytecode")
async def test_a_session_that_is_not_stuck_can_be_taken_over_too(client: Client, app_name: str, tmp_path: Path) -> None:
    work = Counted("work")
    app, _ = Project(tmp_path, app_name, [work.once, long_running("ask")]).version(BEFORE)
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
@pytest.mark.usefixtures("no_bytecode")
async def test_a_terminated_session_comes_back_although_its_code_changed(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    """Its journal cannot be asked for, but history tells it."""
    work = Counted("work")
    project = Project(tmp_path, app_name, [work.once, long_running("ask")])
    app, _ = project.version(BEFORE)
    async with deployed(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        [call_id] = await user.open("ask")
        await user.workflow.terminate()
    app, _ = project.version(AFTER)
    async with deployed(client, app) as user:
        assert (await user.answered({call_id: {}})).status == "finished"
        assert (await user.log(waiting.id))[-1] == "flow: Bergen costs 6."
        assert len(work.keys) == 1


@pytest.mark.usefixtures("no_bytecode")
async def test_a_session_whose_custom_agent_was_removed_says_what_helps(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    """Taking it over does not: the agent is entered again. Its workflow terminated, the invocation is given up."""
    work = Counted("work")
    project = Project(tmp_path, app_name, [work.once, long_running("ask")])
    app, _ = project.version(BEFORE)
    async with deployed(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        [call_id] = await user.open("ask")
    without = make_app(app_name, agent("other", [text("I am new.")]))
    async with deployed(client, without) as user:
        with pytest.raises(SessionStuck, match=r"no custom agent 'flow'.*temporal workflow terminate") as stuck:
            await user.runner.resume(**user.who, invocation_id=waiting.id, fresh=True)
        assert stuck.value.missing
        assert "--fresh`) does not help" in str(stuck.value)
        await user.workflow.terminate("given up")
        assert (await user.run("hello")).status == "finished"
        assert (await user.status(waiting.id), (await user.log())[-1]) == ("stopped", "other: I am new.")
    async with deployed(client, project.version(BEFORE)[0]) as user:
        assert (await user.resumed(waiting.id)).status == "waiting"
        assert (await user.answered({call_id: {}})).status == "finished"
        assert len(work.keys) == 1


@pytest.mark.usefixtures("no_bytecode")
async def test_a_session_that_the_server_turns_clients_away_from_is_told_as_stuck(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    """After some failed workflow tasks the server refuses at once; neither a traceback nor waiting would help."""
    project = Project(tmp_path, app_name, [Counted("work").once, long_running("ask")])
    async with deployed(client, project.version(BEFORE)[0]) as user:
        await user.create()
        waiting = await user.run("go")
        [call_id] = await user.open("ask")
    async with deployed(client, make_app(app_name, agent("other", [text("I am new.")]))) as user:
        await user.signal({"id": call_id, "response": {}})

        async def refused() -> bool:
            description = await user.workflow.describe()
            return description.raw_description.pending_workflow_task.attempt > 3

        await eventually(refused, patience=60)
        with pytest.raises(SessionStuck):
            await user.stop(waiting.id)
        with pytest.raises(SessionStuck):
            await user.view()
        await user.workflow.terminate("given up")
