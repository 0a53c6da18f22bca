"""Several steps of a google.adk agent in one activity, as whoever serves its app says."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from copy import deepcopy
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import LongRunningFunctionTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types
from temporalio.client import Client

from perdure.activities.kept_steps import KeptSteps
from perdure.agents.adk_app import AdkApp
from perdure.messages.session import CALL_MODEL
from perdure.messages.stretches import Stretch
from tests.adk.support import Script, agent, call, make_app, say
from tests.sessions.test_lifetime import start, terminated, timed_out
from tests.workflows.support import User, responses, serving, short
from tests.workflows.test_resets import points, reset
from tests.workflows.test_stretches import activities, taken_back

pytestmark = pytest.mark.server

BY = (1, 20)
"""Steps that an activity may take: what comes of them is the same."""


async def test_its_log_is_the_same_by_fewer_activities(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def look(tool_context: Any) -> str:
        """Look."""
        ran.append("look")
        return "seen"

    def fails() -> str:
        """Fail."""
        ran.append("fails")
        raise RuntimeError("it broke")

    model = Script(call("look"), call("look"), call("fails"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, fails]))
    async with serving(client, app, steps_per_activity=20) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert ran == ["look", "look", "fails"]
        assert await activities(user) == ["model"]
        assert await user.log() == ["user: go", *(["clerk calls look", "clerk got look"] * 2), "clerk calls fails"]
        assert len(model.requests) == 3


def _two_rounds(ran: list[str]) -> LlmAgent:
    """Return an agent whose first answer calls three tools, and whose second one two of them."""

    def look(tool_context: Any) -> str:
        """Look."""
        ran.append(f"look {tool_context.state.get('seen')}")
        return "looked"

    def write(tool_context: Any) -> str:
        """Write."""
        ran.append("write")
        tool_context.state["seen"] = len(ran)
        return "written"

    async def waits(tool_context: Any) -> str:
        """Wait for something."""
        await asyncio.sleep(0)
        ran.append(f"waits {tool_context.state.get('seen')}")
        return "waited"

    def fails() -> str:
        """Fail."""
        ran.append("fails")
        raise RuntimeError("it broke")

    return LlmAgent(name="clerk", tools=[look, write, waits, fails])


@pytest.mark.parametrize(
    ("first", "second", "ran", "kinds"),
    [
        # All at once in the model's activity; what one has written the next one sees, and the workflow runs it.
        (["look", "look"], ["look"], ["look None"] * 3, ["model"]),
        (["look", "write"], ["look"], ["look None", "write", "look 2"], ["model", "model"]),
        (
            ["write", "look", "look"],
            ["look"],
            ["write", "look 1", "look 1", "look 1"],
            ["model", "look", "look", "model"],
        ),
        (["look", "waits", "look"], ["look"], ["look None", "look None", "waits None", "look None"], None),
        (["look", "fails", "look"], [], ["look None", "fails", "look None"], ["model", "look"]),
    ],
)
async def test_several_calls_of_one_answer_run_as_one_by_one(
    client: Client,
    app_name: str,
    monkeypatch: pytest.MonkeyPatch,
    first: list[str],
    second: list[str],
    ran: list[str],
    kinds: list[str] | None,
) -> None:
    """The log, what tools see of each other, and what runs behind a failure, are those of one step an activity."""
    found: list[tuple[list[str], list[str], str]] = []
    for steps in (1, 20):
        seen: list[str] = []
        clerk = _two_rounds(seen)
        clerk.model = Script(call(*first), call(*second) if second else say("none"), say("done"))
        async with serving(client, make_app(f"{app_name}_{steps}", clerk), steps_per_activity=steps) as user:
            await user.create()
            status = (await user.run("go")).status
            found.append((sorted(seen), await user.log(), status))
            if steps == 20 and kinds is not None:
                assert seen == ran
                assert await activities(user) == kinds
    assert found[0] == found[1]
    assert found[1][0] == sorted(ran)


@pytest.mark.parametrize("why", ["large", "refused"])
async def test_behind_a_call_that_is_not_kept_none_begins(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It would run again if the worker died in the next one; and another attempt may be at work already."""
    keep_for_now = KeptSteps.keep_for_now

    async def refuse(self: KeptSteps, what: Stretch) -> None:
        await keep_for_now(self, what)
        self.ends.set()

    if why == "refused":
        monkeypatch.setattr(KeptSteps, "keep_for_now", refuse)
    ran: list[str] = []

    def look() -> str:
        """Look."""
        ran.append("look")
        return "x" * (150_000 if why == "large" else 10)

    clerk = LlmAgent(name="clerk", model=Script(call("look", "look", "look"), say("done")), tools=[look])
    async with serving(client, make_app(app_name, clerk), steps_per_activity=20) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert ran == ["look"] * 3
        assert await activities(user) == ["model", "look", "look", "model"]


