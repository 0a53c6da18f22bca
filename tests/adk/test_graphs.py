"""Graphs of google.adk 2: each logs what google.adk itself yields, kept between its steps or run from its top."""

# google.adk 2 calls its composite agents deprecated; and its Event takes more than its fields.
# pyright: reportDeprecated=false, reportCallIssue=false

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.genai import types
from pydantic import BaseModel
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.adk.loading import as_adk_app
from perdure.agents.adk_app import AdkApp
from perdure.credentials import FileCredentialStore
from perdure.journal.entries import EventLogged, RunBegan
from perdure.journal.open_calls import PendingCall
from perdure.programs.adk_page import add_adk_page
from perdure.steps.code import suspended_code
from perdure.views.forms.answers import answer_form
from perdure.views.forms.declared import example_answer
from tests.adk.support import Script, agent, call, say
from tests.adk.test_credentials import GIVEN_KEY, KEY, KEY_CONFIG, check_no_history_has, user_of
from tests.workflows.support import User, serving

if MAJOR < 2:
    pytest.skip("google.adk 1 has no graphs", allow_module_level=True)

from google.adk import Context, Workflow
from google.adk import Event as GraphEvent
from google.adk.events.request_input import RequestInput
from google.adk.workflow import DEFAULT_ROUTE, BaseNode, JoinNode, RetryConfig, node

pytestmark = pytest.mark.server


class Calls(list[str]):
    """Which nodes ran, in order."""


Build = Callable[[Calls], Workflow]


class Order(BaseModel):
    item: str
    amount: int


class Verdict(BaseModel):
    good: bool


class Decision(BaseModel):
    ok: bool


def chain(calls: Calls) -> Workflow:
    def read(node_input: str) -> Order:
        calls.append("read")
        return Order(item=node_input, amount=len(node_input))

    def note(ctx: Context, node_input: Order) -> None:
        calls.append("note")
        ctx.state["item"] = node_input.item

    def quiet() -> None:
        calls.append("quiet")

    def write(item: str) -> Generator[Any]:
        calls.append("write")
        yield GraphEvent(message=f"one {item}")
        yield GraphEvent(state={"written": item})
        yield f"wrote {item}"

    return Workflow(name="chain", edges=[("START", read, note, quiet, write)])


def routes(calls: Calls) -> Workflow:
    def judge(node_input: str) -> GraphEvent:
        calls.append("judge")
        return GraphEvent(output=node_input, route="long" if len(node_input) > 3 else "short")

    def short(node_input: str) -> str:
        calls.append("short")
        return f"short {node_input}"

    def other(node_input: str) -> str:
        calls.append("other")
        return f"other {node_input}"

    return Workflow(name="routes", edges=[("START", judge), (judge, {"short": short, DEFAULT_ROUTE: other})])


def fan(calls: Calls) -> Workflow:
    def lengths(node_input: str) -> int:
        calls.append("lengths")
        return len(node_input)

    def report(node_input: dict[str, Any]) -> str:
        calls.append("report")
        return ", ".join(f"{key}={value}" for key, value in sorted(node_input.items()))

    one, two = agent("one", say("first")), agent("two", say("second"), output_key="second")
    return Workflow(name="fan", edges=[("START", (one, lengths, two), JoinNode(name="join"), report)])


def dynamic(calls: Calls) -> Workflow:
    guesser = agent("guesser", say("50"), say("75"), say("60"))

    def check(node_input: str) -> str:
        calls.append(f"check {node_input}")
        return "right" if node_input == "60" else f"not {node_input}"

    @node(rerun_on_resume=True)
    async def game(ctx: Context, node_input: str) -> str:
        hint = node_input
        while hint != "right":
            hint = await ctx.run_node(check, node_input=await ctx.run_node(guesser, node_input=hint))
        ctx.state["hint"] = hint
        return "done"

    def end(node_input: str) -> str:
        calls.append("end")
        return node_input * 2

    return Workflow(name="dynamic", edges=[("START", game, end)])


