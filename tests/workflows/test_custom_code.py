"""The code of custom agents runs in steps, so it may do anything; it goes on where it was, or from its top."""

from __future__ import annotations

import asyncio
import http.server
import random
import threading
import time
import urllib.request
import uuid
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import App, ResumabilityConfig
from perdure.agents.custom import BaseAgent, BaseAgentState, InvocationContext
from perdure.errors import EffectFailed
from perdure.journal.entries import ActivityKept
from perdure.journal.events import Event, EventActions
from perdure.steps.code import code_runs, suspended_code
from tests.workflows.support import User, agent, calls, eventually, long_running, serving, text

pytestmark = pytest.mark.server

Code = Callable[["Coded", InvocationContext], AsyncGenerator[Event, None]]


class Coded(BaseAgent):
    """A custom agent whose code a test gives it."""

    code: Any

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in self.code(self, ctx):
            yield event

    def says(self, words: str, **delta: Any) -> Event:
        return Event(author=self.name, content=types.ModelContent(words), actions=EventActions(state_delta=delta))


async def heard(one: BaseAgent, ctx: InvocationContext) -> list[str]:
    return [event.text async for event in one.run_async(ctx) if event.text]


doubled: list[int] = []


def double(number: int) -> int:
    doubled.append(number)
    return 2 * number