async def test_the_next_worker_goes_on_behind_what_was_kept(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    is_open = threading.Event()

    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    async def slow() -> str:
        """Take long."""
        ran.append("slow")
        while not is_open.is_set():  # noqa: ASYNC110 -- the tools have a loop of their own
            await asyncio.sleep(0.02)
        return "done"

    model = Script(call("look", "look"), call("look"), call("slow"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, slow]))
    async with serving(client, app, steps_per_activity=20) as user:
        await user.create()
        invocation = await user.send("go")
        while "slow" not in ran:  # noqa: ASYNC110 -- the same
            await asyncio.sleep(0.02)
    is_open.set()
    async with serving(client, app, steps_per_activity=20):
        assert (await user.settled(invocation)).status == "finished"
    assert ran == [*["look"] * 3, "slow", "slow"]
    assert len(model.requests) == 4


@pytest.mark.parametrize("end", [terminated, timed_out, taken_back])
async def test_what_history_has_lost_is_done_again_by_the_same_keys(
    client: Client, app_name: str, end: Callable[[User], Awaitable[None]]
) -> None:
    """google.adk names the calls of a model that names none at random."""
    looked: list[str] = []
    begun = threading.Event()
    is_open = threading.Event()

    def look(place: str, tool_context: Any) -> str:
        """Look."""
        looked.append(tool_context.function_call_id)
        return "seen"

    async def slow() -> str:
        """Take long."""
        begun.set()
        while not is_open.is_set():  # noqa: ASYNC110 -- the tools have a loop of their own
            await asyncio.sleep(0.02)
        return "done"

    class ByResponses(Script):
        """Answers equal requests equally."""

        def __init__(self, *answers: list[types.Part]) -> None:
            # For pyright: pydantic's own takes none.
            super().__init__(*answers)

        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            parts = [part for content in llm_request.contents for part in content.parts or []]
            number = sum(part.function_response is not None for part in parts)
            yield LlmResponse(content=types.Content(role="model", parts=deepcopy(self.answers[number])))

    model = ByResponses(call("look", place="Oslo"), call("slow"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, slow]), resumable=True)
    async with serving(client, app, steps_per_activity=20) as user:
        await start(user, end)
        invocation = await user.send("go")
        await asyncio.to_thread(begun.wait)
        await end(user)
        is_open.set()
        if end is not taken_back:
            await user.resume(invocation)
        assert (await user.settled(invocation)).status == "finished"
        assert len(looked) == 2
        assert len(set(looked)) == 1


def _told(request: LlmRequest) -> list[tuple[Any, ...]]:
    """Return what a model was told, without ids."""
    return [_part(part) for content in request.contents for part in content.parts or []]


def _part(part: types.Part) -> tuple[Any, ...]:
    if part.function_call is not None:
        return (part.function_call.name, part.function_call.args)
    if part.function_response is not None:
        return (part.function_response.name, part.function_response.response)
    return (part.text,)


def ask() -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending"}


class Asking(BaseToolset):
    """Brings a tool that a person answers."""

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        return [LongRunningFunctionTool(ask)]

    async def close(self) -> None:
        pass


def _alone(clerk: LlmAgent) -> BaseAgent:
    return clerk


def _in_front(clerk: LlmAgent) -> BaseAgent:
    return SequentialAgent(name="both", sub_agents=[clerk, agent("after", say("it is my turn"), say("so it is"))])


