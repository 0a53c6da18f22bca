"""The examples run, and survive what they are there to show."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict

import pytest
from temporalio.client import Client

from examples import demo
from examples.story_flow.flow import Step
from perdure import Event, InvocationFailed, Runner
from perdure.compiler.loading import load_native_app
from perdure.compiler.loading_all import load_apps
from perdure.compiler.registry import register
from perdure.messages.session import InvocationResult
from tests.workflows.support import serving

ROOT = Path(__file__).parent.parent
STORY_FLOW = str(ROOT / "examples" / "story_flow")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "GOOGLE_API_KEY"}

STORY = [
    "story_generator",
    *("critic", "reviser") * 2,
    *("grammar_check", "tone_check"),
    "story_generator",
]
"""Who writes, in an undisturbed run."""


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def story_worker(address: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Serve story_flow in a process of its own; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure", "worker", "examples/story_flow", "--address", address),
        *("--log-level", "error"),
        cwd=ROOT,
        env=ENVIRONMENT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        await demo.kill(process)


class Names(TypedDict):
    """The arguments by which a runner finds a session."""

    user_id: str
    session_id: str


def names_of(session_id: str) -> Names:
    return Names(user_id="ann", session_id=session_id)


async def terminate_after(runner: Runner, result: InvocationResult, author: str, client: Client) -> None:
    """Follow an invocation, and terminate the session's workflow when an agent has written."""
    async for event in runner.follow(**names_of("terminated"), invocation_id=result.invocation.id, since=result.offset):
        if event.author == author and event.text:
            await client.get_workflow_handle("story_flow/ann/terminated").terminate()


def writers(log: Sequence[Event]) -> list[str]:
    return [event.author for event in log if event.text and event.author != "user"]


def checkpoints(log: Sequence[Event]) -> list[int]:
    states = [event.actions.agent_state for event in log if event.author == "story_flow_agent"]
    return [state["step"] for state in states if state is not None]


async def check_story(runner: Runner, session_id: str) -> None:
    """Check that a session's log is that of an undisturbed run."""
    log = [event async for event in runner.events(user_id="ann", session_id=session_id)]
    assert writers(log) == STORY
    assert checkpoints(log) == [Step.REVISE, Step.CHECK, Step.REWRITE]
    assert log[-1].author == "story_flow_agent"
    assert log[-1].actions.end_of_agent
    assert len({event.id for event in log}) == len(log)
    session = await runner.get_session(user_id="ann", session_id=session_id)
    assert session.state["tone"] == "negative"
    assert "poured her some milk" in session.state["current_story"]
    [invocation] = session.invocations
    assert invocation.status == "finished"


@pytest.mark.parametrize(
    ("target", "name", "root"),
    [("agents", "picker", "orchestrator"), ("story_flow", "story_flow", "story_flow_agent")],
)
def test_each_example_can_be_served(target: str, name: str, root: str) -> None:
    [app] = load_apps([str(ROOT / "examples" / target)])
    plan = register(app).plan
    assert (plan.app, plan.root.name, plan.resumable) == (name, root, True)


@pytest.mark.server
@pytest.mark.timeout(240)
def test_the_demo_shows_each_event_once_and_leaves_no_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "Each thing is there once." in done.stdout
    assert len(done.stdout.splitlines()) <= 40
    log = done.stdout.partition("from first to last:\n")[2]
    told = [(line.split()[0], line.split(maxsplit=1)[1]) for line in log.splitlines() if line.startswith("  ")]
    assert told == list(demo.SCRIPTED_LOG)
    for process in re.findall(r"\(process (\d+)\)", done.stdout):
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


def test_the_demo_notices_what_is_in_the_log_twice() -> None:
    event = Event(id="1", author="picker")
    assert "1 is in the log 2 times" in demo.problems([event, event])


@pytest.mark.server
@pytest.mark.timeout(240)
def test_story_flow_runs_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.story_flow", "A kitten"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count('checkpoint {"step":') == 3
    assert done.stdout.rstrip().endswith("poured her some milk.")


@pytest.mark.server
async def test_story_flow_is_stopped_and_resumed_at_each_of_its_steps(client: Client) -> None:
    """What a custom agent did before the stop is not done again, whether it is behind a checkpoint or not."""
    runner = Runner("story_flow", client)
    await runner.create_session(user_id="ann", session_id="stopped")
    names = names_of("stopped")
    async with serving(client, load_native_app(STORY_FLOW)):
        result = await runner.send_message(**names, message="A kitten")
        invocation_id = result.invocation.id
        for stop_after in ("story_generator", "critic", "tone_check"):
            async for event in runner.follow(**names, invocation_id=result.invocation.id, since=result.offset):
                if event.author == stop_after and event.text:
                    break
            stopped = await runner.stop(**names, invocation_id=invocation_id)
            assert stopped.invocation.status == "stopped"
            result = await runner.resume(**names, invocation_id=invocation_id)
        async for _ in runner.follow(**names, invocation_id=result.invocation.id, since=result.offset):
            pass
        await check_story(runner, "stopped")


@pytest.mark.server
async def test_story_flow_survives_the_death_of_its_worker(temporal_server: str, client: Client) -> None:
    runner = Runner("story_flow", client)
    await runner.create_session(user_id="ann", session_id="killed")
    names = names_of("killed")
    async with story_worker(temporal_server) as worker:
        result = await runner.send_message(**names, message="A kitten")
        async for event in runner.follow(**names, invocation_id=result.invocation.id, since=result.offset):
            if event.author == "critic" and event.text:
                break
        await demo.kill(worker)
    async with story_worker(temporal_server):
        async for _ in runner.follow(**names, invocation_id=result.invocation.id, since=result.offset):
            pass
        await check_story(runner, "killed")


@pytest.mark.server
async def test_story_flow_comes_back_from_a_terminated_workflow(client: Client) -> None:
    runner = Runner("story_flow", client)
    await runner.create_session(user_id="ann", session_id="terminated")
    names = names_of("terminated")
    async with serving(client, load_native_app(STORY_FLOW)):
        result = await runner.send_message(**names, message="A kitten")
        with pytest.raises(InvocationFailed, match="terminated"):
            await terminate_after(runner, result, "story_generator", client)
        result = await runner.resume(**names, invocation_id=result.invocation.id)
        async for _ in runner.follow(**names, invocation_id=result.invocation.id, since=result.offset):
            pass
        await check_story(runner, "terminated")
