"""A graph of google.adk 2 to be proved: agents, silent nodes, a loop, a node that runs others, two questions."""

# google.adk's Event takes more than its fields.
# pyright: reportCallIssue=false

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from google.adk import Context, Event, Workflow
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.events.request_input import RequestInput
from google.adk.tools import FunctionTool
from google.adk.workflow import node


def weigh(what: str) -> dict[str, Any]:
    """Weigh something."""
    return {"kilos": len(what)}


def begin(ctx: Context, node_input: str) -> None:
    ctx.state["wish"] = node_input


def quiet() -> None:
    pass


writer = LlmAgent(
    name="writer",
    model="gemini-2.5-flash",
    instruction="Write what is wished: {wish}",
    tools=[FunctionTool(weigh, require_confirmation=True)],
    output_key="draft",
)
helper = LlmAgent(name="helper", model="gemini-2.5-flash", instruction="Check.")


def ask(draft: str) -> Generator[RequestInput]:
    yield RequestInput(interrupt_id=f"send_{len(draft)}", message=f"Send {draft}?")


def decide(node_input: Any) -> Generator[Event]:
    yield Event(state={"said": str(node_input)})
    yield Event(route="send" if node_input == "yes" else "again")


def count(node_input: str) -> int:
    return len(node_input)


@node(rerun_on_resume=True)
async def send(ctx: Context, draft: str) -> str:
    checked = await ctx.run_node(helper, node_input=draft)
    return f"{draft}, {checked}, {await ctx.run_node(count, node_input=checked)}"


graph: Any = Workflow(
    name="letters",
    edges=[("START", begin, quiet, writer, ask, decide), (decide, {"again": writer, "send": send})],
)
app = App(name="letters", root_agent=graph)