def workers(calls: Calls) -> Workflow:
    def split(node_input: str) -> list[str]:
        calls.append("split")
        return node_input.split()

    @node(parallel_worker=True)
    def shout(node_input: str) -> str:
        calls.append(f"shout {node_input}")
        return node_input.upper()

    inner = Workflow(name="inner", edges=[("START", shout)])
    return Workflow(name="workers", edges=[("START", split, inner)])


def agents(calls: Calls) -> Workflow:
    """An agent with a tool, one with a schema, and one that runs others."""

    def look(what: str) -> str:
        """Look at something."""
        calls.append(f"look {what}")
        return "fine"

    finder = agent("finder", call("look", what="roof"), say("the roof is fine"), tools=[look], output_key="found")
    judge = agent("judge", say('{"good": true}'), output_schema=Verdict, instruction="Judge: {found}")
    both = SequentialAgent(name="both", sub_agents=[agent("third", say("three")), agent("fourth", say("four"))])

    def after(node_input: Verdict) -> str:
        calls.append("after")
        return "good" if Verdict.model_validate(node_input).good else "bad"

    return Workflow(name="agents", edges=[("START", finder, judge, after, both)])


def tools(calls: Calls) -> Workflow:
    def weigh(what: str, tool_context: ToolContext) -> dict[str, Any]:
        """Weigh something."""
        calls.append("weigh")
        tool_context.state["weighed"] = what
        return {"kilos": len(what)}

    class Doubled(BaseNode):
        async def _run_impl(self, *, ctx: Context, node_input: Any) -> AsyncGenerator[Any, None]:
            calls.append("doubled")
            yield {"kilos": node_input["kilos"] * 2}

    return Workflow(name="tools", edges=[("START", FunctionTool(weigh), Doubled(name="doubled"))])


def tried_again(calls: Calls) -> Workflow:
    @node(retry_config=RetryConfig(max_attempts=3, initial_delay=0.01, jitter=0.0))
    def fetch(ctx: Context, node_input: str) -> str:
        calls.append("fetch")
        if ctx.attempt_count < 3:
            raise ConnectionError("not yet")
        return f"{node_input} in attempt {ctx.attempt_count}"

    return Workflow(name="tried_again", edges=[("START", fetch)])


def looping(calls: Calls) -> Workflow:
    def count(ctx: Context) -> GraphEvent:
        calls.append("count")
        number = ctx.state.get("number", 0) + 1
        return GraphEvent(state={"number": number}, route="again" if number < 3 else "out")

    writer = agent("writer", say("one"), say("two"))

    def out(number: int) -> str:
        calls.append("out")
        return f"{number} rounds"

    return Workflow(name="looping", edges=[("START", count), (count, {"again": writer, "out": out}), (writer, count)])


def claimed(calls: Calls) -> Workflow:
    inner = agent("inner", say("said inside"))

    @node(rerun_on_resume=True)
    async def outer(ctx: Context, node_input: str) -> str:
        calls.append("outer")
        return await ctx.run_node(inner, node_input=node_input, use_as_output=True)

    def last(node_input: str) -> str:
        calls.append("last")
        return f"last: {node_input}"

    return Workflow(name="claimed", edges=[("START", outer, last)])


def documented(calls: Calls) -> Workflow:
    """As google.adk's documentation begins with graphs: agents with schemas around a function."""

    def look_up(node_input: str) -> Order:
        calls.append("look_up")
        return Order(item=node_input, amount=10)

    def end(node_input: str) -> GraphEvent:
        calls.append("end")
        return GraphEvent(message=f"{node_input}\nDONE")

    city = agent("city", say('"Oslo"'), output_schema=str)
    report = agent("report", say('"It is ten in Oslo."'), input_schema=Order, output_schema=str)
    return Workflow(name="documented", edges=[("START", city, look_up, report, end)])


class Twice(BaseNode):
    """A node of a class of its own, which runs an agent in a field of it."""

    asked: LlmAgent
    rerun_on_resume: bool = True

    async def _run_impl(self, *, ctx: Context, node_input: Any) -> AsyncGenerator[Any, None]:
        first = await ctx.run_node(self.asked, node_input=node_input)
        yield f"{first}, {await ctx.run_node(self.asked, node_input=first)}"


