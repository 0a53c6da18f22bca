"""Tools of google.adk 2 that run nodes: each logs what google.adk itself yields, kept between its steps or run anew."""

# google.adk's Event takes more than its fields.
# pyright: reportCallIssue=false

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.runners import InMemoryRunner
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.adk.tools.base_tool import BaseTool
from google.genai import types
from pydantic import BaseModel
from temporalio.client import Client

from perdure.adk.compile import look_at
from perdure.adk.internals import MAJOR
from perdure.journal.events import Event
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import serving

if MAJOR < 2:
    pytest.skip("google.adk 1 has no nodes", allow_module_level=True)

from google.adk import Context, Workflow
from google.adk.events.request_input import RequestInput
from google.adk.workflow import BaseNode, node

pytestmark = pytest.mark.server


class Order(BaseModel):
    what: str


class Ask(BaseNode):
    """Asks a person."""

    rerun_on_resume: bool = True

    async def _run_impl(self, *, ctx: Context, node_input: Any) -> AsyncGenerator[Any, None]:
        if given := ctx.resume_inputs.get("q"):
            yield given
            return
        yield RequestInput(interrupt_id="q", message="Which roof?")


class Office:
    """Has an agent and a function that a tool of its own runs."""

    def __init__(self) -> None:
        self.clerk = agent("clerk", say("filed"))

    async def file(self, what: str, tool_context: ToolContext) -> str:
        """File something."""
        return await self._go(what, tool_context)

    async def _go(self, what: str, context: ToolContext) -> str:
        return await context.run_node(self.clerk, what)


Build = Callable[[list[str]], LlmAgent]


def agents(ran: list[str]) -> LlmAgent:
    def look(what: str) -> str:
        """Look at something."""
        ran.append(f"look {what}")
        return "fine"

    helper = agent("helper", call("look", what="roof"), say("helped"), say("again"), tools=[look])

    async def consult(what: str, tool_context: ToolContext) -> str:
        """Consult the helper."""
        first = await tool_context.run_node(helper, what)
        second = await tool_context.run_node(helper, first)
        tool_context.state["second"] = second
        return f"{first}, {second}"

    return agent("root", call("consult", what="roof"), say("done"), tools=[consult])


def functions(ran: list[str]) -> LlmAgent:
    def double(node_input: str) -> str:
        ran.append(f"double {node_input}")
        return node_input * 2

    async def twice(what: str, tool_context: ToolContext) -> str:
        return await tool_context.run_node(double, await tool_context.run_node(double, what))

    async def shout(what: str, tool_context: ToolContext) -> str:
        """Shout something."""
        return (await twice(what, tool_context)).upper()

    return agent("root", call("shout", what="no"), say("done"), tools=[shout])


def graph(ran: list[str]) -> LlmAgent:
    def first(node_input: Order) -> str:
        ran.append("first")
        return Order.model_validate(node_input).what

    def last(node_input: str) -> str:
        ran.append("last")
        return f"last {node_input}"

    helper = agent("helper", say("helped"))
    roof = Workflow(name="roof", description="Mends.", input_schema=Order, edges=[("START", first, helper, last)])
    return agent("root", call("roof", what="roof"), say("done"), tools=[roof])


def shared(ran: list[str]) -> LlmAgent:
    """Two tools of one answer, which run the same agent, and one that is a function."""
    helper = agent("helper", say("helped"), say("helped"))

    async def left(tool_context: ToolContext) -> str:
        """Left."""
        return f"left {await tool_context.run_node(helper, 'a')}"

    async def right(tool_context: ToolContext) -> str:
        """Right."""
        return f"right {await tool_context.run_node(helper, 'a')}"

    def plain() -> str:
        """Plain."""
        ran.append("plain")
        return "plain"

    return agent("root", call("left", "plain", "right"), say("done"), tools=[left, right, plain])


