"""What a command loads: a person waits for it, and google-genai alone takes a second of processor."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.agents import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig
from perdure.cli.main import main
from perdure.client import Runner
from perdure.models.scripted import ScriptedModel
from perdure.worker import create_workers

HEAVY = (
    "google.genai",
    "google.adk",
    "google.auth",
    "mcp",
    "fastapi",
    "httpx",
    "rich",
    "structlog",
    "temporalio.worker",
    "perdure.agents",
    "perdure.compiler.compile",
    "perdure.recovery.rebuilding",
)

RUN = """
import json, sys
from perdure.cli import run_command
commands, heavy = json.loads(sys.argv[1])
for command in commands:
    print(run_command(command, own_process=True), [name for name in heavy if name in sys.modules], file=sys.stderr)
"""


async def loaded(*commands: tuple[str, ...], heavy: tuple[str, ...] = HEAVY) -> tuple[list[str], str]:
    """Return, for each command that a process runs one after another, its code and what it has loaded."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, json.dumps([commands, heavy])),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    ends = [line for line in err.decode().splitlines() if line.endswith("]") and line[:1].isdigit()]
    return ends, out.decode() + err.decode()


def test_help_loads_nothing_of_temporal_or_pydantic() -> None:
    commands = [(name, "--help") for name in main.commands]
    heavy = (*HEAVY, "temporalio", "pydantic")
    ends, said = asyncio.run(loaded(("--help",), ("--version",), *commands, heavy=heavy))
    assert ends == ["0 []"] * (len(commands) + 2), said


def ask_manager(price: int) -> dict[str, str]:
    """Ask the manager."""
    return {"status": "pending"}


@pytest.fixture
async def trip(client: Client, app_name: str) -> AsyncGenerator[str]:
    """The name of an app that is served: its agent asks a manager, then answers."""
    script = ScriptedModel([{"calls": [{"name": "ask_manager", "args": {"price": 240}}]}, {"text": "Booked."}])
    booker = LlmAgent(name="booker", model=script, tools=[LongRunningFunctionTool(ask_manager)])
    app = App(name=app_name, root_agent=booker, resumability_config=ResumabilityConfig(is_resumable=True))
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, [app]):
            await stack.enter_async_context(worker)
        yield app_name


@pytest.mark.server
async def test_what_looks_at_sessions_and_moves_them_loads_no_google_genai(
    client: Client, temporal_server: str, trip: str
) -> None:
    """All of them answer right without it; what they print is google.genai's JSON all the same."""
    runner = Runner(trip, client)
    at = ("--address", temporal_server)
    one = ("--session", "s", *at)
    ends, said = await loaded(
        ("run", trip, "To Oslo", *one),
        # Without a message: nothing comes from where the tests have no input.
        ("run", trip, *one),
        ("sessions", trip, *at),
        ("pending", trip, *at),
        ("explain", trip, "s", *at),
        ("events", trip, *one),
        ("events", trip, "--json", *one),
        ("effects", trip, *one),
        ("session", "show", trip, *one),
        ("session", "state", trip, "seats=2", *one),
        ("export", trip, *one),
        ("doctor", "--app", trip, *at),
    )
    assert ends == ["2 []", *["0 []"] * 11], said
    assert "ask_manager(price=240)" in said
    [call] = [call for _, call in await runner.pending(user_id="user", session_id="s")]
    invocation = call.invocation_id
    ends, said = await loaded(
        ("stop", trip, invocation, *one),
        ("resume", trip, invocation, *one),
        ("respond", trip, f'{call.id}={{"approved": true}}', "--stream", *one),
        ("session", "delete", trip, "--yes", *one),
    )
    assert ends == ["0 []", "2 []", "0 []", "0 []"], said
    assert "[booker] Booked." in said


APP = """
from perdure import App, LlmAgent, ScriptedModel

app = App(name="clerk_app", root_agent=LlmAgent(name="clerk", model=ScriptedModel([{"text": "hello"}])))
"""


def test_what_looks_at_an_app_loads_nothing_of_temporal_and_no_clients(tmp_path: Path) -> None:
    """It loads the app's code, and so google-genai's types, which no definition does without."""
    (tmp_path / "clerk_app.py").write_text(APP)
    target = str(tmp_path / "clerk_app.py")
    heavy = ("google.adk", "google.genai.client", "google.auth", "fastapi", "structlog", "temporalio")
    ends, said = asyncio.run(loaded(("check", target), ("plan", target), heavy=heavy))
    assert ends == ["0 []"] * 2, said


ASKS = """
from google import genai
from google.genai import Client, errors, interactions, types
from google.genai.types import Content

import google.genai.models
from perdure import App, LlmAgent

assert genai.Client is Client and genai.types is types and genai.errors is errors and genai.__name__ == "google.genai"
assert google.genai is genai and google.genai.models.Models and not hasattr(genai, "nonsense")
config = types.GenerateContentConfig(temperature=0.5, safety_settings=[types.SafetySetting()])
app = App(name="clerk_app", root_agent=LlmAgent(name="clerk", model="gemini-2.5-flash", generate_content_config=config))
"""


def test_an_apps_code_finds_all_of_google_genai_however_it_imports_it(tmp_path: Path) -> None:
    (tmp_path / "clerk_app.py").write_text(ASKS)
    target = str(tmp_path / "clerk_app.py")
    ends, said = asyncio.run(loaded(("check", target), ("plan", target), heavy=("google.genai.client",)))
    assert ends == ["0 ['google.genai.client']"] * 2, said
