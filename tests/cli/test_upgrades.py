"""The commands around deployments: `plan`, `replay`, `resume --fresh`, and what is said of a session that is stuck."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App
from perdure.cli import run_command
from perdure.compiler.loading import load_native_app
from tests.workflows.support import serving

PLANNED = """
from perdure.agents import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig
from perdure.models.scripted import ScriptedModel

def pick(city: str) -> dict[str, str]:
    '''Pick a flight.'''
    return {"status": "pending"}

picker = LlmAgent(
    name="picker",
    instruction="INSTRUCTION",
    model=ScriptedModel([{"calls": [{"name": "pick", "args": {"city": "Oslo"}}]}, {"text": "Booked."}]),
    tools=[LongRunningFunctionTool(pick)],
)
app = App(name="NAME", root_agent=picker, resumability_config=ResumabilityConfig(is_resumable=True))
"""

Run = Callable[..., Any]


@pytest.fixture
def perdure(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, in a thread and on an event loop of its own; returns exit code and output."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(run_command, arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def write(folder: Path, name: str, instruction: str = "Be kind.") -> tuple[str, App]:
    """Write an app's file; returns its path, and the app."""
    path = folder / f"{name}_{len(list(folder.iterdir()))}.py"
    path.write_text(PLANNED.replace("NAME", name).replace("INSTRUCTION", instruction))
    return str(path), load_native_app(str(path))


async def test_plan_prints_the_tree(perdure: Run, tmp_path: Path, app_name: str) -> None:
    path, _ = write(tmp_path, app_name)
    code, out, _ = await perdure("plan", path)
    assert (code, out.splitlines()[1:]) == (
        0,
        ["  picker (llm, scripted)", "    instruction: Be kind.", "    tool pick (long-running)"],
    )
    code, out, _ = await perdure("plan", path, "--json")
    assert (code, json.loads(out)["plan"]["root"]["name"]) == (0, "picker")
    code, _, err = await perdure("plan", path, "--invocation", "e-1")
    assert (code, "--diff" in err) == (64, True)


@pytest.mark.server
async def test_plan_diff_tells_how_a_run_differs(
    perdure: Run, client: Client, temporal_server: str, tmp_path: Path, app_name: str
) -> None:
    """The exit code says whether it does; `--json` has every change."""
    old, app = write(tmp_path, app_name)
    new, _ = write(tmp_path, app_name, "Be quick.")
    which = ("--diff", "s", "--user", "u", "--address", temporal_server)
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        code, out, _ = await perdure("plan", old, *which)
        assert (code, f"of invocation {waiting.id} equals the code's" in out) == (0, True)
        code, out, _ = await perdure("plan", new, *which, "--invocation", waiting.id)
        assert (code, out.splitlines()[-2:]) == (1, ["      -Be kind.", "      +Be quick."])
        code, out, _ = await perdure("plan", new, *which, "--json")
        [change] = json.loads(out)["changes"]
        assert (code, change["what"], change["agent"]) == (1, "instruction", "picker")
        code, _, err = await perdure("plan", new, *which, "--invocation", "e-none")
        assert (code, "has no invocation 'e-none'" in err) == (1, True)


@pytest.mark.nondeterminism
@pytest.mark.server
async def test_replay_of_a_workflow_or_a_file(
    perdure: Run, client: Client, temporal_server: str, tmp_path: Path, app_name: str
) -> None:
    """A changed history is told as such."""
    _, app = write(tmp_path, app_name)
    async with serving(client, app) as user:
        await user.create()
        await user.run("go")
        code, out, _ = await perdure("replay", user.key, "--address", temporal_server)
        assert (code, "replays" in out) == (0, True)
        history = (await user.workflow.fetch_history()).to_json()
    exported = tmp_path / "exported.json"
    exported.write_text(history)
    code, out, _ = await perdure("replay", str(exported), "--json")
    assert (code, json.loads(out)["replays"], json.loads(out)["workflow_id"]) == (0, True, user.key)
    exported.write_text(history.replace('"perdure:model"', '"perdure:other"'))
    code, _, err = await perdure("replay", str(exported))
    assert (code, "does not replay: " in err, "TMPRL1100" in err) == (1, True, True)
    code, _, err = await perdure("replay", "no/such/session", "--address", temporal_server)
    assert (code, "neither a file nor a workflow" in err) == (1, True)


@pytest.mark.server
async def test_resume_fresh_takes_a_session_over(
    perdure: Run, client: Client, temporal_server: str, tmp_path: Path, app_name: str
) -> None:
    """It waits as before, in another run of its workflow."""
    _, app = write(tmp_path, app_name)
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("go")
        before = (await user.workflow.describe()).run_id
        which = ("--user", "u", "--session", "s", "--address", temporal_server)
        code, _, err = await perdure("resume", app_name, waiting.id, "--fresh", *which)
        assert (code, "is waiting" in err) == (2, True)
        assert (await user.workflow.describe()).run_id != before
        assert await user.open("pick") == [waiting.pending[0].id]
