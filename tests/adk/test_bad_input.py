"""What google.adk's apps do wrong, or what is down around them: a clear error, and the session goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools import FunctionTool, ToolContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.mcp_tool.mcp_session_manager import StdioConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from mcp import StdioServerParameters
from temporalio.client import Client

from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import serving

pytestmark = pytest.mark.server


def look_up(city: str) -> str:
    """Look the weather up."""
    return f"rain in {city}"


class Shelf(BaseToolset):
    """A toolset that does not answer at first."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.asked = 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        self.asked += 1
        if self.asked <= self.refusals:
            raise ConnectionError("connection refused")
        return [FunctionTool(look_up)]

    async def close(self) -> None:
        pass


async def test_a_toolset_that_is_down_for_a_moment_is_asked_again(client: Client, app_name: str) -> None:
    shelf = Shelf(refusals=2)
    clerk = agent("clerk", call("look_up", city="Oslo"), say("rain"), tools=[shelf])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("hi")).status == "finished"
        assert (await user.log())[-1] == "clerk: rain"
    assert isinstance(clerk.model, Script)
    assert len(clerk.model.requests) == 2


async def test_a_toolset_that_stays_down_fails_the_turn_by_name_and_a_resume_asks_it_again(
    client: Client, app_name: str
) -> None:
    shelf = Shelf(refusals=1000)
    clerk = agent("clerk", say("hello"), tools=[shelf])
    async with serving(client, make_app(app_name, clerk, resumable=True)) as user:
        await user.create()
        failed = await user.run("hi")
        assert failed.status == "failed"
        [failure] = failed.failures
        for words in ("agent 'clerk'", "toolset Shelf", "ConnectionError: connection refused", "resume"):
            assert words in failure.cause
        shelf.refusals = 0
        assert (await user.resumed(failed.id)).status == "finished"
        assert (await user.log())[-2:] == ["user: hi", "clerk: hello"]


SERVER = '''
import sys
from pathlib import Path

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("shaky")
died = Path(sys.argv[1])


@server.tool()
def weigh(parcel: str) -> str:
    """Weigh a parcel."""
    if not died.exists():
        died.touch()
        os._exit(1)
    return f"{parcel} weighs 2 kg"


server.run()
'''


