"""Custom agents of google.adk's: their code runs in steps, their sub-agents by the workflow."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgentState
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.tools import LongRunningFunctionTool
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from pydantic import PrivateAttr
from temporalio.client import Client

from perdure.agents.adk_app import AdkApp
from perdure.journal.entries import EventLogged, RunBegan, TempStateSet
from perdure.plan.nodes import CustomNode
from perdure.steps.code import suspended_code
from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import User, serving

pytestmark = pytest.mark.server

Code = Callable[["Coded", InvocationContext], AsyncGenerator[Event, None]]


class Coded(BaseAgent):
    """A custom agent whose code a test gives it."""

    code: Any

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in self.code(self, ctx):
            yield event

    def says(self, ctx: InvocationContext, words: str, **delta: Any) -> Event:
        content = types.Content(role="model", parts=[types.Part(text=words)])
        return Event(
            author=self.name, invocation_id=ctx.invocation_id, content=content, actions=EventActions(state_delta=delta)
        )


def coded(name: str, code: Code, *sub_agents: BaseAgent, **fields: Any) -> Coded:
    return Coded(name=name, code=code, sub_agents=list(sub_agents), **fields)


async def in_order(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
    for sub_agent in self.sub_agents:
        async for event in sub_agent.run_async(ctx):
            yield event


def asking(name: str = "ask_manager") -> LongRunningFunctionTool:
    def ask() -> None:
        """Ask the manager."""

    ask.__name__ = name
    return LongRunningFunctionTool(func=ask)


async def told(client: Client, app: AdkApp, *messages: str, **state: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the log, and the state, after some messages."""
    async with serving(client, app) as user:
        await user.create(**state)
        for message in messages or ("go",):
            view = await user.run(message)
            assert view.status == "finished", view.failures
        return await user.log(), dict((await user.view()).state)