def held(calls: Calls) -> Workflow:
    def end(node_input: str) -> str:
        calls.append("end")
        return node_input

    return Workflow(
        name="held", edges=[("START", Twice(name="twice", asked=agent("asked", say("one"), say("two"))), end)]
    )


def nested(calls: Calls) -> Workflow:
    """An agent that is a node, and has sub-agents: one that it may hand over to, and one that it calls."""

    def after(node_input: str) -> str:
        calls.append("after")
        return f"after {node_input}"

    helper = agent("helper", say("helped"), mode="single_turn")
    clerk = agent("clerk", call("helper", request="do it"), say("done"), sub_agents=[helper, agent("other")])
    return Workflow(name="nested", edges=[("START", clerk, after)])


GRAPHS: list[Build] = [
    held,
    nested,
    documented,
    chain,
    routes,
    fan,
    dynamic,
    workers,
    agents,
    tools,
    tried_again,
    looping,
    claimed,
]


def app_of(name: str, graph: Workflow, **options: Any) -> AdkApp:
    app = as_adk_app(App(name=name, root_agent=cast(Any, graph), **options), name)
    assert app is not None
    return app


async def by_adk(graph: Workflow, text: str) -> list[dict[str, Any]]:
    runner = InMemoryRunner(app=App(name="shop", root_agent=cast(Any, graph)))
    session = await runner.session_service.create_session(app_name="shop", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text=text)])
    async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        pass
    kept = await runner.session_service.get_session(app_name="shop", user_id="u", session_id="s")
    assert kept is not None
    return shown([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in kept.events[1:]])


_COUNTS = ("author", "content", "output", "branch", "nodeInfo", "errorCode", "errorMessage", "isolationScope")


