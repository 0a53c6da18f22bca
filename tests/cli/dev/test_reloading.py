"""`perdure dev` takes up changes of code: a save is served, what waits goes on, and broken code serves on as it was."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import httpx2
import pytest

from tests.cli.support import Perdure, perdure
from tests.cli.test_main import AGENT_FILE, Process, free_port, open_call
from tests.workflows.support import eventually

__all__ = ["perdure"]

pytestmark = [pytest.mark.server, pytest.mark.process]

PROMISED_SECONDS = 2.0

AGENT = """
from perdure import App, LlmAgent, ResumabilityConfig, ScriptedModel
from NAME.words import say

script = ScriptedModel([{"calls": [{"name": "say", "args": {}}]}, {"text": "Said."}])
clerk = LlmAgent(name="clerk", model=script, tools=[say], instruction="Be brief.")
app = App(name="NAME", root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
"""

ADK_AGENT = """
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from .words import say


class Script(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        said = llm_request.contents[-1].parts[-1].function_response
        call = types.Part(function_call=types.FunctionCall(name="say", args={}))
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Said.") if said else call]))


root_agent = LlmAgent(name="clerk", model=Script(model="script"), tools=[say])
"""

WORDS = '''
import time
from pathlib import Path


def say() -> dict[str, str]:
    """Say a word."""
    return {"word": "WORD"}
'''

SLOW = WORDS.replace("    return", '    Path("begun").touch()\n    time.sleep(4)\n    return')


class Dev:
    """A `perdure dev` that serves folders of a folder, with what is asked of it."""

    def __init__(self, process: Process, folder: Path, perdure: Perdure, at: tuple[str, str]) -> None:
        self.process = process
        self.folder = folder
        self.at = at
        self.url = ""
        self._perdure = perdure

    def save(self, path: str, text: str) -> None:
        """Save a file."""
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_text(text)

    async def word(self, app: str, *options: str) -> str:
        """Return the word that the app's tool says."""
        done = await self._perdure("run", app, "hello", "--wait-for-worker", *options, *self.at)
        found = re.search(r'"word": "([^"]*)"', done.out)
        assert found is not None, done
        return found[1]

    async def says(self, app: str, word: str) -> bool:
        """Return whether the app's tool says a word now."""
        return await self.word(app) == word


@pytest.fixture
async def start(
    perdure: Perdure, temporal_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Callable[..., object]]:
    """Starts a `perdure dev`, which is ended with the test."""
    monkeypatch.chdir(tmp_path)
    at = ("--address", temporal_server)
    started: list[Process] = []

    async def start(*arguments: str) -> Dev:
        process = await Process.start("dev", *arguments, "--port", "0", *at, cwd=tmp_path)
        started.append(process)
        dev = Dev(process, tmp_path, perdure, at)
        greeting = await process.read_until("Ctrl-C")
        found = re.search(r"HTTP API +(\S+)", greeting)
        dev.url = found[1] if found is not None else ""
        return dev

    yield start
    for process in started:
        if process.is_running:
            assert await process.end(signal.SIGTERM) == 0


Start = Callable[..., "asyncio.Future[Dev]"]


def write_app(folder: Path, name: str, *, agent: str = AGENT, words: str = WORDS) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "agent.py").write_text(agent.replace("NAME", name))
    (folder / name / "words.py").write_text(words.replace("WORD", "zero"))


@pytest.mark.parametrize("agent", [AGENT, ADK_AGENT], ids=["perdure", "google.adk"])
async def test_a_save_is_served_within_two_seconds(start: Start, app_name: str, tmp_path: Path, agent: str) -> None:
    """Of any module that the app imports, each time; at least where nothing else keeps the machine busy."""
    write_app(tmp_path, app_name, agent=agent)
    dev = await start(app_name)
    assert await dev.word(app_name) == "zero"
    took: list[float] = []
    for word in ("one", "two", "six"):
        saved = time.monotonic()
        dev.save(f"{app_name}/words.py", WORDS.replace("WORD", word))
        told = await dev.process.read_until("reloaded")
        took.append(time.monotonic() - saved)
        assert f"{app_name} ({app_name}/words.py; " in told
        assert await dev.word(app_name) == word
    assert min(took) < PROMISED_SECONDS, took


async def test_two_saves_in_a_moment_are_told_apart(start: Start, app_name: str, tmp_path: Path) -> None:
    """Python takes a file of the same second and size for the same one."""
    write_app(tmp_path, app_name)
    dev = await start(app_name)
    for number in range(12):
        dev.save(f"{app_name}/words.py", WORDS.replace("WORD", f"{number:04}"))
        await asyncio.sleep(0.13)
    await eventually(lambda: dev.says(app_name, "0011"))


async def test_what_waits_goes_on_under_its_plan(start: Start, perdure: Perdure, app_name: str, tmp_path: Path) -> None:
    (tmp_path / app_name).mkdir()
    file = tmp_path / app_name / "agent.py"
    file.write_text(AGENT_FILE.replace("NAME", app_name).replace('name="picker",', 'name="picker", instruction="A",'))
    dev = await start(app_name)
    waiting = await perdure("run", app_name, "To Oslo", "--session", "s", *dev.at)
    assert waiting.code == 2, waiting
    file.write_text(file.read_text().replace('instruction="A"', 'instruction="B"').replace("Booked.", "Booked now."))
    await dev.process.read_until("reloaded")
    differs = await perdure("plan", app_name, "--diff", "s", *dev.at)
    assert (differs.code, "differs from" in differs.out) == (1, True), differs
    done = await perdure("respond", app_name, f"{open_call(waiting)}=SK 1", *dev.at)
    # Its plan is the old one, the code behind its model the new one.
    assert (done.code, "[picker] Booked now." in done.out) == (0, True), done
    assert "differs from" in (await perdure("plan", app_name, "--diff", "s", *dev.at)).out


async def test_broken_code_leaves_the_last_good_one_and_the_authors_frames_are_told(
    start: Start, perdure: Perdure, app_name: str, tmp_path: Path
) -> None:
    write_app(tmp_path, app_name)
    dev = await start(app_name)
    dev.save(f"{app_name}/words.py", "from nowhere_at_all import word\n")
    await dev.process.read_until("not reloaded")
    told = (await dev.process.read_until("of perdure")).splitlines()
    assert told[0] == "ModuleNotFoundError: No module named 'nowhere_at_all'"
    frames = [line for line in told if line.startswith("  File")]
    assert frames == [
        f'  File "{tmp_path}/{app_name}/agent.py", line 3, in <module>',
        f'  File "{tmp_path}/{app_name}/words.py", line 1, in <module>',
    ]
    assert re.fullmatch(r"  … \d+ frames? of perdure, \d+ of python", told[-1]), told
    assert await dev.word(app_name, "--session", "s") == "zero"
    explained = await perdure("explain", app_name, "s", *dev.at)
    assert f"perdure: {app_name} differs from what is served" in explained.err
    # A module that is added can be what was missing.
    dev.save("nowhere_at_all.py", "word = 1\n")
    dev.save(f"{app_name}/words.py", WORDS.replace("WORD", "mended"))
    await dev.process.read_until("reloaded     ")
    assert await dev.word(app_name) == "mended"
    assert (await perdure("explain", app_name, "s", *dev.at)).err == ""


@pytest.mark.parametrize("agent", [AGENT, ADK_AGENT], ids=["perdure", "google.adk"])
async def test_a_prompt_that_the_code_has_read_is_taken_up_as_code_is(
    start: Start, app_name: str, tmp_path: Path, agent: str
) -> None:
    """Files that it has not read are not, and one that it missed is."""
    reading = WORDS.replace('"WORD"', "WORD")
    reading += '\nWORD = Path(__file__).with_name("prompts").joinpath("word.md").read_text()\n'
    write_app(tmp_path, app_name, agent=agent, words=WORDS)
    dev = await start(app_name)
    dev.save(f"{app_name}/words.py", reading)
    await dev.process.read_until("not reloaded")
    dev.save(f"{app_name}/prompts/other.md", "other")
    dev.save(f"{app_name}/prompts/word.md", "one")
    told = await dev.process.read_until(f"reloaded     {app_name} ({app_name}/prompts/word.md; ")
    assert "other.md" not in told
    assert await dev.word(app_name) == "one"
    dev.save(f"{app_name}/prompts/word.md", "two")
    await dev.process.read_until("reloaded     ")
    assert await dev.word(app_name) == "two"


async def test_of_several_apps_a_broken_one_holds_up_no_other(start: Start, app_name: str, tmp_path: Path) -> None:
    write_app(tmp_path / "apps", good := f"{app_name}_good", agent=ADK_AGENT)
    write_app(tmp_path / "apps", bad := f"{app_name}_bad", agent=ADK_AGENT)
    dev = await start("apps")
    dev.save(f"apps/{bad}/words.py", "def say(:\n")
    assert f"not reloaded {bad}: " in await dev.process.read_until("not reloaded")
    dev.save(f"apps/{good}/words.py", WORDS.replace("WORD", "one"))
    await dev.process.read_until(f"reloaded     {good} (apps/{good}/words.py")
    assert (await dev.word(good), await dev.word(bad)) == ("one", "zero")
    dev.save(f"apps/{bad}/words.py", WORDS.replace("WORD", "two"))
    await dev.process.read_until(f"reloaded     {bad}, {good}")
    assert (await dev.word(good), await dev.word(bad)) == ("one", "two")
    write_app(tmp_path / "apps", added := f"{app_name}_added", agent=ADK_AGENT)
    await dev.process.read_until(added)
    await eventually(lambda: dev.says(added, "zero"))


async def test_a_step_under_way_and_who_follows_it_go_on_over_a_change(
    start: Start, perdure: Perdure, app_name: str, tmp_path: Path
) -> None:
    write_app(tmp_path, app_name, words=SLOW)
    dev = await start(app_name)
    session = f"/apps/{app_name}/users/user/sessions/s"
    body = {"appName": app_name, "userId": "user", "sessionId": "s", "newMessage": {"parts": [{"text": "hello"}]}}

    async def follow() -> list[dict[str, object]]:
        async with httpx2.AsyncClient(timeout=30, trust_env=False, base_url=dev.url) as http:
            assert (await http.post(session)).status_code == 200
            answer = await http.post("/run_sse", json=body)
        return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data")]

    following = asyncio.create_task(follow())
    await eventually((tmp_path / "begun").exists)
    dev.save(f"{app_name}/words.py", WORDS.replace("WORD", "one"))
    await dev.process.read_until("reloaded")
    async with httpx2.AsyncClient(timeout=30, trust_env=False, base_url=dev.url) as http:
        assert (await http.get("/list-apps")).json() == [app_name]
    events = await following
    assert "Said." in json.dumps(events[-1] if events[-1].get("content") else events[-2]), events
    [effect] = (await perdure("effects", app_name, "--session", "s", "--json", *dev.at)).json_lines
    assert (effect["attempts"], effect["outcome"]) == (1, "done")
    assert '"word": "zero"' in (await perdure("events", app_name, "--session", "s", *dev.at)).out
    assert await dev.word(app_name) == "one"


async def test_a_tool_that_raises_is_told_with_its_authors_frames(
    start: Start, perdure: Perdure, app_name: str, tmp_path: Path
) -> None:
    """In the terminal, with what the exception says, and by `perdure explain`."""
    write_app(tmp_path, app_name, words=WORDS.replace("    return", '    raise LookupError("no word")\n    return'))
    dev = await start(app_name, "--log-text")
    failed = await perdure("run", app_name, "hello", "--session", "s", *dev.at)
    assert failed.code == 1, failed
    told = await dev.process.read_until("of perdure")
    explained = await perdure("explain", app_name, "s", *dev.at)
    for text, indent in ((told, ""), (explained.out, "    ")):
        assert f"{indent}LookupError: no word\n{indent}  File " in text, text
        assert f'File "{tmp_path}/{app_name}/words.py", line 8, in say\n' in text
        assert f'{indent}    raise LookupError("no word")\n' in text


async def test_who_wants_no_reload_is_told_that_the_code_differs(
    start: Start, perdure: Perdure, app_name: str, tmp_path: Path
) -> None:
    write_app(tmp_path, app_name)
    dev = await start(app_name, "--no-reload")
    assert await dev.word(app_name, "--session", "s") == "zero"
    assert (await perdure("explain", app_name, "s", *dev.at)).err == ""
    dev.save(f"{app_name}/words.py", WORDS.replace("WORD", "one"))
    await asyncio.sleep(1)
    assert await dev.word(app_name, "--session", "t") == "zero"
    explained = await perdure("explain", app_name, "s", *dev.at)
    assert (explained.code, f"{app_name} differs from what is served" in explained.err) == (0, True)
    [invocation] = (await perdure("explain", app_name, "s", "--json", *dev.at)).json_lines[0]["invocations"]
    resumed = await perdure("resume", app_name, invocation["id"], "--session", "s", *dev.at)
    assert f"{app_name} differs from what is served" in resumed.err


async def test_a_process_that_ends_is_told_of_and_the_next_change_is_served(
    start: Start, app_name: str, tmp_path: Path
) -> None:
    write_app(tmp_path, app_name)
    dev = await start(app_name)
    assert await dev.word(app_name) == "zero"
    os.kill(await serving_process(dev), signal.SIGKILL)
    assert f"serves {app_name} has ended (exit code -9)" in await dev.process.read_until("has ended")
    dev.save(f"{app_name}/words.py", WORDS.replace("WORD", "one"))
    await dev.process.read_until("reloaded")
    assert await dev.word(app_name) == "one"


async def test_import_that_hangs_or_ends_the_process_holds_up_no_later_change(
    start: Start, app_name: str, tmp_path: Path
) -> None:
    write_app(tmp_path, app_name)
    dev = await start(app_name)
    dev.save(f"{app_name}/words.py", "import time\n\ntime.sleep(1000)\n")
    await asyncio.sleep(1)
    dev.save(f"{app_name}/words.py", "import os\n\nos._exit(3)\n")
    await dev.process.read_until("the process that loads the apps has ended (exit code 3)")
    dev.save(f"{app_name}/words.py", WORDS.replace("WORD", "one"))
    await dev.process.read_until("reloaded     ")
    assert await dev.word(app_name) == "one"


async def test_with_metrics_one_process_serves_at_a_time(start: Start, app_name: str, tmp_path: Path) -> None:
    """Their port can be only one's."""
    write_app(tmp_path, app_name)
    metrics = f"127.0.0.1:{free_port()}"
    dev = await start(f"{app_name}.agent:app", "--metrics", metrics)
    for word in ("one", "two"):
        dev.save(f"{app_name}/words.py", WORDS.replace("WORD", word))
        await dev.process.read_until("reloaded     ")
        assert await dev.word(app_name) == word
        async with httpx2.AsyncClient(trust_env=False) as http:
            assert "perdure_steps_total" in (await http.get(f"http://{metrics}/metrics")).text


async def test_no_process_outlives_a_front_that_is_killed(start: Start, app_name: str, tmp_path: Path) -> None:
    write_app(tmp_path, app_name)
    dev = await start(app_name)
    serving = await serving_process(dev)
    assert await dev.process.end(signal.SIGKILL) == -signal.SIGKILL
    await eventually(lambda: not is_alive(serving))


def is_alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def serving_process(dev: Dev) -> int:
    """Return the process that serves the apps: the child of the one that it is forked from."""
    found: list[int] = []
    parents = {dev.process.pid}
    for _ in range(2):
        listed = await asyncio.create_subprocess_exec(
            *("ps", "-ww", "-o", "pid=,args=", "--ppid", ",".join(map(str, parents))), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await listed.communicate()
        found = [int(line.split()[0]) for line in out.decode().splitlines() if "forkserver" in line]
        parents = set(found)
    [serving] = found
    return serving