def nodes(ran: list[str]) -> LlmAgent:
    """A node of a function, which runs an agent."""
    helper = agent("helper", say("helped"))

    @node(name="outer", rerun_on_resume=True)
    async def outer(ctx: Context, node_input: str) -> str:
        return f"outer {await ctx.run_node(helper, node_input=node_input)}"

    async def consult(what: str, tool_context: ToolContext) -> str:
        """Consult."""
        return await tool_context.run_node(outer, what)

    return agent("root", call("consult", what="roof"), say("done"), tools=[consult])


def methods(ran: list[str]) -> LlmAgent:
    """An object's method, which runs an agent of the object's by another one."""
    return agent("root", call("file", what="it"), say("done"), tools=[Office().file])


class Filing(BaseTool):
    """A tool of the app's own class, whose helper is an object that it has."""

    def __init__(self, office: Office) -> None:
        super().__init__(name="filing", description="Files.")
        self.office = office

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name="filing")

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return await self.office.file(args["what"], tool_context)


def objects(ran: list[str]) -> LlmAgent:
    """A tool that has an object that has the agent."""
    return agent("root", call("filing", what="it"), say("done"), tools=[Filing(Office())])


def shown(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what counts of events, and of those of nodes their place, too; not ids, not times."""
    told: list[dict[str, Any]] = []
    for event in json.loads(re.sub(r"@adk-[-0-9a-f]+", "@CALL", json.dumps(events))):
        if event.get("actions", {}).get("endOfAgent"):
            continue
        kept = {key: event[key] for key in ("author", "content", "output", "branch", "errorMessage") if key in event}
        path = str(event.get("nodeInfo", {}).get("path"))
        # Elsewhere than in graphs Perdure's events have none.
        kept |= {"nodeInfo": event["nodeInfo"]} if "/" in path else {}
        for part in kept.get("content", {}).get("parts", []):
            for name in ("functionCall", "functionResponse"):
                part.get(name, {"id": None}).pop("id", None)
        delta = event.get("actions", {}).get("stateDelta")
        told.append(kept | ({"stateDelta": delta} if delta else {}))
    return told


def as_shown(events: list[Event]) -> list[dict[str, Any]]:
    return shown([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in events])


async def by_adk(root: LlmAgent, *parts: types.Part) -> list[dict[str, Any]]:
    runner = InMemoryRunner(app=App(name="shop", root_agent=root))
    await runner.session_service.create_session(app_name="shop", user_id="u", session_id="s")
    for part in parts:
        message = types.Content(role="user", parts=[part])
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
            pass
    kept = await runner.session_service.get_session(app_name="shop", user_id="u", session_id="s")
    assert kept is not None
    return shown([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in kept.events])


@pytest.mark.parametrize(
    "build", [agents, functions, graph, shared, nodes, methods, objects], ids=lambda build: build.__name__
)
@pytest.mark.parametrize("resumable", [False, True])
async def test_a_tool_that_runs_nodes_logs_what_it_does_by_google_adk(
    client: Client, app_name: str, suspended: str, build: Build, resumable: bool
) -> None:
    by_itself: list[str] = []
    truth = await by_adk(build(by_itself), types.Part(text="go"))
    ran: list[str] = []
    async with serving(client, make_app(app_name, build(ran), resumable=resumable)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "finished", view.failures
        assert as_shown(await user.events()) == truth
    assert ran == by_itself, "nothing ran twice"


@pytest.mark.usefixtures("suspended")
@pytest.mark.parametrize("resumable", [False, True])
async def test_a_node_of_a_tool_asks_a_person(client: Client, app_name: str, resumable: bool) -> None:
    def build() -> LlmAgent:
        helper = agent("helper", say("helped"))

        async def ask_user(tool_context: ToolContext) -> str:
            """Ask."""
            first = await tool_context.run_node(helper, "go")
            return f"{first}: {await tool_context.run_node(Ask(name='asker'))}"

        return agent("root", call("ask_user"), say("done"), tools=[ask_user])

    async with serving(client, make_app(app_name, build(), resumable=resumable)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "waiting", view.failures
        (asked,) = view.pending
        assert (asked.name, asked.args["message"]) == ("adk_request_input", "Which roof?")
        (told,) = (await user.runner.explain(**user.who)).invocations
        assert told.resume.step is not None
        assert [(one.agent, one.words) for one in told.resume.step.below] == [
            ("root.ask_user", "the code of tool ask_user goes on; nodes that are done do not run again")
        ]
        done = await user.answered({asked.id: {"result": "the red one"}})
        assert (done.status, done.id) == ("finished", view.id), done.failures
        responses = [one.response for event in await user.events() for one in event.get_function_responses()]
    assert {"result": "helped: the red one"} in responses


@pytest.mark.usefixtures("suspended")
async def test_an_agent_that_a_tool_runs_waits_for_days(client: Client, app_name: str) -> None:
    """google.adk loses what waits there, and the answer."""

    def sign() -> None:
        """Sign."""

    clerk = agent("clerk", call("sign"), say("signed"), tools=[LongRunningFunctionTool(sign)])

    async def file(tool_context: ToolContext) -> str:
        """File it."""
        return f"filed: {await tool_context.run_node(clerk, 'sign it')}"

    root = agent("root", call("file"), say("done"), tools=[file])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "waiting", view.failures
        (asked,) = view.pending
        assert (asked.agent, asked.name) == ("clerk", "sign")
        done = await user.answered({asked.id: {"ok": True}})
        assert done.status == "finished", done.failures
        assert (await user.log())[-2:] == ["clerk: signed", "root: done"] or (await user.log())[-1] == "root: done"


@pytest.mark.usefixtures("suspended")
async def test_a_tool_is_told_what_an_agent_failed_of_and_a_resume_tries_that_again(
    client: Client, app_name: str
) -> None:
    ran: list[str] = []
    broken = agent("broken")

    async def consult(tool_context: ToolContext) -> str:
        """Consult."""
        ran.append("consult")
        return str(await tool_context.run_node(broken, "go"))

    root = agent("root", call("consult"), say("done"), tools=[consult])
    async with serving(client, make_app(app_name, root, resumable=True)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "failed"
        assert "broken" in view.failures[0].cause
        broken.model.answers.append(say("mended"))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        again = await user.resumed(view.id)
        assert again.status == "finished", again.failures
        responses = [one.response for event in await user.events() for one in event.get_function_responses()]
    assert {"result": "mended"} in responses


async def test_a_call_that_nothing_names_fails_before_it_runs_anything(client: Client, app_name: str) -> None:
    ran: list[str] = []

    def look() -> str:
        ran.append("look")
        return "seen"

    async def hidden(tool_context: ToolContext) -> str:
        """Run a node by a name that no code has."""
        return await getattr(tool_context, "_".join(("run", "node")))(look)

    root = agent("root", call("hidden"), say("done"), tools=[hidden])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        view = await user.run("go")
    assert view.status == "failed"
    assert "run_node(look) was called where Perdure did not find" in view.failures[0].cause
    assert "let the tool name the function" in view.failures[0].cause
    assert ran == []


def test_check_says_which_code_may_build_agents_that_it_runs() -> None:
    clerk = agent("clerk", say("filed"))

    async def builds(tool_context: ToolContext) -> str:
        """Build one."""
        return await tool_context.run_node(LlmAgent(name="new"))

    async def names(tool_context: ToolContext) -> str:
        """Name one."""
        return await tool_context.run_node(clerk)

    @node(rerun_on_resume=True)
    async def within(ctx: Context, node_input: str) -> str:
        return await ctx.run_node(LlmAgent(name="new"))

    seen = look_at(make_app("shop", agent("root", tools=[builds, names])))
    assert {part.name: part.verdict for part in seen.parts} == {
        "root": "durable",
        "builds": "coarser",
        "names": "durable",
        "clerk": "durable",
    }
    graph = look_at(make_app("shop", cast(Any, Workflow(name="flow", edges=[("START", within)]))))
    assert [part.verdict for part in graph.parts] == ["durable", "coarser"]
    assert "runs within its step" in (graph.parts[1].reason or "")
