"""Random graphs of google.adk 2: what is drawn of one, and the app that it stands for."""

# google.adk's Event takes more than its fields.
# pyright: reportCallIssue=false

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk import Context, Event, Workflow
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.events.request_input import RequestInput
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.workflow import BaseNode, JoinNode, node
from hypothesis import strategies as st

from perdure.adk.loading import as_adk_app
from perdure.agents.adk_app import AnyApp
from perdure.prove.ledger import Ledger
from perdure.prove.target import use_script
from tests.prove.random_prover import Names

_TEXTS = 12
_ROUNDS = 2


@dataclass(frozen=True)
class GraphSource:
    """Builds a drawn graph's app in a worker process."""

    graph: dict[str, Any]
    modules: Sequence[str] = ("tests.prove.random_graphs",)

    def build(self, app_name: str, ledger: Ledger) -> AnyApp:
        """Return the app."""
        app = as_adk_app(App(name=app_name, root_agent=build(self.graph)), app_name)
        assert app is not None
        use_script(app, scripts(self.graph))
        return app


@st.composite
def graphs(draw: st.DrawFn, names: Names | None = None, depth: int = 2) -> dict[str, Any]:
    """Draw a graph: stages one behind the other."""
    names = names or Names()
    name = names.next("graph")
    stages = [draw(_stage(names, depth)) for _ in range(draw(st.integers(1, 3 if depth > 1 else 2)))]
    return {"kind": "graph", "name": name, "stages": stages}


@st.composite
def _stage(draw: st.DrawFn, names: Names, depth: int) -> dict[str, Any]:
    kinds = ["fan", "route", "loop"] if depth > 1 else []
    kind = draw(st.sampled_from([*kinds, "one", "one"]))
    if kind == "one":
        return draw(_node(names, depth))
    name = names.next(kind)
    if kind == "loop":
        return {"kind": "loop", "name": name, "nodes": [draw(_node(names, depth))]}
    # Functions of one graph have one author, so what they say at once has no order.
    of = _llm(names) if kind == "fan" else _node(names, depth)
    return {"kind": kind, "name": name, "nodes": [draw(of) for _ in range(2)]}