@pytest.mark.parametrize("tool", [lambda: LongRunningFunctionTool(ask), Asking], ids=["of the agent", "of a toolset"])
@pytest.mark.parametrize("before", [[], ["look"]], ids=["first", "behind another"])
@pytest.mark.parametrize("place", [_alone, _in_front])
@pytest.mark.parametrize("resumable", [True, False])
async def test_a_long_running_tool_waits_and_its_answer_ends_the_turn(
    client: Client,
    app_name: str,
    tool: Callable[[], Any],
    before: list[str],
    place: Callable[[LlmAgent], BaseAgent],
    *,
    resumable: bool,
) -> None:
    """Its event says so of its call by the id that this has got; and nothing begins behind it."""

    def look() -> str:
        """Look."""
        return "seen"

    found: list[Any] = []
    for steps in BY:
        model = Script(*map(call, before), call("ask"), say("it is asked"), say("done"))
        clerk = LlmAgent(name="clerk", model=model, tools=[look, tool()])
        app = make_app(f"{app_name}_{steps}", place(clerk), resumable=resumable)
        async with serving(client, app, steps_per_activity=steps) as user:
            await user.create()
            asked = await user.run("go")
            assert [pending.name for pending in asked.pending] == ["ask"]
            assert asked.status == "waiting" or not resumable
            log = await user.log()
            answered = await user.answered({asked.pending[0].id: {"ok": True}})
            assert answered.status == "finished"
            found.append((asked.status, log, await user.log(), [_told(request) for request in model.requests]))
            if steps > 1:
                assert (await activities(user))[:2] == ["model", "ask"]
    assert found[0] == found[1]
    assert ("ask", {"ok": True}) in found[1][-1][-1]


def _looks(*places: int, id: str = "call_0") -> list[types.Part]:
    """Return an answer that calls `look` for each place, by this id."""
    made = [types.FunctionCall(name="look", args={"place": place}, id=id) for place in places]
    return [types.Part(function_call=each) for each in made]


@pytest.mark.parametrize(
    ("turns", "runs", "kinds"),
    [
        ([[_looks(1), _looks(2), say("done")]], [1, 2], ["model"]),
        ([[_looks(1), say("one")], [_looks(2), say("two")]], [1, 2], ["model", "model"]),
        ([[_looks(1, 2), say("done")]], [1, 2], ["model"]),
        ([[_looks(1, id="a"), _looks(2, id="b"), say("done")]], [1, 2], ["model"]),
    ],
    ids=["in two rounds", "in two turns", "twice in one answer", "never"],
)
async def test_a_model_may_name_a_call_as_it_named_another(
    client: Client, app_name: str, turns: list[list[list[types.Part]]], runs: list[int], kinds: list[str]
) -> None:
    ran: list[int] = []

    def look(place: int) -> str:
        """Look."""
        ran.append(place)
        return f"seen {place}"

    found: list[Any] = []
    for steps in BY:
        model = Script(*(deepcopy(answer) for turn in turns for answer in turn))
        app = make_app(f"{app_name}_{steps}", LlmAgent(name="clerk", model=model, tools=[look]))
        async with serving(client, app, steps_per_activity=steps) as user:
            await user.create()
            for _ in turns:
                assert (await user.run("go")).status == "finished"
            events = await user.events()
            told = [_told(request) for request in model.requests]
            found.append((tuple(ran), responses(events, "look"), told))
            ran.clear()
            if steps > 1:
                assert await activities(user) == kinds
    assert found[0] == found[1]
    assert found[1][:2] == (tuple(runs), [{"result": f"seen {place}"} for place in runs])


@pytest.mark.parametrize("steps", BY)
async def test_branches_may_name_their_calls_alike(client: Client, app_name: str, steps: int) -> None:
    """Each runs with its own arguments, and is answered in its own branch."""
    ran: list[int] = []

    def look(place: int) -> str:
        """Look."""
        ran.append(place)
        return f"seen {place}"

    branches = [
        LlmAgent(name=f"branch_{number}", model=Script(_looks(number), _looks(number + 10), say("done")), tools=[look])
        for number in (1, 2)
    ]
    app = make_app(app_name, ParallelAgent(name="both", sub_agents=[*branches]))
    async with serving(client, app, steps_per_activity=steps) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        events = await user.events()
        for number in (1, 2):
            own = [event for event in events if event.author == f"branch_{number}"]
            assert responses(own, "look") == [{"result": f"seen {number}"}, {"result": f"seen {number + 10}"}]
    assert sorted(ran) == [1, 2, 11, 12]


