"""The commands: what they print, their exit codes, and that they leave the process without losing output."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import __version__
from perdure.agents import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig
from perdure.models.scripted import ScriptedModel
from perdure.worker import create_workers
from tests.cli.support import Done, Perdure, perdure

__all__ = ["perdure"]

AGENT_FILE = """
from perdure.agents import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig
from perdure.models.scripted import ScriptedModel

def pick_flight(city: str) -> dict[str, str]:
    '''Pick a flight.'''
    return {"status": "pending"}

picker = LlmAgent(
    name="picker",
    model=ScriptedModel([{"calls": [{"name": "pick_flight", "args": {"city": "Oslo"}}]}, {"text": "Booked."}]),
    tools=[LongRunningFunctionTool(pick_flight)],
)
app = App(name="NAME", root_agent=picker, resumability_config=ResumabilityConfig(is_resumable=True))
"""


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""An environment in which output is lost unless somebody flushes it."""


def in_a_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, env=BUFFERED, **options
    )


def in_bash(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a process of its own."""
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=BUFFERED)


# Without a server.


def test_help_answers_without_importing_what_is_slow() -> None:
    """google-genai takes seconds to import, and temporalio most of one."""
    code = (
        "import sys\n"
        "from perdure.cli import run_command\n"
        "code = run_command(['--help'])\n"
        "slow = {'google.genai', 'temporalio', 'pydantic', 'structlog'} & set(sys.modules)\n"
        "print('imported:', sorted(slow), 'code:', code)\n"
    )
    done = in_a_process("-c", code)
    assert done.stdout.endswith("imported: [] code: 0\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    ["dev", "worker", "api", "run", "respond", "resume", "stop", "events", "sessions", "pending", "export", "import"],
)
async def test_every_command_has_help_with_an_example(perdure: Perdure, command: str) -> None:
    done = await perdure(command, "--help")
    assert done.code == 0
    assert f"perdure {command} " in done.out.split("Example")[1]


async def test_the_help_lists_the_exit_codes(perdure: Perdure) -> None:
    done = await perdure("--help")
    for code in ("0", "1", "2", "64", "69", "130"):
        assert re.search(rf"^  +{code} ", done.out, re.MULTILINE)


async def test_the_version_is_printed(perdure: Perdure) -> None:
    done = await perdure("--version")
    assert (done.code, done.out) == (0, f"perdure, version {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["run"],
        ["run", "app", "hello", "--no-such-option"],
        ["events", "app"],
        ["export", "app"],
        ["import", "no-such-file"],
        ["events", "app", "--session", "s", "--since", "-1"],
        ["respond", "app", "no-pair"],
        ["respond", "app", "id=1", "id=2"],
        ["pending", "app", "--session", "s"],
        ["dev", "target", "--address", "localhost:1", "--temporal-port", "2"],
        ["run", "app", "hello", "--state", "no-pair"],
        ["worker", "target", "--versioning", "pinned"],
        ["worker", "target", "--versioning", "no-such-way"],
        ["worker", "target", "--deployment", "shop"],
        ["dev", "target", "--build-id", "b1"],
    ],
    ids=" ".join,
)
async def test_wrong_usage_has_a_code_of_its_own(perdure: Perdure, arguments: list[str]) -> None:
    """2, which click would use, means waiting here as in ADK."""
    done = await perdure(*arguments)
    assert (done.code, done.out) == (64, "")
    assert "Error: " in done.err


async def test_versioning_without_a_deployment_says_what_is_missing(perdure: Perdure) -> None:
    done = await perdure("worker", "target", "--versioning", "auto-upgrade")
    assert done.code == 64
    assert "has versioning 'auto-upgrade'; give a deployment and a build id" in done.err
    assert "perdure worker --help" in done.err


async def test_no_server_is_told_apart_from_a_failure(perdure: Perdure) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    done = await perdure("sessions", "app", "--address", address)
    assert (done.code, done.out) == (69, "")
    assert address in done.err
    assert "perdure dev" in done.err


@pytest.mark.process
def test_a_remote_server_that_does_not_answer_is_not_replaced_by_a_local_one(tmp_path: Path) -> None:
    (tmp_path / "remote_agent.py").write_text(AGENT_FILE.replace("NAME", "remote"))
    done = in_a_process("-m", "perdure", "dev", "remote_agent.py", "--address", "no.invalid:7233", cwd=tmp_path)
    assert done.returncode == 69, done.stderr
    assert "no.invalid:7233" in done.stderr


@pytest.mark.process
def test_an_app_that_cannot_be_compiled_is_explained_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "nameless.py").write_text(AGENT_FILE.replace('name="picker"', 'name="user"'))
    done = in_a_process("-m", "perdure", "dev", "nameless.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "user" in done.stderr
    assert not (tmp_path / ".perdure").exists()


@pytest.mark.process
def test_a_target_that_is_not_there_is_explained() -> None:
    done = in_a_process("-m", "perdure", "dev", "no_such_target")
    assert done.returncode == 1
    assert "'no_such_target' is neither a folder, nor a .py file, nor MODULE:APP" in done.stderr
    assert "Traceback" not in done.stderr


def test_leaving_loses_no_output_and_keeps_the_code() -> None:
    done = in_a_process("-c", "from perdure.cli import leave\nprint('x' * 1_000_000)\nleave(2)")
    assert (done.returncode, len(done.stdout)) == (2, 1_000_001)


def test_leaving_does_not_wait_for_threads_that_never_end() -> None:
    """Threads of temporalio's core are what makes the interpreter's own way out abort."""
    code = "import threading, time\nfrom perdure.cli import leave\n"
    code += "threading.Thread(target=time.sleep, args=(60,)).start()\nleave(0)"
    assert in_a_process("-c", code).returncode == 0


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = "import time; from perdure.cli import leave; print(1); time.sleep(0.5); leave(0)"
    done = in_bash(f"set -o pipefail; {shlex.join([sys.executable, '-c', code])} | true")
    assert (done.returncode, done.stderr) == (141, "")
    code = "from perdure.cli import leave, run_command\ncode = 0\n"
    code += "while code == 0: code = run_command(['--help'])\nleave(code)"
    done = in_bash(f"set -o pipefail; {shlex.join([sys.executable, '-c', code])} | head -1")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.process
def test_an_error_that_nobody_foresaw_shows_its_traceback() -> None:
    code = "import sys\nsys.argv = ['perdure', 'worker', 'broken_app:app']\nfrom perdure.__main__ import entry_point\n"
    code += "import types\nmodule = sys.modules['broken_app'] = types.ModuleType('broken_app')\n"
    code += "module.__getattr__ = lambda name: 1 / 0\nentry_point()"
    done = in_a_process("-c", code)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


# With a server.

BOOKING = [
    {"calls": [{"name": "pick_flight", "args": {"city": "Oslo"}}]},
    {"text": "Booked."},
    {"error": "the model is down"},
    {"text": "Back again."},
]


def pick_flight(city: str) -> dict[str, str]:
    """Pick a flight to a city."""
    return {"status": f"asking about {city}"}


@pytest.fixture
async def trip(client: Client, app_name: str) -> AsyncGenerator[str]:
    """The name of an app that is served: its agent asks for a flight, then fails once."""
    picker = LlmAgent(name="picker", model=ScriptedModel(BOOKING), tools=[LongRunningFunctionTool(pick_flight)])
    app = App(name=app_name, root_agent=picker, resumability_config=ResumabilityConfig(is_resumable=True))
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, [app]):
            await stack.enter_async_context(worker)
        yield app_name


@pytest.fixture
def at(temporal_server: str) -> tuple[str, str]:
    """The options that name the test server."""
    return ("--address", temporal_server)


def open_call(done: Done) -> str:
    """Return the id of the call that a command reported as open."""
    found = re.search(r"(adk-[0-9a-f-]+)='", done.err)
    assert found, done.err
    return found[1]


@pytest.mark.server
async def test_run_waits_and_says_how_to_answer_and_the_said_command_works(
    perdure: Perdure, trip: str, at: tuple[str, str]
) -> None:
    done = await perdure("run", trip, "To Oslo", *at)
    assert done.code == 2, done.err
    assert '[picker] calls pick_flight(city="Oslo")  (waits for an answer to adk-' in done.out
    assert '[picker] got from pick_flight: {"status": "asking about Oslo"}' in done.out
    said = re.search(r"answer it:  perdure (.*)", done.err)
    assert said
    done = await perdure(*shlex.split(said[1]))
    assert (done.code, done.out) == (0, "[picker] Booked.\n[picker] ends\n")
    assert "is finished" in done.err


@pytest.mark.server
async def test_run_fails_and_says_how_to_resume_and_the_said_command_works(
    perdure: Perdure, trip: str, at: tuple[str, str]
) -> None:
    waiting = await perdure("run", trip, "To Oslo", "--session", "s", *at)
    assert (await perdure("respond", trip, f"{open_call(waiting)}=SK 1", *at)).code == 0
    done = await perdure("run", trip, "Again", "--session", "s", *at)
    assert done.code == 1
    assert "agent 'picker' failed in 'model': the model is down" in done.err
    why, said = (re.search(rf"{what}:  perdure (.*)", done.err) for what in ("where, why", "resume it"))
    assert why
    assert said
    explained = await perdure(*shlex.split(why[1]))
    assert (explained.code, "failed: agent 'picker' in 'model'" in explained.out) == (0, True), explained.out
    done = await perdure(*shlex.split(said[1]))
    assert (done.code, done.out) == (0, "[picker] Back again.\n[picker] ends\n")


@pytest.mark.server
async def test_json_prints_events_as_adk_does_and_closes_with_the_invocation(
    perdure: Perdure, trip: str, at: tuple[str, str]
) -> None:
    done = await perdure("run", trip, "To Oslo", "--user", "ann", "--json", *at)
    assert done.code == 2
    *events, last = done.json_lines
    assert [event["author"] for event in events] == ["picker", "picker"]
    call = events[0]["content"]["parts"][0]["functionCall"]
    assert events[0]["longRunningToolIds"] == [call["id"]]
    assert last["user_id"] == "ann"
    assert last["invocation"]["status"] == "waiting"
    assert last["invocation"]["pending"][0]["id"] == call["id"]

    listed = (await perdure("pending", trip, "--json", *at)).json_lines
    assert [(line["user_id"], line["session_id"], line["call"]["id"]) for line in listed] == [
        ("ann", last["session_id"], call["id"])
    ]
    read = (
        await perdure("events", trip, "-u", "ann", "-s", last["session_id"], "--json", "--since", "1", *at)
    ).json_lines
    assert read == events
    sessions = (await perdure("sessions", trip, "--user", "ann", "--json", *at)).json_lines
    assert [session["id"] for session in sessions] == [last["session_id"]]
    assert (await perdure("sessions", trip, "--user", "bob", "--json", *at)).out == ""


@pytest.mark.server
async def test_listings_are_tables_for_people(perdure: Perdure, trip: str, at: tuple[str, str]) -> None:
    await perdure("run", trip, "To Oslo", "--session", "s-1", *at)
    head, row = (await perdure("sessions", trip, *at)).out.splitlines()
    assert head.split()[:4] == ["APP", "USER", "SESSION", "STATUS"]
    assert row.split()[:3] == [trip, "user", "s-1"]
    head, row = (await perdure("pending", trip, *at)).out.splitlines()
    assert head.split()[:3] == ["APP", "USER", "SESSION"]
    assert 'pick_flight(city="Oslo")' in row


@pytest.mark.server
async def test_a_refused_request_says_why(perdure: Perdure, trip: str, at: tuple[str, str]) -> None:
    waiting = await perdure("run", trip, "To Oslo", "--session", "s", *at)
    call = open_call(waiting)
    unknown = await perdure("respond", trip, "adk-nope=1", *at)
    assert unknown.code == 1
    assert "no session of user 'user' waits for 'adk-nope'" in unknown.err
    assert (await perdure("respond", trip, f"{call}=1", "--session", "s", *at)).code == 0
    late = await perdure("respond", trip, f"{call}=2", "--session", "s", *at)
    assert late.code == 1
    assert call in late.err
    absent = await perdure("resume", trip, "e-absent", "--session", "s", *at)
    assert absent.code == 1
    assert "e-absent" in absent.err
    nowhere = await perdure("events", trip, "--session", "no-such-session", *at)
    assert nowhere.code == 1
    assert "no-such-session" in nowhere.err


@pytest.mark.server
async def test_stop_and_resume(perdure: Perdure, trip: str, at: tuple[str, str]) -> None:
    waiting = await perdure("run", trip, "To Oslo", "--session", "s", "--json", *at)
    invocation = waiting.json_lines[-1]["invocation"]["id"]
    stopped = await perdure("stop", trip, invocation, "--session", "s", "--reason", "lunch", *at)
    assert stopped.code == 0, stopped.err
    assert f"invocation {invocation} is stopped" in stopped.err
    resumed = await perdure("resume", trip, invocation, "--session", "s", *at)
    assert resumed.code == 2, resumed.err


@pytest.mark.server
async def test_without_waiting_the_answer_is_handed_in_only(perdure: Perdure, trip: str, at: tuple[str, str]) -> None:
    waiting = await perdure("run", trip, "To Oslo", "--session", "s", *at)
    done = await perdure("respond", trip, f"{open_call(waiting)}=1", "--no-wait", *at)
    assert (done.code, done.out) == (0, "")


@pytest.mark.server
async def test_a_run_repeated_with_its_request_id_starts_nothing(
    perdure: Perdure, trip: str, at: tuple[str, str]
) -> None:
    command = ("run", trip, "To Oslo", "--session", "s", "--request-id", "r-1", "--json", *at)
    first, second = await perdure(*command), await perdure(*command)
    assert first.json_lines[-1]["invocation"]["id"] == second.json_lines[-1]["invocation"]["id"]
    assert (first.code, second.code) == (2, 2)


@pytest.mark.server
async def test_the_message_comes_from_standard_input_and_state_goes_along(
    perdure: Perdure, trip: str, at: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("To Oslo, please"))
    await perdure("run", trip, "-", "--session", "s", "--state", "seats=2", "--state", "class=first", *at)
    (first, *_) = (await perdure("events", trip, "--session", "s", "--json", *at)).json_lines
    assert first["content"]["parts"] == [{"text": "To Oslo, please"}]
    assert first["actions"]["stateDelta"] == {"seats": 2, "class": "first"}


class Process:
    """A command that goes on until it gets a signal."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *arguments: str, cwd: Path) -> Process:
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "perdure", *arguments),
                cwd=cwd,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                # A shell's background job, as a test run may be, hands an ignored SIGINT down.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        )

    async def read_until(self, text: str) -> str:
        """Return the output up to the line that holds a text."""
        assert self._process.stdout is not None
        lines: list[str] = []
        async with asyncio.timeout(60):
            while not lines or text not in lines[-1]:
                line = (await self._process.stdout.readline()).decode()
                assert line, "".join(lines)
                lines.append(line)
        return "".join(lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self.send(number)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the end and return the exit code."""
        async with asyncio.timeout(60):
            await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.server
async def test_dev_serves_keeps_its_data_and_ends_cleanly(perdure: Perdure, app_name: str, tmp_path: Path) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    port, ui_port = free_port(), free_port()
    at = ("--address", f"127.0.0.1:{port}")
    command = ("dev", f"{app_name}.py", "--temporal-port", str(port), "--ui-port", str(ui_port))

    dev = await Process.start(*command, cwd=tmp_path)
    greeting = await dev.read_until("Ctrl-C")
    assert f"127.0.0.1:{port}" in greeting
    assert f"http://127.0.0.1:{ui_port}" in greeting
    assert app_name in greeting
    waiting = await perdure("run", app_name, "To Oslo", "--session", "s", *at)
    assert waiting.code == 2, waiting.err
    [listed] = (await perdure("pending", "--json", *at)).json_lines
    assert (listed["app_name"], listed["call"]["id"]) == (app_name, open_call(waiting))
    [session] = (await perdure("sessions", "--json", *at)).json_lines
    assert (session["app_name"], session["id"]) == (app_name, "s")
    assert await dev.end(signal.SIGINT) == 0
    assert (await perdure("sessions", app_name, *at)).code == 69

    dev = await Process.start(*command, cwd=tmp_path)
    await dev.read_until("Ctrl-C")
    done = await perdure("respond", app_name, f"{open_call(waiting)}=SK 1", "--session", "s", *at)
    assert (done.code, done.out) == (0, "[picker] Booked.\n[picker] ends\n")
    assert await dev.end(signal.SIGTERM) == 0


@pytest.mark.server
async def test_dev_uses_the_server_that_answers(
    perdure: Perdure, app_name: str, at: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    dev = await Process.start("dev", f"{app_name}.py", *at, cwd=tmp_path)
    assert "was running already" in await dev.read_until("Ctrl-C")
    assert await dev.end(signal.SIGINT) == 0
    assert not (tmp_path / ".perdure").exists()


@pytest.mark.server
async def test_a_worker_serves_until_it_is_told_to_end(
    perdure: Perdure, app_name: str, at: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / f"{app_name}.py").write_text(AGENT_FILE.replace("NAME", app_name))
    limits = ("--max-activities=5", "--tool-threads=2", "--max-sessions=10", "--max-workflow-tasks=4", "--log-json")
    limits += ("--sticky-timeout=1.5", "--heartbeats=sparse")
    worker = await Process.start("worker", f"{app_name}:app", *limits, *at, cwd=tmp_path)
    assert app_name in await worker.read_until("serving")
    assert (await perdure("run", app_name, "To Oslo", *at)).code == 2
    assert await worker.end(signal.SIGTERM) == 0


@pytest.mark.server
async def test_following_events_goes_on_until_ctrl_c(
    perdure: Perdure, trip: str, at: tuple[str, str], tmp_path: Path
) -> None:
    waiting = await perdure("run", trip, "To Oslo", "--session", "s", *at)
    follower = await Process.start("events", trip, "--session", "s", "--follow", *at, cwd=tmp_path)
    await follower.read_until("got from pick_flight")
    answered = await perdure("respond", trip, f"{open_call(waiting)}=SK 1", *at)
    assert answered.code == 0, answered
    assert "Booked." in await follower.read_until("ends")
    assert await follower.end(signal.SIGINT) == 130