@st.composite
def _node(draw: st.DrawFn, names: Names, depth: int) -> dict[str, Any]:
    kinds = ["function", "quiet", "llm", "llm", "ask", "runs"] + (["graph"] if depth > 1 else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "llm":
        return draw(_llm(names))
    if kind == "graph":
        return draw(graphs(names, depth - 1))
    if kind == "runs":
        return {"kind": "runs", "name": names.next("runs"), "nodes": [draw(_llm(names)), draw(_llm(names))]}
    return {"kind": kind, "name": names.next(kind)}


@st.composite
def _llm(draw: st.DrawFn, names: Names) -> dict[str, Any]:
    calls = draw(st.sampled_from([None, None, "look", "wait", "spend", "consult"]))
    return {"kind": "llm", "name": names.next("llm"), "calls": calls}


def scripts(drawn: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what each agent's model says."""
    found: dict[str, list[dict[str, Any]]] = {}
    for agent in agents_in(drawn):
        name = agent["name"]
        steps: list[dict[str, Any]] = [{"text": f"{name} says {index}"} for index in range(_TEXTS)]
        if agent["calls"] is not None:
            steps.insert(0, {"calls": [{"name": agent["calls"], "args": {}}]})
        found[name] = steps
        if agent["calls"] == "consult":
            found[f"{name}_helper"] = [{"text": f"{name} helped {index}"} for index in range(_TEXTS)]
    return found


def agents_in(drawn: dict[str, Any]) -> Generator[dict[str, Any]]:
    """Yield what is drawn of agents; with `models`, they have these, by their names."""
    if drawn["kind"] == "llm":
        yield drawn
    for below in [*drawn.get("stages", ()), *drawn.get("nodes", ())]:
        yield from agents_in(below)


def build(drawn: dict[str, Any]) -> Any:
    """Return a graph, whose agents have no scripts yet."""
    edges: list[Any] = []
    last: Any = "START"
    for stage in drawn["stages"]:
        last = _STAGES.get(stage["kind"], _one)(stage, last, edges)
    return Workflow(name=drawn["name"], edges=edges)


def _one(stage: dict[str, Any], last: Any, edges: list[Any]) -> Any:
    made = _made(stage)
    edges.append((last, made))
    return made


def _fan(stage: dict[str, Any], last: Any, edges: list[Any]) -> Any:
    name = stage["name"]
    lanes, join = tuple(map(_made, stage["nodes"])), JoinNode(name=f"{name}_join")

    def told(node_input: dict[str, Any]) -> str:
        return ", ".join(f"{key}: {value}" for key, value in sorted(node_input.items()))

    behind = _named(told, f"{name}_told")
    edges.extend([(last, lanes), (lanes, join), (join, behind)])
    return behind


def _route(stage: dict[str, Any], last: Any, edges: list[Any]) -> Any:
    name = stage["name"]

    def choose(node_input: Any) -> Event:
        return Event(output=str(node_input), route="odd" if len(str(node_input)) % 2 else "even")

    def told(node_input: Any) -> str:
        return str(node_input)

    chooser, behind = _named(choose, f"{name}_choose"), _named(told, f"{name}_told")
    odd, even = map(_made, stage["nodes"])
    edges.extend([(last, chooser), (chooser, {"odd": odd, "even": even}), (odd, behind), (even, behind)])
    return behind


def _loop(stage: dict[str, Any], last: Any, edges: list[Any]) -> Any:
    name = stage["name"]

    def count(ctx: Context) -> Event:
        number = ctx.state.get(name, 0) + 1
        return Event(output=f"round {number}", state={name: number}, route="again" if number % _ROUNDS else "out")

    def out() -> str:
        return f"out of {name}"

    counter, behind, again = _named(count, f"{name}_count"), _named(out, f"{name}_out"), _made(stage["nodes"][0])
    edges.extend([(last, counter), (counter, {"again": again, "out": behind}), (again, counter)])
    return behind


_STAGES = {"fan": _fan, "route": _route, "loop": _loop}


class Ask(BaseNode):
    """Asks a person, each time that it runs."""

    rerun_on_resume: bool = True

    async def _run_impl(self, *, ctx: Context, node_input: Any) -> AsyncGenerator[Any, None]:
        question = f"{self.name}_{ctx.run_id}_{ctx.invocation_id}"
        if question in ctx.resume_inputs:
            yield f"told {ctx.resume_inputs[question]}"
            return
        yield RequestInput(interrupt_id=question, message=f"{node_input}?")


def _made(drawn: dict[str, Any]) -> Any:
    kind, name = drawn["kind"], drawn["name"]
    if kind == "graph":
        return build(drawn)
    if kind == "llm":
        return _agent(drawn)
    if kind == "ask":
        return Ask(name=name)
    if kind == "runs":
        first, second = map(_agent, drawn["nodes"])

        async def runs(ctx: Context, node_input: Any) -> str:
            said = await ctx.run_node(first, node_input=str(node_input))
            return f"{name}: {await ctx.run_node(second, node_input=said)}"

        return node(runs, name=name, rerun_on_resume=True)

    def function(ctx: Context, node_input: Any) -> str | None:
        ctx.state[name] = ctx.state.get(name, 0) + 1
        return None if kind == "quiet" else f"{name} of {len(str(node_input)) % 3}"

    return _named(function, name)


def _named(function: Any, name: str) -> Any:
    return node(function, name=name)


def _agent(drawn: dict[str, Any]) -> LlmAgent:
    name, models = drawn["name"], drawn.get("models", {})
    helper_name = f"{name}_helper"
    helper = LlmAgent(name=helper_name, model=models.get(helper_name, "gemini-2.5-flash"))

    def look() -> dict[str, Any]:
        """Look."""
        return {"seen": 1}

    def wait() -> None:
        """Wait."""

    def spend() -> dict[str, Any]:
        """Spend."""
        return {"spent": 5}

    async def consult(tool_context: ToolContext) -> str:
        """Consult the helper."""
        return f"consulted: {await tool_context.run_node(helper, 'help')}"

    tools: dict[str | None, Any] = {
        None: look,
        "look": look,
        "wait": LongRunningFunctionTool(wait),
        "spend": FunctionTool(spend, require_confirmation=True),
        "consult": consult,
    }
    return LlmAgent(name=name, model=models.get(name, "gemini-2.5-flash"), tools=[tools[drawn["calls"]]])