@pytest.mark.usefixtures("suspended")
async def test_its_code_decides_by_the_state_which_agents_run(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
        yield self.says(ctx, f"tone {ctx.session.state['tone']}", rounds=1)
        while ctx.session.state["tone"] == "sad":
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
        yield self.says(ctx, f"{len(ctx.session.events)} events", rounds=ctx.session.state["rounds"] + 1)

    writer = agent("writer", say("sad"), say("sad"), say("glad"), output_key="tone")
    log, state = await told(client, make_app(app_name, coded("flow", code, writer)))
    assert log == [
        "user: go",
        "writer: sad",
        "flow: tone sad",
        "writer: sad",
        "writer: glad",
        # The user's, three of the writer's, one of its own.
        "flow: 5 events",
    ]
    assert state == {"tone": "glad", "rounds": 2}


@pytest.mark.usefixtures("suspended")
async def test_time_chance_and_any_library_are_there(client: Client, app_name: str, tmp_path: Path) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        began, name = time.time(), str(uuid.uuid4())
        await asyncio.sleep(0.01)
        await asyncio.to_thread((tmp_path / "note").write_text, name)
        yield self.says(ctx, "noted", took=time.time() > began, name=(tmp_path / "note").read_text() == name)
        async for event in in_order(self, ctx):
            yield event

    log, state = await told(client, make_app(app_name, coded("flow", code, agent("last", say("bye")))))
    assert log == ["user: go", "flow: noted", "last: bye"]
    assert state == {"took": True, "name": True}


async def test_its_code_runs_once_where_nothing_is_killed(client: Client, app_name: str) -> None:
    begun: list[str] = []

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        begun.append("top")
        async for event in in_order(self, ctx):
            yield event
        begun.append("end")

    agents = [agent(f"a{number}", say("hi")) for number in range(4)]
    await told(client, make_app(app_name, coded("flow", code, *agents)))
    assert begun == ["top", "end"]


async def test_another_worker_goes_on_with_what_the_journal_has(client: Client, app_name: str) -> None:
    seen: list[Any] = []

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        # Random on purpose: what the log has counts.
        ctx.session.state["loose"] = str(uuid.uuid4())
        yield self.says(ctx, "begun", number=len(seen))
        seen.append((ctx.session.state["number"], len(ctx.session.events)))
        async for event in in_order(self, ctx):
            yield event
        yield self.says(ctx, f"number {ctx.session.state['number']}", loose=ctx.session.state["loose"])

    def app() -> AdkApp:
        clerk = agent("clerk", call("ask_manager"), say("thanks"), tools=[asking()])
        answers = clerk.model.answers if isinstance(clerk.model, Script) else []
        if seen:
            del answers[0]
        return make_app(app_name, coded("flow", code, agent("first", say("hi")), clerk), resumable=True)

    async with serving(client, app()) as user:
        await user.create()
        (asked,) = (await user.run("go")).pending
    async with serving(client, app()) as user:
        view = await user.answered({asked.id: {"ok": True}})
        assert view.status == "finished", view.failures
        log = await user.log()
        state = (await user.view()).state
        journal = await user.journal()
    assert log == [
        "user: go",
        "flow: begun",
        "first: hi",
        "clerk calls ask_manager",
        "user answers ask_manager",
        "clerk: thanks",
        "flow: number 0",
    ]
    # Each time it saw what was there when its run began: the user's event, and its own.
    assert seen == [(0, 2), (0, 2)]
    loose = [entry.delta["loose"] for entry in journal.entries if isinstance(entry, TempStateSet)]
    assert state["loose"] == loose[0], "what the journal had of the first time"


async def test_agents_that_are_gathered_run_at_once(client: Client, app_name: str) -> None:
    running, most, both = 0, 0, asyncio.Event()

    async def busy() -> str:
        """Be busy."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 20)
        running -= 1
        return "done"

    async def collect(one: BaseAgent, ctx: InvocationContext) -> list[Event]:
        return [event async for event in one.run_async(ctx)]

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        branches = [ctx.model_copy(update={"branch": f"{self.name}.{one.name}"}) for one in self.sub_agents]
        for events in await asyncio.gather(*map(collect, self.sub_agents, branches)):
            for event in events:
                yield event
        yield self.says(ctx, f"{ctx.session.state['left']} and {ctx.session.state['right']}")

    doctors = [
        agent(name, call("busy"), say(f"I am {name}"), tools=[busy], output_key=name) for name in ("left", "right")
    ]
    app = make_app(app_name, coded("flow", code, *doctors))
    async with serving(client, app) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        events = await user.events()
        assert (await user.log())[-1] == "flow: I am left and I am right"
    assert most == 2
    assert {event.branch for event in events if event.author == "left"} == {"flow.left"}
    requests = [one.model.requests for one in doctors if isinstance(one.model, Script)]
    assert all("I am" not in str(request) for each in requests for request in each), "neither saw the other"


@pytest.mark.usefixtures("suspended")
async def test_a_failure_that_its_code_catches_is_no_failure(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
        except RuntimeError as error:
            yield self.says(ctx, f"caught: {'no line' in str(error)}")
        async for event in self.sub_agents[1].run_async(ctx):
            yield event

    def pay() -> str:
        """Pay."""
        raise ConnectionError("no line")

    shaky = agent("shaky", call("pay"), tools=[pay])
    log, _ = await told(client, make_app(app_name, coded("flow", code, shaky, agent("sure", say("well")))))
    assert [line for line in log if "shaky" not in line] == ["user: go", "flow: caught: True", "sure: well"]


@pytest.mark.usefixtures("suspended")
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_failure_that_passes_is_tried_again_by_a_resume(
    client: Client, app_name: str, *, wrapped: bool
) -> None:
    ran: list[str] = []

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says(ctx, "begun")
        try:
            async for event in in_order(self, ctx):
                yield event
        except RuntimeError as error:
            if wrapped:
                raise ValueError("not again") from error
            raise

    def pay() -> str:
        """Pay."""
        ran.append("pay")
        if len(ran) == 1:
            raise ConnectionError("no line")
        return "paid"

    shaky = agent("shaky", call("pay"), say("paid"), tools=[pay])
    app = make_app(app_name, coded("flow", code, agent("first", say("hi")), shaky), resumable=True)
    async with serving(client, app) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        (failure,) = failed.failures
        assert ("not again" if wrapped else "no line") in failure.cause
        assert failure.agent == ("flow" if wrapped else "shaky")
        view = await user.resumed(failed.id)
        assert view.status == "finished", view.failures
        log = [line for line in await user.log() if "shaky" not in line or line == "shaky: paid"]
    assert log == ["user: go", "flow: begun", "first: hi", "shaky: paid"]
    assert ran == ["pay", "pay"]


BROKEN: dict[str, tuple[Code, str]] = {}


def _broken(what: str) -> Callable[[Code], Code]:
    def add(code: Code) -> Code:
        BROKEN[code.__name__] = (code, what)
        return code

    return add


@_broken("ValueError: no such case")
async def raises(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
    yield self.says(ctx, "so far")
    raise ValueError("no such case")


@_broken("yielded 'str', where google.adk takes an Event")
async def yields_a_text(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Any, None]:
    yield self.says(ctx, "so far")
    yield "done"


@_broken("the state key 'lock' got what is no JSON")
async def writes_no_json(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
    yield self.says(ctx, "so far")
    yield self.says(ctx, "more", lock=object())


@_broken("the code asked the process to exit")
async def exits(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
    yield self.says(ctx, "so far")
    raise SystemExit(3)


@pytest.mark.parametrize("case", BROKEN)
async def test_code_that_fails_leaves_what_it_said_and_fails_the_turn(case: str, client: Client, app_name: str) -> None:
    code, what = BROKEN[case]
    app = make_app(app_name, SequentialAgent(name="root", sub_agents=[coded("flow", code)]), resumable=True)
    async with serving(client, app) as user:
        await user.create()
        for failed in [await user.run("go") for _ in range(2)]:
            (failure,) = failed.failures
            assert (failed.status, failure.agent, failure.step) == ("failed", "flow", "_run_async_impl")
            assert what in failure.cause
            assert ".py:" not in failure.cause, "ADK's words, and no more"
        log = [line for line in await user.log() if line.startswith("flow")]
        assert log == ["flow: so far"] * 2
        # Entered again, it does not say again what it said.
        (_, last) = (await user.view()).invocations
        assert (await user.resumed(last.id)).status == "failed"
        assert [line for line in await user.log() if line.startswith("flow")] == log


async def test_what_it_escalates_ends_the_loop_around_it(client: Client, app_name: str) -> None:
    async def count(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        done = ctx.session.state.get("done", 0) + 1
        yield Event(author=self.name, actions=EventActions(state_delta={"done": done}, escalate=done == 3 or None))

    people = ParallelAgent(name="people", sub_agents=[coded(name, no_word) for name in ("amy", "ben")])
    loop = LoopAgent(name="loop", sub_agents=[people, coded("counter", count)], max_iterations=9)
    last = agent("last", say("bye"))
    log, state = await told(client, make_app(app_name, SequentialAgent(name="root", sub_agents=[loop, last])))
    assert (log, state) == (["user: go", "last: bye"], {"done": 3})


async def no_word(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
    for event in ():
        yield event


async def test_callbacks_run_around_its_code_once(client: Client, app_name: str) -> None:
    ran: list[str] = []

    def before(callback_context: CallbackContext) -> None:
        ran.append("before")
        callback_context.state["begun"] = True

    def after(callback_context: CallbackContext) -> types.Content:
        ran.append("after")
        return types.Content(role="model", parts=[types.Part(text="over")])

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        ran.append(f"code {ctx.session.state['begun']}")
        async for event in in_order(self, ctx):
            yield event

    flow = coded("flow", code, agent("a", say("hi")), before_agent_callback=before, after_agent_callback=after)
    log, _ = await told(client, make_app(app_name, flow))
    assert (log, ran) == (["user: go", "a: hi", "flow: over"], ["before", "code True", "after"])


async def test_it_ends_the_invocation(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says(ctx, "enough")
        ctx.end_invocation = True

    def after(callback_context: CallbackContext) -> None:
        raise AssertionError("it runs behind an end")

    log, _ = await told(client, make_app(app_name, coded("flow", code, after_agent_callback=after)))
    assert log == ["user: go", "flow: enough"]


class StepState(BaseAgentState):
    step: int = 0


class Steps(BaseAgent):
    """Keeps a checkpoint before each of its sub-agents."""

    _ran: list[int] = PrivateAttr(default_factory=list[int])

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        saved = self._load_agent_state(ctx, StepState)
        for step in range(saved.step if saved is not None else 0, len(self.sub_agents)):
            if saved is None or step != saved.step:
                ctx.set_agent_state(self.name, agent_state=StepState(step=step))
                yield self._create_agent_state_event(ctx)
            self._ran.append(step)
            yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text=f"step {step}")]))
            async for event in self.sub_agents[step].run_async(ctx):
                yield event

    @property
    def ran(self) -> list[int]:
        return self._ran


@pytest.mark.usefixtures("suspended")
async def test_it_goes_on_from_its_checkpoint(client: Client, app_name: str) -> None:
    paid: list[str] = []

    def pay() -> str:
        """Pay."""
        paid.append("paid")
        if len(paid) == 1:
            raise ConnectionError("no line")
        return "paid"

    shaky = agent("shaky", call("pay"), say("paid"), tools=[pay])
    flow = Steps(name="flow", sub_agents=[agent("first", say("hi")), shaky])
    async with serving(client, make_app(app_name, flow, resumable=True)) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        view = await user.resumed(failed.id)
        assert view.status == "finished", view.failures
        log = [line for line in await user.log() if "shaky" not in line]
        states = [event.actions.agent_state for event in await user.events() if event.actions.agent_state is not None]
    assert log == ["user: go", "flow: step 0", "first: hi", "flow: step 1"]
    # From the checkpoint on, not from the top.
    assert flow.ran[-1] == 1
    assert 0 not in flow.ran[flow.ran.index(1) :]
    assert states == [{"step": 0}, {"step": 1}]


@pytest.mark.usefixtures("suspended")
async def test_behind_a_checkpoint_the_same_agents_run_anew(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if self.name not in ctx.agent_states:
            async for event in in_order(self, ctx):
                yield event
            yield Event(author=self.name, actions=EventActions(agent_state={"step": 1}))
        async for event in in_order(self, ctx):
            yield event

    log, _ = await told(client, make_app(app_name, coded("flow", code, agent("x", say("one"), say("two")))))
    assert log == ["user: go", "x: one", "x: two"]


class Holder(BaseAgent):
    """Has agents beside its sub-agents."""

    first: LlmAgent
    others: dict[str, LlmAgent]
    _last: LlmAgent = PrivateAttr()

    def __init__(self, **fields: Any) -> None:
        last = fields.pop("last")
        super().__init__(**fields)
        self._last = last

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        made = agent("made", say("I was made here"))
        for one in (self.first, self.others["second"], self._last, self._last.clone({"name": "copied"}), made):
            async for event in one.run_async(ctx):
                yield event


async def test_agents_that_it_holds_run_in_steps_of_their_own_and_those_it_makes_in_its_own(
    client: Client, app_name: str
) -> None:
    # A copy has its model's script in common with what it is a copy of.
    last = agent("last", say("third"), say("fourth"))
    holder = Holder(
        name="holder", first=agent("first", say("one")), others={"second": agent("second", say("two"))}, last=last
    )
    app = make_app(app_name, holder)
    async with serving(client, app) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert await user.log() == [
            "user: go",
            "first: one",
            "second: two",
            "last: third",
            "copied: fourth",
            "made: I was made here",
        ]
        journal = await user.journal()
    (plan,) = journal.plans.values()
    assert isinstance(plan.root, CustomNode)
    assert [node.name for node in plan.root.sub_agents] == ["first", "second", "last"]
    assert dict(journal.model_calls) == {"first": 1, "second": 1, "last": 1}
    runs = [(entry.event.author, entry.run) for entry in journal.entries if isinstance(entry, EventLogged)]
    assert ("copied", "holder") in runs
    assert ("made", "holder") in runs
    assert ("first", "holder/first") in runs
    assert [entry.run for entry in journal.entries if isinstance(entry, RunBegan)] == [
        "holder",
        "holder/first",
        "holder/second",
        "holder/last",
    ]


class Wrapped(SequentialAgent):
    """A sequence that says something around what it does."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        ctx.session.state["wrapped"] = True
        async for event in super()._run_async_impl(ctx):
            yield event


class Around(BaseAgent):
    """Overrides the run itself."""

    async def run_async(self, parent_context: InvocationContext) -> AsyncGenerator[Event, None]:  # type: ignore[override]
        async for event in super().run_async(parent_context):
            yield event
        yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text="around")]))

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in self.sub_agents[0].run_async(ctx):
            yield event


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_class_of_adks_that_is_overridden_runs_its_own_way(
    client: Client, app_name: str, *, resumable: bool
) -> None:
    below = Wrapped(name="wrapped", sub_agents=[agent("a", say("one")), agent("b", say("two"))])
    app = make_app(app_name, Around(name="around", sub_agents=[below]), resumable=resumable)
    log, _ = await told(client, app)
    assert log == ["user: go", "a: one", "b: two", "around: around"]


