"""The fixture `perdure` with google.adk's agents: scripts in place of their models, and no line of theirs changed."""

# ADK 2 marks its agents that run others as deprecated.
# pyright: reportDeprecated=false

from __future__ import annotations

from pathlib import Path

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool

from perdure import InvocationFailed
from perdure.testing import Perdure, assert_calls, call, say

pytestmark = pytest.mark.server


def weigh(item: str) -> dict[str, int]:
    """Weigh an item."""
    return {"grams": len(item)}


def approve(item: str) -> None:
    """Ask a person."""


def depot() -> tuple[App, LlmAgent]:
    scales = LlmAgent(name="scales", model="gemini-2.5-flash", description="Weighs.", tools=[weigh])
    packer = LlmAgent(name="packer", model="gemini-2.5-flash", tools=[AgentTool(scales)], output_key="packed")
    boss = LlmAgent(name="boss", model="gemini-2.5-pro", tools=[LongRunningFunctionTool(approve)])
    root = SequentialAgent(name="depot", sub_agents=[packer, boss])
    return App(name="depot", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=True)), boss


async def test_agents_of_google_adk_answer_by_scripts_those_of_tools_too(perdure: Perdure) -> None:
    app, boss = depot()
    talk = await perdure.start(
        app,
        models={
            "packer": [call("scales", request="How heavy is tea?"), say("Packed: 3 g.")],
            "scales": [call("weigh", item="tea"), say("3 g")],
            "boss": [call("approve", item="tea"), say("Sent.")],
        },
    )
    turn = await talk.send("tea, please")
    assert_calls(turn, [("scales", {"request": "How heavy is tea?"}), ("approve", {"item": "tea"})])
    assert (turn.status, (await talk.state())["packed"]) == ("waiting", "Packed: 3 g.")
    assert talk.prompts("scales")[-1].text.splitlines()[-1] == 'weigh returned {"grams": 3}'
    await talk.restart_worker()
    turn = await talk.respond({"approve": {"ok": True}})
    assert turn.text == "Sent."
    perdure.close()
    assert boss.model == "gemini-2.5-pro"


async def test_a_model_without_a_script_is_not_asked_and_a_folder_is_served(perdure: Perdure, tmp_path: Path) -> None:
    folder = tmp_path / "greeter_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text(
        "from google.adk.agents import LlmAgent\n"
        'root_agent = LlmAgent(name="greeter", model="gemini-2.5-flash", instruction="Greet.")\n'
    )
    talk = await perdure.start(folder, models={"greeter": [say("Hello.")]})
    assert (await talk.send("Hi.")).text == "Hello."
    assert "Greet." in talk.prompts("greeter")[0].instruction
    perdure.close()
    talk = await perdure.start(str(folder))
    with pytest.raises(InvocationFailed, match=r"agent 'greeter' asks .*, and the test has no script"):
        await talk.send("Hi.")