async def dawdle(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"after {seconds}"


def app_of(name: str, code: Code, *sub_agents: BaseAgent, resumable: bool = True) -> App:
    doubled.clear()
    return App(
        name=name,
        root_agent=Coded(name="flow", code=code, sub_agents=list(sub_agents)),
        resumability_config=ResumabilityConfig(is_resumable=resumable),
        activities=[double, dawdle],
    )


@pytest.fixture(params=["kept", "from the top"])
def suspended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is kept where it waits; or it is not, so that each step runs it from its top: the log is the same."""
    if request.param == "from the top":
        monkeypatch.setattr(suspended_code, "_MOST_KEPT", 0)


async def told(client: Client, app: App) -> list[str]:
    async with serving(client, app) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "finished", view.failures
        return [line for line in await user.log() if line.startswith("flow: ")]


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, format: str, *args: object) -> None:
        pass


async def test_clocks_chance_network_files_and_threads_are_there(client: Client, app_name: str, tmp_path: Path) -> None:
    """Also in a class that a function defines, which no other process could import."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    class Local(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
            began, name = time.time(), f"{uuid.uuid4()}{random.random()}"
            await asyncio.wait_for(asyncio.sleep(0.01), 5)
            page = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{server.server_port}/")
            with page:
                (tmp_path / "note").write_text(name + page.read().decode())
            same = (tmp_path / "note").read_text() == f"{name}a page"
            yield Event(content=types.ModelContent(f"{same} {time.time() > began} {await heard(last, ctx)}"))

    last = agent("last", [text("bye")])
    try:
        assert await told(client, App(name=app_name, root_agent=Local(name="flow", sub_agents=[last]))) == [
            "flow: True True ['bye']"
        ]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("suspended")
async def test_functions_and_agents_are_gathered_in_chains(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async def chain(number: int, one: BaseAgent) -> str:
            first = await ctx.run_activity(double, number)
            words = await heard(one, ctx)
            return f"{words} {await ctx.run_activity(double, first)}"

        yield self.says("begun", tone="low")
        found = await asyncio.gather(chain(1, self.sub_agents[0]), chain(2, self.sub_agents[1]))
        yield self.says(f"{found} {ctx.session.state['tone']} {len(ctx.session.events)}")

    agents = agent("left", [text("l")]), agent("right", [text("r")])
    # The session has the ends of agents, too.
    gathered = "flow: [\"['l'] 4\", \"['r'] 8\"] low 6"
    assert await told(client, app_of(app_name, code, *agents)) == ["flow: begun", gathered]
    assert sorted(doubled) == [1, 2, 2, 4]


@pytest.mark.usefixtures("suspended")
async def test_equal_calls_at_once_are_each_a_call(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        found = await asyncio.gather(*(ctx.run_activity(double, 4) for _ in range(3)))
        yield self.says(f"{found} {await ctx.run_activity(double, 4)}")

    assert await told(client, app_of(app_name, code)) == ["flow: [8, 8, 8] 8"]
    assert doubled == [4, 4, 4, 4]


async def test_its_code_runs_once_where_nothing_is_killed(client: Client, app_name: str) -> None:
    begun: list[str] = []

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        begun.append("top")
        for number in range(3):
            yield self.says(f"{await ctx.run_activity(double, number)} {await heard(self.sub_agents[0], ctx)}")
        begun.append("end")

    await told(client, app_of(app_name, code, agent("x", [text("hi")] * 3)))
    assert begun == ["top", "end"]


async def test_another_worker_goes_on_with_what_is_recorded(client: Client, app_name: str) -> None:
    seen: list[tuple[float, int]] = []

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says("begun", chance=random.random())
        seen.append((ctx.session.state["chance"], len(ctx.session.events)))
        answer = await ctx.run_activity(double, 21)
        words = await heard(self.sub_agents[0], ctx)
        yield self.says(f"{answer} {words} {ctx.session.state['chance'] == seen[0][0]}")

    def app(*script: dict[str, Any]) -> App:
        return app_of(app_name, code, agent("clerk", list(script), [long_running("ask")]))

    async with serving(client, app(calls("ask"), text("thanks"))) as user:
        await user.create()
        assert (await user.run("go")).status == "waiting"
        [call_id] = await user.open("ask")
        ran = list(doubled)
    async with serving(client, app(calls("ask"), text("thanks"))) as user:
        view = await user.answered({call_id: {}})
        assert view.status == "finished", view.failures
        assert (await user.log())[-1] == "flow: 42 ['thanks'] True"
    assert (ran, doubled) == ([21], [])
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.parametrize("long", [False, True])
async def test_a_sleep_holds_a_step_open_or_is_a_timer_of_the_workflow(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, *, long: bool
) -> None:
    monkeypatch.setattr(code_runs, "_LONG_SLEEP_SECONDS", 0.1 if long else 60.0)

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says("tired")
        began = time.monotonic()
        await asyncio.sleep(1.5)
        yield self.says(f"slept {time.monotonic() - began:.0f}")

    async with serving(client, app_of(app_name, code)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "finished", view.failures
        assert [line for line in await user.log() if line.startswith("flow")] == ["flow: tired", "flow: slept 2"]
        history = await user.workflow.fetch_history()
        timers = [event for event in history.events if event.HasField("timer_started_event_attributes")]
        assert bool(timers) == long


async def test_what_it_says_is_seen_while_it_works(client: Client, app_name: str) -> None:
    go_on = threading.Event()

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says("working")
        await asyncio.to_thread(go_on.wait, 30)
        yield self.says("done")

    async with serving(client, app_of(app_name, code)) as user:
        await user.create()
        invocation = await user.send("go")
        await eventually(lambda: _has_said(user, "flow: working"))
        go_on.set()
        assert (await user.settled(invocation)).status == "finished"
        assert (await user.log())[-2:] == ["flow: working", "flow: done"]


async def _has_said(user: User, line: str) -> bool:
    return line in await user.log()


async def test_it_works_on_beside_an_agent_that_waits_for_a_person(client: Client, app_name: str) -> None:
    """Chains that go on, through a thread and a sleep, do not wait for the person."""

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async def beside() -> list[str]:
            first = await heard(self.sub_agents[1], ctx)
            await asyncio.to_thread(time.sleep, 0.3)
            await asyncio.sleep(0.3)
            return first + await heard(self.sub_agents[2], ctx)

        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(heard(self.sub_agents[0], ctx)), group.create_task(beside())
        yield self.says(f"{tasks[0].result()} {tasks[1].result()}")

    asking = agent("asking", [calls("ask"), text("asked")], [long_running("ask")])
    others = agent("first", [text("one")]), agent("second", [text("two")])
    async with serving(client, app_of(app_name, code, asking, *others)) as user:
        await user.create()
        invocation = await user.send("go")
        await eventually(lambda: _has_said(user, "second: two"))
        assert (await user.settled(invocation)).status == "waiting"
        [call_id] = await user.open("ask")
        assert (await user.answered({call_id: {}})).status == "finished"
        assert (await user.log())[-1] == "flow: ['asked'] ['one', 'two']"


async def test_a_timeout_gives_up_what_waits(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for wait in (heard(self.sub_agents[0], ctx), ctx.run_activity(dawdle, 3.0)):
            try:
                async with asyncio.timeout(0.5):
                    await wait
            except TimeoutError:
                yield self.says("too slow")
        yield self.says(f"{await heard(self.sub_agents[1], ctx)}")

    asking = agent("asking", [calls("ask"), text("never")], [long_running("ask")])
    async with serving(client, app_of(app_name, code, asking, agent("next", [text("well")]))) as user:
        await user.create()
        invocation = await user.send("go")
        # It does not wait for the person: while a timer of its code runs, it is at work.
        assert (await user.settled(invocation)).status == "finished"
        lines = [line for line in await user.log() if line.startswith("flow: ")]
    assert lines == ["flow: too slow", "flow: too slow", "flow: ['well']"]


async def test_a_stop_ends_it_where_it_is(client: Client, app_name: str) -> None:
    reached, left = threading.Event(), threading.Event()

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says("begun")
        reached.set()
        try:
            await asyncio.sleep(30)
        finally:
            left.set()

    async with serving(client, app_of(app_name, code)) as user:
        await user.create()
        invocation = await user.send("go")
        await eventually(reached.is_set)
        await user.stop(invocation)
        await eventually(left.is_set)
        assert (await user.settled(invocation)).status == "stopped"


async def test_more_than_one_step_could_return(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for number in range(4):
            yield self.says(f"{number}" * 900_000)
        found = await asyncio.gather(*(ctx.run_activity(length, f"{number}" * 900_000) for number in range(3)))
        yield self.says(f"{found}")

    app = App(name=app_name, root_agent=Coded(name="flow", code=code), activities=[length])
    assert [len(line) for line in await told(client, app)] == [900_006] * 4 + [len("flow: [900000, 900000, 900000]")]


def length(words: str) -> int:
    return len(words)


class Done(BaseAgentState):
    steps: int = 0


@pytest.mark.parametrize("resumable", [True, False])
@pytest.mark.usefixtures("suspended")
async def test_a_checkpoint_forgets_what_was_before_and_waits_for_what_is_at_work(
    client: Client, app_name: str, *, resumable: bool
) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        saved = self._load_agent_state(ctx, Done)  # pyright: ignore[reportPrivateUsage] -- ADK's name
        if saved is None:
            beside = asyncio.create_task(ctx.run_activity(dawdle, 0.5))
            yield self.says(f"first {await ctx.run_activity(double, 1)}")
            ctx.set_agent_state(self.name, agent_state=Done(steps=1))
            yield self._create_agent_state_event(ctx)  # pyright: ignore[reportPrivateUsage] -- ADK's name
            assert beside.done()
        yield self.says(f"second {await ctx.run_activity(double, 1)}")

    async with serving(client, app_of(app_name, code, resumable=resumable)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert [line for line in await user.log() if line.startswith("flow: ")] == ["flow: first 2", "flow: second 2"]
        shown = [event for event in await user.events() if event.actions.agent_state is not None]
        kept = [entry for entry in (await user.journal()).entries if isinstance(entry, ActivityKept)]
    assert doubled == [1, 1]
    assert len(shown) == int(resumable)
    assert [entry.name for entry in kept] == ["double", "dawdle", "double"]


async def test_what_it_must_not_yield_or_ask_for_is_told_with_its_line(client: Client, app_name: str) -> None:
    stranger = agent("stranger", [text("no")])

    async def yields(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Any, None]:
        yield "words"

    async def runs(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says(f"{await heard(stranger, ctx)}")

    async def asks(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            await ctx.run_activity(length, "x")
        except EffectFailed as error:
            yield self.says(error.cause)
        await ctx.run_activity(length, "x" * 2_000_000)

    wrong = {yields: "yielded 'str'; yield an Event", runs: "no sub-agent of 'flow'", asks: "is not listed"}
    for number, (code, words) in enumerate(wrong.items()):
        async with serving(client, app_of(f"{app_name}{number}", code)) as user:
            await user.create()
            [failure] = (await user.run("go")).failures
            assert words in failure.cause
            assert code is asks or "test_custom_code.py:" in failure.cause or code is yields