async def test_an_mcp_server_that_dies_in_a_call_is_told_of_and_started_again_for_the_next(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    params = StdioServerParameters(command=sys.executable, args=[str(script), str(tmp_path / "died")])
    scale = McpToolset(connection_params=StdioConnectionParams(server_params=params, timeout=30))
    clerk = agent("clerk", call("weigh", parcel="p1"), call("weigh", parcel="p2"), say("weighed"), tools=[scale])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        # ADK tells the model of it.
        assert (await user.run("hi")).status == "finished"
        first, second = [
            event.get_function_responses()[0] for event in (await user.events()) if event.get_function_responses()
        ]
        assert "error" in str(first.response).lower()
        assert "p2 weighs 2 kg" in str(second.response)


class Thing:
    """No JSON."""


def answers_with_a_number(callback_context: CallbackContext) -> Any:
    return 42


def before_model(callback_context: CallbackContext, llm_request: Any) -> Any:
    return "no response"


def after_model(callback_context: CallbackContext, llm_response: Any) -> Any:
    return {"text": "no response"}


def writes_a_thing(callback_context: CallbackContext) -> None:
    callback_context.state["thing"] = Thing()


NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "before_agent": (
        {"before_agent_callback": answers_with_a_number},
        "before_agent_callback 'answers_with_a_number' of agent 'clerk' returned a int, where google.adk takes Content",
    ),
    "after_agent": (
        {"after_agent_callback": answers_with_a_number},
        "after_agent_callback 'answers_with_a_number' of agent 'clerk' returned a int, where google.adk takes Content",
    ),
    "before_model": (
        {"before_model_callback": [before_model]},
        "before_model_callback 'before_model' of agent 'clerk' returned a str, where google.adk takes LlmResponse",
    ),
    "after_model": (
        {"after_model_callback": after_model},
        "after_model_callback 'after_model' of agent 'clerk' returned a dict, where google.adk takes LlmResponse",
    ),
    "state": (
        {"before_agent_callback": writes_a_thing},
        "the state key 'thing' got what is no JSON: it is an object of type Thing",
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
async def test_nonsense_of_a_callback_fails_the_turn_by_name_and_the_session_goes_on(
    client: Client, app_name: str, case: str
) -> None:
    callbacks, words = NONSENSE[case]
    clerk = agent("clerk", *[say("done")] * 3, **callbacks)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("hi")
        assert failed.status == "failed"
        [failure] = failed.failures
        assert words in failure.cause
        for callback in callbacks:
            setattr(clerk, callback, None)
        assert (await user.run("again")).status == "finished"
        assert (await user.log())[-1] == "clerk: done"


def before_tool(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
    return {"thing": Thing()}


def returns_a_thing(city: str, tool_context: ToolContext) -> Any:
    """Return what is no JSON."""
    tool_context.state["city"] = city
    return {"thing": Thing()}


def keeps_a_thing(city: str, tool_context: ToolContext) -> str:
    """Write what is no JSON into the state."""
    tool_context.state["city"] = city
    tool_context.state["thing"] = Thing()
    return "found"


def keeps_a_thing_past_the_delta(city: str, tool_context: ToolContext) -> str:
    """Write what is no JSON into the session's state."""
    tool_context.state["city"] = city
    tool_context.session.state["thing"] = Thing()
    return "found"


def returns_much(city: str, tool_context: ToolContext) -> str:
    """Return what no log takes whole."""
    tool_context.state["city"] = city
    return city * 1_000_000


CANNOT_BE_PASSED_ON = (
    "has run to its end, but its result cannot be passed on: at ['thing'] it is an object of type Thing"
)
NO_STATE = "has run, but nothing of what it wrote into the state was kept: the state key 'thing' got what is no JSON"

UNKEPT: dict[str, tuple[dict[str, Any], str, bool]] = {
    "before_tool": ({"before_tool_callback": before_tool, "tools": [look_up]}, CANNOT_BE_PASSED_ON, False),
    "result": ({"tools": [returns_a_thing]}, CANNOT_BE_PASSED_ON, True),
    "state": ({"tools": [keeps_a_thing]}, NO_STATE, False),
    "past the delta": ({"tools": [keeps_a_thing_past_the_delta]}, NO_STATE, True),
    "size": ({"tools": [returns_much]}, "which is too large to be shown whole", True),
}
"""By case: an agent's options, what its model is told, and whether what the tool wrote into the state is kept."""


@pytest.mark.parametrize("case", UNKEPT)
async def test_what_cannot_be_kept_of_a_tool_is_told_to_the_model_and_the_tool_does_not_run_again(
    client: Client, app_name: str, case: str
) -> None:
    options, words, keeps = UNKEPT[case]
    clerk = agent("clerk", call(options["tools"][0].__name__, city="Oslo"), say("done"), **options)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        view = await user.run("hi")
        assert (view.status, view.failures) == ("finished", ())
        assert (await user.log())[-1] == "clerk: done"
        assert (await user.view()).state == ({"city": "Oslo"} if keeps else {})
    assert isinstance(clerk.model, Script)
    assert len(clerk.model.requests) == 2
    assert words in clerk.model.requests[1].model_dump_json(), clerk.model.requests[1].contents[-1]


async def test_results_that_are_too_large_together_are_shortened(client: Client, app_name: str) -> None:
    clerk = agent("clerk", call(*["returns_much"] * 3, city="O"), say("done"), tools=[returns_much])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("hi")).status == "finished"
        [event] = [event for event in await user.events() if event.get_function_responses()]
        told = [response.response or {} for response in event.get_function_responses()]
    assert len(told) == 3
    assert any("too large to be shown whole" in str(response.get("note")) for response in told)