async def _to_its_begin(user: User) -> None:
    """Take the session back to in front of its first step."""
    run_id, found = await points(user)
    history = await user.workflow.fetch_history()
    scheduled = [event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]
    kinds = {event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name for event in scheduled}
    first = next(number for number, kind in kinds.items() if kind == CALL_MODEL)
    await reset(user, run_id, max(point for point in found if point < first))


@pytest.mark.parametrize("steps", BY)
@pytest.mark.parametrize("end", [terminated, _to_its_begin])
async def test_behind_what_was_lost_models_and_tools_are_told_of_what_the_log_has(
    client: Client, app_name: str, end: Callable[[User], Awaitable[None]], steps: int
) -> None:
    """By the worker that took what was lost, too, where the model answers otherwise."""
    seen: dict[str, dict[str, Any]] = {}
    begun = threading.Event()
    is_open = threading.Event()

    def look(place: int, tool_context: Any) -> str:
        """Look."""
        seen[tool_context.function_call_id] = tool_context.state.to_dict()
        tool_context.state[f"seen_{place}"] = place
        return f"seen {place}"

    async def slow() -> str:
        """Take long."""
        begun.set()
        while not is_open.is_set():  # noqa: ASYNC110 -- the tools have a loop of their own
            await asyncio.sleep(0.02)
        return "done"

    before = [call("look", place=1), call("look", place=2), call("slow")]
    model = Script(*before, call("look", place=3), call("look", place=4), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, slow]), resumable=True)
    async with serving(client, app, steps_per_activity=steps) as user:
        await user.create()
        invocation = await user.send("go")
        await asyncio.to_thread(begun.wait)
        await end(user)
        is_open.set()
        if end is terminated:
            await user.resume(invocation)
        assert (await user.settled(invocation)).status == "finished"
        assert model.answers == []
        events = await user.events()
        said = [[_part(part) for part in event.parts] for event in events if event.parts]
        assert _told(model.requests[-1]) == [part for parts in said[:-1] for part in parts]
        state: dict[str, Any] = {}
        for event in events:
            assert all(seen[made.id or ""] == state for made in event.get_function_calls() if made.name == "look")
            state |= event.actions.state_delta
        assert (await user.view()).state == state
        assert {"seen_3", "seen_4"} <= set(state)


async def test_attempts_of_a_tool_that_raises_are_counted_as_by_itself(client: Client, app_name: str) -> None:
    ran: list[str] = []

    def look() -> str:
        """Look."""
        return "seen"

    def fails() -> str:
        """Fail at first."""
        ran.append("fails")
        if len(ran) == 1:
            raise RuntimeError("it broke")
        return "done"

    found: list[Any] = []
    for steps in BY:
        model = Script(call("look"), call("fails"), say("done"))
        clerk = LlmAgent(name="clerk", model=model, tools=[look, fails])
        app = make_app(f"{app_name}_{steps}", clerk, resumable=True)
        async with serving(client, app, steps_per_activity=steps) as user:
            await user.create()
            failed = await user.run("go")
            assert failed.status == "failed"
            once = await _effects(user)
            assert (await user.resumed(failed.id)).status == "finished"
            found.append((once, await _effects(user), len(ran), failed.failures))
            ran.clear()
    assert found[0] == found[1]
    assert found[1][0] == [("look", 1, "done"), ("fails", 1, "failed")]


async def _effects(user: User) -> list[tuple[str, int, str]]:
    return [(effect.tool, effect.attempts, effect.outcome) for effect in await user.runner.effects(**user.who)]


class Priced(Script):
    """Says what its answers cost."""

    def __init__(self, *answers: list[types.Part]) -> None:
        # For pyright: pydantic's own takes none.
        super().__init__(*answers)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=11, candidates_token_count=5, thoughts_token_count=2
        )
        async for response in super().generate_content_async(llm_request, stream):
            yield response.model_copy(update={"usage_metadata": usage})