def shown(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what counts of events: not ids, not times; the order of those on different branches is free."""
    told: list[dict[str, Any]] = []
    # Branches and paths name calls.
    for event in json.loads(re.sub(r"@adk-[-0-9a-f]+", "@CALL", json.dumps(events))):
        kept = {key: value for key, value in event.items() if key in _COUNTS}
        for part in kept.get("content", {}).get("parts", []):
            for name in ("functionCall", "functionResponse"):
                part.get(name, {"id": None}).pop("id", None)
        actions = event.get("actions", {})
        told.append(kept | {name: actions[name] for name in ("stateDelta", "route") if actions.get(name)})
    return sorted(told, key=lambda event: str(event.get("branch")))


async def logged(user: User) -> list[dict[str, Any]]:
    events = await user.events()
    return shown([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in events[1:]])


@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
async def test_a_graph_logs_what_it_does_by_google_adk(
    client: Client, app_name: str, suspended: str, build: Build
) -> None:
    by_itself, calls = Calls(), Calls()
    truth = await by_adk(build(by_itself), "roof top")
    async with serving(client, app_of(app_name, build(calls))) as user:
        await user.create()
        view = await user.run("roof top")
        assert view.status == "finished", view.failures
        assert await logged(user) == truth
    if suspended == "from the top":
        # What is at work beside a node that ends is given up with the graph, and what goes round other nodes runs anew.
        assert {*calls} == {*by_itself}
        calls = Calls(dict.fromkeys(calls))
    if build not in (fan, workers, tried_again, looping):
        assert calls == (by_itself if suspended == "kept" else [*dict.fromkeys(by_itself)])
    else:
        assert suspended != "kept" or sorted(calls) == sorted(by_itself)


@pytest.mark.parametrize("build", [chain, dynamic, tools, agents], ids=lambda build: build.__name__)
async def test_no_node_that_has_ended_runs_again(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, build: Build
) -> None:
    """Nothing is kept: each step runs the graph from its top, and passes over what has ended, silent nodes as well."""
    monkeypatch.setattr(suspended_code, "_MOST_KEPT", 0)
    calls = Calls()
    async with serving(client, app_of(app_name, build(calls))) as user:
        await user.create()
        await user.run("roof top")
    assert len(calls) == len({*calls}), calls


def approval(calls: Calls) -> Workflow:
    def begin() -> None:
        calls.append("begin")

    def draft(node_input: str) -> str:
        calls.append("draft")
        return f"draft of {node_input}"

    def ask(node_input: str) -> Generator[RequestInput]:
        calls.append("ask")
        yield RequestInput(message=f"Send {node_input}?", response_schema=Decision)

    def decide(node_input: Decision) -> str:
        calls.append("decide")
        return "sent" if Decision.model_validate(node_input).ok else "dropped"

    return Workflow(name="approval", edges=[("START", begin), ("START", draft, ask, decide)])


@pytest.mark.parametrize("ok", [True, False])
async def test_a_node_asks_a_person_and_the_graph_goes_on_with_the_answer(
    client: Client, app_name: str, suspended: str, ok: bool
) -> None:
    calls = Calls()
    async with serving(client, app_of(app_name, approval(calls))) as user:
        await user.create()
        view = await user.run("letter")
        (asked,) = view.pending
        assert (view.status, asked.name, asked.agent) == ("waiting", "adk_request_input", "approval")
        assert asked.args["message"] == "Send draft of letter?"
    # Another worker.
    async with serving(client, app_of(app_name, approval(calls))) as user:
        done = await user.answered({asked.id: {"ok": ok}})
        assert (done.status, done.id) == ("finished", view.id)
        assert (await user.events())[-1].output == ("sent" if ok else "dropped")
    # As above: of what is at work side by side, the other is given up with the graph, and runs anew.
    beside = {"begin", "draft"} if suspended == "from the top" else set[str]()
    assert {*calls} == {"ask", "begin", "decide", "draft"}
    assert [calls.count(node) for node in ("ask", "begin", "decide", "draft") if node not in beside] == [1] * (
        4 - len(beside)
    )


async def test_an_agent_waits_for_days_and_what_is_beside_it_goes_on(client: Client, app_name: str) -> None:
    calls = Calls()

    def ask() -> None:
        """Ask."""

    def early(node_input: str) -> str:
        calls.append("early")
        return node_input

    def later(node_input: str) -> str:
        calls.append("later")
        return f"later {node_input}"

    def report(node_input: dict[str, Any]) -> str:
        return f"{node_input['later']}, {node_input['clerk']}"

    clerk = agent("clerk", call("ask"), say("thanks"), say("thanks"), tools=[LongRunningFunctionTool(ask)])
    quick = agent("quick", say("quick"))
    graph = Workflow(
        name="beside",
        edges=[("START", (clerk, early)), (early, quick, later), ((clerk, later), JoinNode(name="join"), report)],
    )
    async with serving(client, app_of(app_name, graph)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "waiting"
        assert calls == ["early", "later"]
        (asked,) = view.pending
        assert (asked.agent, asked.name) == ("clerk", "ask")
        done = await user.answered({asked.id: {"result": "ok"}})
        assert done.status == "finished", done.failures
        assert (await user.events())[-1].output == "later quick, thanks"


async def test_a_graph_that_failed_goes_on_at_the_node_that_failed(client: Client, app_name: str) -> None:
    calls = Calls()

    def first(node_input: str) -> str:
        calls.append("first")
        return node_input

    def second(node_input: str) -> str:
        calls.append("second")
        if len(calls) < 3:
            raise ValueError("no luck")
        return "luck"

    graph = Workflow(name="luck", edges=[("START", first, second)])
    async with serving(client, app_of(app_name, graph)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "failed"
        assert view.failures[0].cause.endswith(": no luck"), "ADK's words, and no more"
        assert (await user.events())[-1].error_message == "no luck"
        again = await user.resumed(view.id)
        assert again.status == "finished", again.failures
        assert (await user.events())[-1].output == "luck"
    assert calls == ["first", "second", "second"]


async def test_an_agent_that_failed_is_asked_again_by_a_resume(client: Client, app_name: str) -> None:
    calls = Calls()

    def first(node_input: str) -> str:
        calls.append("first")
        return node_input

    # It has no answer the first time.
    model = Script()
    broken = LlmAgent(name="broken", model=model)
    graph = Workflow(name="mended", edges=[("START", first, broken)])
    async with serving(client, app_of(app_name, graph)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "failed"
        assert view.failures[0].agent == "broken"
        model.answers.append(say("here I am"))
        again = await user.resumed(view.id)
        assert again.status == "finished", again.failures
        assert (await user.log())[-1] == "broken: here I am"
    assert calls == ["first"]


async def test_what_is_behind_an_agent_goes_on_beside_a_slow_node(client: Client, app_name: str) -> None:
    reached = asyncio.Event()

    async def slow(node_input: str) -> str:
        await asyncio.wait_for(reached.wait(), 30)
        return "slow"

    def reach(node_input: str) -> str:
        reached.set()
        return "reached"

    one = agent("one", say("hi"))
    graph = Workflow(name="beside", edges=[("START", (slow, one)), (one, reach)])
    async with serving(client, app_of(app_name, graph)) as user:
        await user.create()
        view = await user.run("go")
    # Two ends with an output each: as ADK says.
    assert view.status == "failed"
    assert "multiple terminal nodes" in view.failures[0].cause
    assert reached.is_set()


async def test_plugins_see_what_nodes_log(client: Client, app_name: str) -> None:
    seen: list[str] = []

    class Watch(BasePlugin):
        async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
            seen.append(getattr(event, "node_info").path)  # noqa: B009
            return None

    calls = Calls()
    async with serving(client, app_of(app_name, fan(calls), plugins=[Watch(name="watch")])) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
    assert sorted(seen) == sorted(["fan@1/join@1", "fan@1/lengths@1", "fan@1/one@1", "fan@1/report@1", "fan@1/two@1"])


async def test_an_agent_that_a_node_holds_has_steps_of_its_own(client: Client, app_name: str) -> None:
    async with serving(client, app_of(app_name, held(Calls()))) as user:
        await user.create()
        await user.run("go")
        entries = (await user.journal()).entries
    began = [entry.node.path for entry in entries if isinstance(entry, RunBegan) and entry.node is not None]
    assert began == ["held@1/twice@1/asked@1", "held@1/twice@1/asked@2"]


async def test_functions_of_nodes_run_one_after_the_other(client: Client, app_name: str) -> None:
    """Those that are no coroutines, in the order in which google.adk runs them: they may share what they change."""
    done: list[str] = []

    def split(node_input: str) -> list[str]:
        return node_input.split()

    @node(parallel_worker=True)
    def work(node_input: str) -> str:
        time.sleep(0.2 if node_input == "slow" else 0)
        done.append(node_input)
        return node_input

    async with serving(client, app_of(app_name, Workflow(name="workers", edges=[("START", split, work)]))) as user:
        await user.create()
        assert (await user.run("slow quick quicker")).status == "finished"
    assert done == ["slow", "quick", "quicker"]


async def test_an_event_tells_of_a_silent_node_that_only_the_graph_reads(client: Client, app_name: str) -> None:
    async with serving(client, app_of(app_name, chain(Calls()))) as user:
        await user.create()
        await user.run("roof")
        hidden = [
            (entry.event.node_info or {}).get("path")
            for entry in (await user.journal()).entries
            if isinstance(entry, EventLogged) and entry.hidden and not entry.event.actions.end_of_agent
        ]
    assert hidden == ["chain@1/note@1", "chain@1/quiet@1"]


# google.adk warns of a node as it describes it, and leaves the graph out if that is an error.
@pytest.mark.filterwarnings("default")
async def test_google_adks_page_gets_a_picture_of_each_graph(app_name: str) -> None:
    api = FastAPI()
    add_adk_page(api, [app_of(app_name, workers(Calls()))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as asks:
        pictures: dict[str, Any] = (await asks.get(f"/dev/apps/{app_name}/build_graph_image")).json()
    assert sorted(pictures) == ["", "inner"]
    assert "split" in pictures[""]["dotSrc"]
    assert "shout" in pictures["inner"]["dotSrc"]


async def test_where_an_invocation_stands_in_its_graph_is_told(client: Client, app_name: str) -> None:
    async with serving(client, app_of(app_name, approval(Calls()))) as user:
        await user.create()
        await user.run("letter")
        (told,) = (await user.runner.explain(**user.who)).invocations
    assert told.resume.step is not None
    assert [(one.path, one.standing, one.runs, one.leads_to, one.first) for one in told.resume.step.graph] == [
        ("begin", "done", 1, (), True),
        ("draft", "done", 1, ("ask",), True),
        ("ask", "waits", 1, ("decide",), False),
        ("decide", "not reached", 0, (), False),
    ]
    (awaited,) = told.awaits
    assert awaited.example == {"ok": True}


@pytest.mark.parametrize(
    ("schema", "example", "takes"),
    [
        (None, {"result": "…"}, "fields"),
        ({"type": "integer"}, {"result": 1}, "fields"),
        ({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, {"a": "…"}, "fields"),
        ({"type": "object", "properties": "x", "required": 3}, {}, "json"),
        ({"type": ["x"]}, {"result": "…"}, "json"),
    ],
)
def test_an_example_answers_what_a_node_asks(schema: Any, example: dict[str, Any], takes: str) -> None:
    args = {"message": "?", "response_schema": schema}
    pending = PendingCall(id="c", name="adk_request_input", args=args, agent="g", invocation_id="i", since=0.0)
    assert example_answer(pending) == example
    form = answer_form(pending, None)
    assert form.hint == "?"
    assert form.takes == takes


async def test_a_node_asks_for_a_credential_that_no_history_has(client: Client, app_name: str, tmp_path: Path) -> None:
    store = FileCredentialStore(tmp_path)

    @node(auth_config=KEY_CONFIG, rerun_on_resume=True)
    def fetch(ctx: Context) -> dict[str, Any]:
        given = ctx.get_auth_response(KEY_CONFIG)
        return {"right": given is not None and given.api_key == KEY}

    graph = Workflow(name="mail", edges=[("START", fetch)])
    async with serving(client, app_of(app_name, graph), credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        (asked,) = (await user.run("go")).pending
        assert (asked.name, asked.agent) == ("adk_request_credential", "mail")
        done = await user.answered({asked.id: GIVEN_KEY})
        assert done.status == "finished", done.failures
        assert (await user.events())[-1].output == {"right": True}
        await check_no_history_has(user, KEY)


async def test_a_node_takes_an_api_key_alone(client: Client, app_name: str, tmp_path: Path) -> None:
    """google.adk takes it under `result`; it is as secret as a whole credential."""
    store = FileCredentialStore(tmp_path)
    raw = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="placeholder")
    config = KEY_CONFIG.model_copy(update={"raw_auth_credential": raw})

    @node(auth_config=config, rerun_on_resume=True)
    def fetch(ctx: Context) -> dict[str, Any]:
        given = ctx.get_auth_response(config)
        return {"right": given is not None and given.api_key == KEY}

    app = app_of(app_name, Workflow(name="mail", edges=[("START", fetch)]))
    async with serving(client, app, credentials=store):
        user = user_of(client, app_name, store)
        await user.create()
        (asked,) = (await user.run("go")).pending
        done = await user.answered({asked.id: KEY})
        assert done.status == "finished", done.failures
        assert (await user.events())[-1].output == {"right": True}
        await check_no_history_has(user, KEY)


@pytest.mark.usefixtures("suspended")
async def test_a_node_is_confirmed_in_each_turn_anew(client: Client, app_name: str) -> None:
    """google.adk names its questions by the node, so the second has the first one's interrupt id."""
    calls = Calls()

    @node(require_confirmation=True)
    def charge(node_input: str) -> str:
        calls.append(node_input)
        return f"charged {node_input}"

    async with serving(client, app_of(app_name, Workflow(name="till", edges=[("START", charge)]))) as user:
        await user.create()
        for text, ok in (("one", True), ("two", False), ("three", True)):
            view = await user.run(text)
            assert view.status == "waiting", view.failures
            (asked,) = view.pending
            done = await user.answered({asked.id: {"confirmed": ok}})
            assert (done.status, done.pending) == ("finished", ()), done.failures
        outputs = [event.output async for event in user.runner.events(**user.who) if event.output is not None]
    assert calls == ["one", "three"]
    assert outputs == ["charged one", {"error": "This tool call is rejected."}, "charged three"]


@pytest.mark.usefixtures("suspended")
async def test_a_resumable_app_logs_outputs_again_behind_an_answer_as_google_adk_does(
    client: Client, app_name: str
) -> None:
    """And no checkpoints of its own."""
    resumable = ResumabilityConfig(is_resumable=True)

    def build(calls: Calls) -> Workflow:
        first = agent("first", say("a letter"))

        def ask(node_input: str) -> Generator[RequestInput]:
            calls.append("ask")
            yield RequestInput(interrupt_id="send", message=f"Send {node_input}?")

        def decide(node_input: str) -> str:
            calls.append("decide")
            return f"said {node_input}"

        return Workflow(name="letters", edges=[("START", first, ask, decide)])

    runner = InMemoryRunner(app=App(name="shop", root_agent=cast(Any, build(Calls())), resumability_config=resumable))
    await runner.session_service.create_session(app_name="shop", user_id="u", session_id="s")
    answer = types.FunctionResponse(id="send", name="adk_request_input", response={"result": "yes"})
    truth: list[dict[str, Any]] = []
    for part in (types.Part(text="go"), types.Part(function_response=answer)):
        message = types.Content(role="user", parts=[part])
        async for event in runner.run_async(user_id="u", session_id="s", new_message=message):
            if event.actions.agent_state is None and not event.actions.end_of_agent:
                truth.append(event.model_dump(mode="json", by_alias=True, exclude_none=True))
    calls = Calls()
    async with serving(client, app_of(app_name, build(calls), resumability_config=resumable)) as user:
        await user.create()
        (asked,) = (await user.run("go")).pending
        done = await user.answered({asked.id: {"result": "yes"}})
        assert done.status == "finished", done.failures
        events = [event for event in await user.events() if event.author != "user" and not event.actions.end_of_agent]
        assert shown([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in events]) == shown(
            truth
        )
    assert calls == ["ask", "decide"]


async def test_a_node_that_is_a_sequence_is_done_with_its_last_agent(client: Client, app_name: str) -> None:
    def ask() -> None:
        """Ask."""

    last = agent("last", call("ask"), say("bye"), tools=[LongRunningFunctionTool(ask)])
    both = SequentialAgent(name="both", sub_agents=[agent("first", say("hi")), last])
    other = SequentialAgent(name="other", sub_agents=[agent("third", say("three"))])
    async with serving(client, app_of(app_name, Workflow(name="two", edges=[("START", (both, other))]))) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "waiting", view.failures
        (told,) = (await user.runner.explain(**user.who)).invocations
    assert told.resume.step is not None
    assert [(one.path, one.standing) for one in told.resume.step.graph] == [("both", "waits"), ("other", "done")]


@pytest.mark.usefixtures("suspended")
async def test_a_node_hands_over_to_its_sub_agent_which_speaks_for_it(client: Client, app_name: str) -> None:
    """google.adk runs that agent once more behind the node, and gives what comes next no output."""

    def ask() -> None:
        """Ask."""

    expert = agent("expert", call("ask"), say("expertly"), tools=[LongRunningFunctionTool(ask)])
    clerk = agent("clerk", call("transfer_to_agent", agent_name="expert"), sub_agents=[expert])
    graph = Workflow(name="handing", edges=[("START", clerk, follow)])
    async with serving(client, app_of(app_name, graph)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "waiting", view.failures
        (asked,) = view.pending
        done = await user.answered({asked.id: {"result": "ok"}})
        assert done.status == "finished", done.failures
        events = await user.events()
    assert events[-1].output == "after expertly"
    spoken = [event for event in events if event.author == "expert" and event.text]
    assert [(event.text, (event.node_info or {}).get("path")) for event in spoken] == [
        ("expertly", "handing@1/clerk@1")
    ]


def follow(node_input: str) -> str:
    return f"after {node_input}"