async def test_a_tool_runs_a_custom_agent(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        ctx.session.state["seen"] = len(ctx.session.events)
        async for event in in_order(self, ctx):
            yield event
        yield self.says(ctx, f"I saw {ctx.session.state['seen']}")

    clerk = agent("clerk", call("ask_manager"), say("inner"), tools=[asking()])
    flow = coded("flow", code, clerk, agent("last", say("then")))
    outer = agent("outer", call("flow", request="do it"), say("well"), tools=[AgentTool(flow)])
    app = make_app(app_name, outer, resumable=True)
    async with serving(client, app) as user:
        await user.create()
        (asked,) = (await user.run("go")).pending
    outer_again = agent("outer", say("well"), tools=[AgentTool(coded("flow", code, *_again()))])
    async with serving(client, make_app(app_name, outer_again, resumable=True)) as user:
        view = await user.answered({asked.id: {"ok": True}})
        assert view.status == "finished", view.failures
        events = await user.events()
    (response,) = [one.response for event in events for one in event.get_function_responses() if one.name == "flow"]
    assert "I saw 1" in str(response)


def _again() -> list[LlmAgent]:
    return [agent("clerk", say("inner"), tools=[asking()]), agent("last", say("then"))]


@pytest.mark.usefixtures("suspended")
@pytest.mark.parametrize("resumable", [False, True])
async def test_what_its_own_event_asks_is_answered_and_its_code_begins_again(
    client: Client, app_name: str, *, resumable: bool
) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        answers = [one.response for event in ctx.session.events for one in event.get_function_responses()]
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
        yield self.says(ctx, f"{len(answers)} answers")
        if len(answers) < 2:
            asked = types.FunctionCall(id=f"q{len(answers)}", name="ask", args={})
            content = types.Content(role="model", parts=[types.Part(function_call=asked)])
            yield Event(
                author=self.name,
                invocation_id=ctx.invocation_id,
                content=content,
                long_running_tool_ids={asked.id or ""},
            )

    async def count(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        # No model: google.adk 1 makes no request of an answer to another agent's call.
        yield self.says(ctx, f"{len(ctx.session.events)} events")

    app = make_app(app_name, coded("flow", code, coded("x", count)), resumable=resumable)
    async with serving(client, app) as user:
        await user.create()
        view = await user.run("go")
        for number in range(2):
            assert [call.id for call in view.pending] == [f"q{number}"]
            view = await user.answered({f"q{number}": {"ok": True}})
        assert view.status == "finished", view.failures
        assert await user.log() == [
            "user: go",
            *("x: 1 events", "flow: 0 answers", "flow calls ask", "user answers ask"),
            *("x: 5 events", "flow: 1 answers", "flow calls ask", "user answers ask"),
            *("x: 9 events", "flow: 2 answers"),
        ]


async def test_it_appends_to_the_session_itself(client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_code, "_MOST_KEPT", 0)

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        await ctx.session_service.append_event(ctx.session, self.says(ctx, "appended", a=1))
        async for event in in_order(self, ctx):
            yield event
        yield self.says(ctx, f"a is {ctx.session.state['a']}")

    log, _ = await told(client, make_app(app_name, coded("flow", code, agent("x", say("hi")))))
    assert log == ["user: go", "flow: appended", "x: hi", "flow: a is 1"]


async def test_events_of_other_authors_are_its_own(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspended_code, "_MOST_KEPT", 0)

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        event = self.says(ctx, "once upon a time")
        event.author = "narrator"
        yield event
        async for event in in_order(self, ctx):
            yield event

    log, _ = await told(client, make_app(app_name, coded("flow", code, agent("x", say("hi")))))
    assert log == ["user: go", "narrator: once upon a time", "x: hi"]


async def test_it_may_give_up_an_agent_that_takes_too_long(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async with asyncio.timeout(0.2):
                async for event in self.sub_agents[0].run_async(ctx):
                    yield event
        except TimeoutError:
            yield self.says(ctx, "too slow")
        async for event in self.sub_agents[1].run_async(ctx):
            yield event

    async def dawdle() -> str:
        """Take a while."""
        await asyncio.sleep(1)
        return "done"

    slow = agent("slow", call("dawdle"), say("here"), tools=[dawdle])
    log, _ = await told(client, make_app(app_name, coded("flow", code, slow, agent("next", say("well")))))
    assert log == ["user: go", "slow calls dawdle", "flow: too slow", "next: well"]


async def test_agents_without_any_of_their_own_are_no_trap(client: Client, app_name: str) -> None:
    empty = [SequentialAgent(name="none"), LoopAgent(name="never"), ParallelAgent(name="nobody")]
    log, _ = await told(client, make_app(app_name, coded("flow", in_order, *empty, agent("x", say("hi")))))
    assert log == ["user: go", "x: hi"]


async def test_a_second_message_begins_at_the_top(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in in_order(self, ctx):
            yield event
        yield self.says(ctx, f"turn {len([event for event in ctx.session.events if event.author == 'user'])}")

    x = agent("x", say("one"), say("two"))
    log, _ = await told(client, make_app(app_name, coded("flow", code, x)), "go", "again")
    assert log == ["user: go", "x: one", "flow: turn 1", "user: again", "x: two", "flow: turn 2"]


async def test_a_stop_ends_it_where_it_is(client: Client, app_name: str) -> None:
    reached, left = asyncio.Event(), asyncio.Event()

    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield self.says(ctx, "begun")
        reached.set()
        try:
            await asyncio.sleep(30)
        finally:
            left.set()

    app = make_app(app_name, coded("flow", code), resumable=True)
    async with serving(client, app) as user:
        await user.create()
        invocation = await user.send("go")
        await _until(reached)
        await user.stop(invocation)
        await _until(left)
        assert (await user.settled(invocation)).status == "stopped"


async def _until(event: asyncio.Event) -> None:
    # The code runs on a loop of its own.
    deadline = time.monotonic() + 30
    while not event.is_set():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.02)


async def test_users_of_one_app_do_not_meet(client: Client, app_name: str) -> None:
    async def code(self: Coded, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in in_order(self, ctx):
            yield event
        yield self.says(ctx, f"for {ctx.session.user_id}: {ctx.session.state['who']}")

    x = agent("x", *[say("hi")] * 8)
    async with serving(client, make_app(app_name, coded("flow", code, x))) as user:
        users = [user.other(f"u{number}", f"s{number}") for number in range(8)]
        await asyncio.gather(*(_greeted(one) for one in users))


async def _greeted(user: User) -> None:
    name = user.who["user_id"]
    await user.create(who=name)
    assert (await user.run("go")).status == "finished"
    assert (await user.log())[-1] == f"flow: for {name}: {name}"