def _priced(name: str) -> AdkApp:
    def look() -> str:
        """Look."""
        return "seen"

    def fails() -> str:
        """Fail."""
        raise RuntimeError("it broke")

    model = Priced(call("look"), call("look", "look"), call("fails"))
    return make_app(name, LlmAgent(name="clerk", model=model, tools=[look, fails]))


_NO_CLIENT = "the environment of google.adk 1 has no client for what is measured"


@pytest.mark.parametrize("steps", BY)
async def test_each_step_is_counted(temporal_server: str, app_name: str, steps: int) -> None:
    pytest.importorskip("httpx2", reason=_NO_CLIENT)
    from tests.telemetry.test_metrics import scraped

    async with scraped(temporal_server) as metrics:
        async with serving(metrics.client, _priced(app_name), steps_per_activity=steps) as user:
            await user.create()
            assert (await user.run("go")).status == "failed"
            assert (len(await activities(user)) == 1) == (steps > 1)
        assert await metrics.values("perdure_steps_total", app=app_name, agent="clerk") == {
            ("model", "ok", "model"): 3,
            ("tool", "ok", "look"): 3,
            ("tool", "error", "fails"): 1,
        }
        tokens = await metrics.values("perdure_tokens_total", app=app_name, agent="clerk", model="script")
        assert tokens == {("input",): 33, ("output",): 21}
        failures = await metrics.values("perdure_step_failures_total", app=app_name)
        assert failures == {("clerk", "RuntimeError", "fails"): 1}


@pytest.mark.parametrize("steps", BY)
async def test_each_step_has_a_span(temporal_server: str, app_name: str, steps: int) -> None:
    pytest.importorskip("httpx2", reason=_NO_CLIENT)
    from tests.telemetry.test_tracing import traced

    async with (
        traced(temporal_server) as (client, tracing, kept),
        serving(client, _priced(app_name), steps_per_activity=steps) as user,
    ):
        with tracing.tracer.start_as_current_span("message"):
            await user.create()
            assert (await user.run("go")).status == "failed"
        spans = kept.get_finished_spans()
        names = Counter(span.name for span in spans)
        assert names["RunActivity:perdure:model"] == (1 if steps > 1 else 3)
        assert (names["chat script"], names["execute_tool look"], names["execute_tool fails"]) == (3, 3, 1)
        told = [span.attributes or {} for span in spans if span.name == "chat script"]
        assert [(each["gen_ai.agent.name"], each["gen_ai.usage.input_tokens"]) for each in told] == [("clerk", 11)] * 3
        wrong = [(span.attributes or {}).get("error.type") for span in spans if span.name == "execute_tool fails"]
        assert wrong == ["RuntimeError"]


async def test_who_follows_or_looks_sees_what_is_kept_of_steps(client: Client, app_name: str) -> None:
    """As soon as it is kept, before the log has it, under the ids that it has there; each once."""
    begun = threading.Event()
    is_open = threading.Event()

    def look() -> str:
        """Look."""
        return "seen"

    async def slow() -> str:
        """Take long."""
        begun.set()
        while not is_open.is_set():  # noqa: ASYNC110 -- the tools have a loop of their own
            await asyncio.sleep(0.02)
        return "done"

    model = Script(call("look"), call("slow"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, slow]))
    async with serving(client, app, steps_per_activity=20) as user:
        await user.create()
        invocation = await user.send("go")
        follow = user.runner.follow(**user.who, invocation_id=invocation)
        async with asyncio.timeout(20):
            shown = [await anext(follow) for _ in range(3)]
        before = ["clerk calls look", "clerk got look", "clerk calls slow"]
        assert [line for event in shown for line in short(event)] == before
        await asyncio.to_thread(begun.wait)
        assert await user.log() == ["user: go"]
        assert [event.id for event in (await user.view()).kept] == [event.id for event in shown]
        told = await user.runner.explain(**user.who)
        assert (told.event_count, len(told.kept)) == (1, 3)
        is_open.set()
        async with asyncio.timeout(20):
            shown += [event async for event in follow]
        log = [event for event in await user.events() if not event.is_users]
        assert [event.id for event in shown] == [event.id for event in log]
        assert [line for event in log for line in short(event)] == [*before, "clerk got slow", "clerk: done"]
        assert (await user.view()).kept == ()
        assert await activities(user) == ["model"]
