"""`perdure prove` takes google.adk's apps: scripts in place of their models, every request looked at, every cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.genai import types
from temporalio.client import Client

from perdure.adk import internals
from perdure.adk.loading import as_adk_app
from perdure.adk.models import ModelStep, OwnLlm, model_step
from perdure.agents.adk_app import AdkApp
from perdure.errors import DefinitionError
from perdure.models.scripted import ScriptedModel
from perdure.prove.ledger import Ledger
from perdure.prove.modes import Mode
from perdure.prove.proof import ALL_MODES, ProofConfig, proof_server, prove
from perdure.prove.target import target_of, unscripted, use_script
from perdure.prove.watched_models import refused_requests, watch_models
from tests.adk import proved_shop
from tests.adk.oracle.check import APPS

ORDER: dict[str, Any] = {
    "name": "order",
    "script": {
        "clerk": [
            {"calls": [{"name": "stock", "args": {"item": "tea"}}, {"name": "approve", "args": {"item": "tea"}}]},
            {"text": "I wait."},
            {"calls": [{"name": "transfer_to_agent", "args": {"agent_name": "packer"}}]},
        ],
        "packer": [{"calls": [{"name": "pack", "args": {"item": "tea"}}]}, {"text": "Packed."}],
    },
    "turns": [{"message": "tea, please"}, {"respond": [{"call": "approve", "response": {"ok": True}}]}],
}


@pytest.fixture(scope="module")
async def proof_client() -> AsyncGenerator[Client]:
    async with proof_server() as client:
        yield client


def order() -> dict[str, Any]:
    """Return the scenario, whose clerk says that it waits only where ADK asks it once more: since 2.0."""
    if internals.MAJOR < 2:
        return ORDER | {"script": ORDER["script"] | {"clerk": ORDER["script"]["clerk"][::2]}}
    return ORDER


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "steps"), [*((mode, 1) for mode in ALL_MODES), ("kill", 20)])
async def test_an_app_can_be_cut_anywhere(mode: Mode, steps: int, proof_client: Client) -> None:
    config = ProofConfig(at_once=4, most_cuts=9, steps_per_activity=steps)
    report = await prove(proved_shop.app, order(), [mode], client=proof_client, config=config)
    assert report.ok, str(report)
    assert len(report.verdicts[0].cuts) > 4


LETTERS: dict[str, Any] = {
    "script": {
        "writer": [
            {"calls": [{"name": "weigh", "args": {"what": "a letter"}}]},
            {"text": "A letter."},
            {"text": "A letter, anew."},
        ],
        "helper": [{"text": "Fine."}],
    },
    "turns": [
        {"message": "a letter"},
        {"respond": [{"call": "adk_request_confirmation", "response": {"confirmed": True}}]},
        {"respond": [{"call": "adk_request_input", "occurrence": 1, "response": {"result": "no"}}]},
        {"respond": [{"call": "adk_request_input", "occurrence": 2, "response": {"result": "yes"}}]},
    ],
}


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.skipif(internals.MAJOR < 2, reason="google.adk 1 has no graphs")
@pytest.mark.parametrize("mode", ALL_MODES)
async def test_a_graph_can_be_cut_anywhere(mode: Mode, proof_client: Client) -> None:
    from tests.adk import proved_graph

    report = await prove(
        proved_graph.app, LETTERS, [mode], client=proof_client, config=ProofConfig(at_once=4, most_cuts=16)
    )
    assert report.ok, str(report)


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.skipif(internals.MAJOR < 2, reason="google.adk 1 has no graphs")
async def test_a_graph_whose_node_fails_is_cut_elsewhere(proof_client: Client) -> None:
    """In google.adk, too, the attempts of a node begin anew where an invocation goes on."""
    from tests.adk import proved_retries

    turns = [{"message": "later"}, {"message": "never"}, {"message": "at once"}]
    report = await prove(proved_retries.app, {"turns": turns}, ["prefix"], client=proof_client)
    assert report.ok, str(report)
    assert "a node of a graph has failed" in str(report)


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.skipif(internals.MAJOR < 2, reason="google.adk 1 has no agents with a mode")
@pytest.mark.parametrize("mode", ALL_MODES)
async def test_tasks_of_agents_can_be_cut_anywhere(mode: Mode, proof_client: Client) -> None:
    from tests.adk import proved_tasks

    config = ProofConfig(at_once=4, most_cuts=8)
    report = await prove(proved_tasks.app, proved_tasks.SCENARIO, [mode], client=proof_client, config=config)
    assert report.ok, str(report)


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
async def test_callbacks_and_own_model_objects_can_be_cut_anywhere(proof_client: Client) -> None:
    """Each callback of the app counts in the state; its models answer by what they are asked."""
    turns = [{"message": "You idiot!"}, {"message": "Read the ticket and be done with it"}]
    config = ProofConfig(at_once=4, most_cuts=8)
    report = await prove(str(APPS / "guarded_support"), {"turns": turns}, client=proof_client, config=config)
    assert report.ok, str(report)


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_command_says_nothing_of_google_adks_own(tmp_path: Path) -> None:
    """What google.adk logs and warns of in each of many worker processes is nobody's concern."""
    scenario = tmp_path / "order.json"
    scenario.write_text('{"turns": [{"message": "Do I need milk?"}]}')
    command = [sys.executable, "-m", "perdure", "prove", str(APPS / "files_mcp"), "--scenario", str(scenario)]
    done = subprocess.run([*command, "--mode", "replay"], capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout.startswith("ok order (replay, "), done.stdout + done.stderr
    assert "mismatch" not in done.stderr


def own_shop() -> tuple[AdkApp, LlmAgent, LlmAgent]:
    """Return the shop of this test alone."""
    packer = LlmAgent(name="packer")
    clerk = LlmAgent(name="clerk", model="gemini-2.5-flash", sub_agents=[packer])
    app = as_adk_app(clerk, "shop")
    assert app is not None
    return app, clerk, packer


def test_an_agent_without_a_script_keeps_its_model_and_is_told() -> None:
    app, clerk, packer = own_shop()
    assert unscripted(app, {}) == {"clerk": "gemini-2.5-flash", "packer": "gemini-2.5-flash"}
    assert unscripted(app, {"clerk": []}) == {"packer": "gemini-2.5-flash"}
    use_script(app, {"clerk": [{"text": "hello"}]})
    assert isinstance(clerk.model, OwnLlm)
    assert packer.model == "gemini-2.5-flash", "it is not its parent's script"
    assert unscripted(app, {}) == {"packer": "gemini-2.5-flash"}
    with pytest.raises(DefinitionError, match=r"for 'nobody'.*no such LLM agent; it has clerk, packer"):
        use_script(app, {"nobody": []})
    with pytest.raises(DefinitionError, match="step 1 of a scripted model"):
        use_script(app, {"clerk": [{"say": "hello"}]})


def test_an_app_is_known_by_the_module_that_holds_it() -> None:
    assert target_of(proved_shop.app) == "tests.adk.proved_shop:app"
    assert replace(own_shop()[0], name="other").name == "other"


async def test_what_a_provider_would_refuse_is_found(tmp_path: Path) -> None:
    app, clerk, _ = own_shop()
    use_script(app, {"clerk": [{"text": "hello"}, {"text": "again"}]})
    watch_models(app, Ledger(tmp_path / "ledger.jsonl"))
    assert isinstance(clerk.model, OwnLlm)
    model_step.set(ModelStep("clerk", 1))
    good = [types.Content(role="user", parts=[types.Part(text="hi")])]
    said = [response async for response in clerk.model.generate_content_async(LlmRequest(contents=good))]
    assert [response.content and response.content.parts for response in said] == [[types.Part(text="again")]]
    assert refused_requests(tmp_path) == []
    async for _ in clerk.model.generate_content_async(LlmRequest(contents=[])):
        pass
    assert refused_requests(tmp_path) == [
        "model call 2 of clerk would be refused by its provider: there are no contents"
    ]


async def test_a_script_is_an_agents_alone() -> None:
    model_step.set(None)
    with pytest.raises(DefinitionError, match="'scripted' can be asked by its agent only"):
        async for _ in OwnLlm(ScriptedModel([{"text": "hello"}])).generate_content_async(LlmRequest()):
            pass
