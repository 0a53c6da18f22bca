"""Sessions that wait while google-adk 1 becomes google-adk 2 go on. Two environments: `make test-adk1`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import InvocationView, Runner
from perdure.adk.internals import MAJOR

ROOT = Path(__file__).parent.parent.parent
NEWER = ROOT / ".venv" / "bin" / "python"
APP = '''
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.adk.version import __version__
from google.genai import types


class Rules(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        done = {p.function_response.name for c in llm_request.contents for p in c.parts or () if p.function_response}
        name = {"asker": "ask_manager", "payer": "pay"}[self.model]
        part = types.Part(function_call=types.FunctionCall(name=name, args={}))
        if name in done:
            said = llm_request.config.system_instruction.partition("\\n")[0]
            part = types.Part(text=f"{self.model} is done by {__version__.partition('.')[0]}: {said}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def ask_manager() -> None:
    """Ask the manager."""


def pay() -> str:
    """Pay."""
    return "paid"


def llm(name, tool):
    words = f"I am {name} of WHEN."
    return LlmAgent(name=name, model=Rules(model=name), instruction=words, tools=[tool], output_key=name)


asker = llm("asker", LongRunningFunctionTool(func=ask_manager))
payer = llm("payer", FunctionTool(pay, require_confirmation=True))
root = SequentialAgent(name="desk", sub_agents=[asker, payer])
app = App(name="upgraded_desk", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=True))
'''

pytestmark = [
    pytest.mark.server,
    pytest.mark.process,
    pytest.mark.timeout(240),
    pytest.mark.skipif(MAJOR >= 2 or not NEWER.exists(), reason="needs both environments: make setup, make test-adk1"),
]


@asynccontextmanager
async def worker(python: str, folder: Path, address: str) -> AsyncGenerator[None]:
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", "perdure", "worker", str(folder), "--address", address, "--log-level", "error"), cwd=ROOT
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _until_it_waits(runner: Runner, names: dict[str, str], tool: str) -> InvocationView:
    while True:
        [invocation] = (await runner.get_session(**names)).invocations
        assert invocation.status not in ("failed", "finished"), invocation.failures
        if invocation.pending and tool in str(invocation.pending[0].args) + invocation.pending[0].name:
            return invocation
        await asyncio.sleep(0.2)


def test_the_environments_are_of_two_versions() -> None:
    ask = [str(NEWER), "-c", "import google.adk.version as v; print(v.__version__)"]
    told = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert int(told.stdout.partition(".")[0]) > MAJOR


@pytest.mark.parametrize("waits_for", ["ask_manager", "pay"])
async def test_a_session_that_waits_goes_on_with_google_adk_2(client: Client, tmp_path: Path, waits_for: str) -> None:
    folder = tmp_path / "upgraded_desk"
    folder.mkdir()
    address = client.service_client.config.target_host
    runner = Runner("upgraded_desk", client)
    names: dict[str, Any] = {"user_id": "ann", "session_id": f"waits-for-{waits_for}"}
    await runner.create_session(**names)
    (folder / "agent.py").write_text(APP.replace("WHEN", "before"))
    async with worker(sys.executable, folder, address):
        await runner.send_message(**names, message="To Oslo")
        invocation = await _until_it_waits(runner, names, "ask_manager")
        if waits_for == "pay":
            await runner.respond(**names, responses={invocation.pending[0].id: {"approved": True}})
            invocation = await _until_it_waits(runner, names, "pay")
    (folder / "agent.py").write_text(APP.replace("WHEN", "after"))
    async with worker(str(NEWER), folder, address):
        if waits_for == "ask_manager":
            await runner.respond(**names, responses={invocation.pending[0].id: {"approved": True}})
            invocation = await _until_it_waits(runner, names, "pay")
        await runner.respond(**names, responses={invocation.pending[0].id: {"confirmed": True}})
        async for _ in runner.follow(**names, invocation_id=invocation.id, since=0):
            pass
        session = await runner.get_session(**names)
    assert [one.status for one in session.invocations] == ["finished"]
    assert session.state["asker"].startswith(
        f"asker is done by {1 if waits_for == 'pay' else 2}: I am asker of before."
    )
    assert session.state["payer"].startswith("payer is done by 2: I am payer of before.")
