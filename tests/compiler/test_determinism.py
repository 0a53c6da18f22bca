"""A custom agent that is not deterministic is caught when it is compiled, at the line where it is not."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.agents.custom import BaseAgent
from perdure.agents.definitions import App
from perdure.compiler.compile import compile_app
from perdure.errors import DefinitionError

_HEAD = """\
from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import os
import os.path
import random
import re
import time
import uuid
from collections.abc import AsyncGenerator
from datetime import date, datetime, timedelta
from pathlib import Path
from random import choice as pick
from time import time as now

from pydantic import Field

from perdure.agents import BaseAgent, BaseAgentState, InvocationContext
from perdure.journal.events import Event, EventActions

log = logging.getLogger(__name__)
HERE = Path(__file__)
DICE = random.Random(4)
"""

_AGENT = """
class Agent(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
{body}
        yield Event(author=self.name)
"""

Write = Callable[..., tuple[BaseAgent, Path]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module with an agent, and returns the agent and the file."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    counter = itertools.count()
    loaded: list[str] = []

    def make(body: str = "pass", before: str = "", after: str = "") -> tuple[BaseAgent, Path]:
        name = f"stray_{tmp_path.name}_{next(counter)}".replace("-", "_")
        file = tmp_path / f"{name}.py"
        agent = _AGENT.format(body=textwrap.indent(textwrap.dedent(body), " " * 8))
        file.write_text(
            "\n".join((_HEAD, textwrap.dedent(before), agent, textwrap.indent(textwrap.dedent(after), "    ")))
        )
        importlib.invalidate_caches()
        loaded.append(name)
        return importlib.import_module(name).Agent(name="strayer"), file

    yield make
    for name in loaded:
        sys.modules.pop(name, None)


def problems(agent: BaseAgent) -> str:
    with pytest.raises(DefinitionError) as caught:
        compile_app(App(name="app", root_agent=agent))
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("x = time.time()", "calls time.time(), which reads the clock"),
        ("x = now()", "calls time.time(), which reads the clock"),
        ("x = dt.datetime.now()", "calls datetime.datetime.now(), which reads the clock"),
        ("x = datetime.utcnow()", "calls datetime.datetime.utcnow(), which reads the clock"),
        ("x = date.today() - timedelta(days=1)", "calls datetime.date.today(), which reads the clock"),
        ("clock = time.monotonic", "uses time.monotonic, which reads the clock"),
        ("import time as t\nx = t.perf_counter()", "calls time.perf_counter(), which reads the clock"),
        ("from time import sleep\nsleep(1)", "calls time.sleep(), which reads the clock"),
        ("x = random.random()", "calls random.random(), which draws randomness"),
        ("x = pick([1, 2])", "which draws randomness"),
        ("x = sorted([1, 2], key=random.random)", "uses random.random, which draws randomness"),
        ("x = DICE.random()", "calls random.Random.random(), which draws randomness"),
        ("x = f'{uuid.uuid4()}'", "calls uuid.uuid4(), which draws randomness"),
        ("x = os.urandom(3)", "calls os.urandom(), which draws randomness"),
        ("import secrets\nx = secrets.token_hex()", "calls secrets.token_hex(), which draws randomness"),
        ("with open('x') as file:\n    x = file.read()", "calls open(), which does I/O"),
        ("x = input()", "calls input(), which does I/O"),
        ("x = os.getcwd()", "calls os.getcwd(), which does I/O"),
        ("x = os.environ['HOME']", "uses os.environ, which does I/O"),
        ("x = os.environ.get('HOME')", "calls os.environ.get(), which does I/O"),
        ("x = os.path.exists('x')", "exists(), which does I/O"),
        ("x = Path('x').read_text()", "calls pathlib.Path.read_text(), which does I/O"),
        ("p = Path('x') / 'y'\nx = p.exists()", "calls pathlib.Path.exists(), which does I/O"),
        ("x = HERE.parent.joinpath('x').stat()", "calls pathlib.Path.stat(), which does I/O"),
        ("x = ctx.somewhere.read_bytes()", "calls ctx.somewhere.read_bytes(), which does I/O"),
        ("import requests\nx = requests.get('http://x')", "calls requests.get(), which does I/O"),
        ("import urllib.request\nx = urllib.request.urlopen('http://x')", "calls urllib.request.urlopen()"),
        ("import subprocess\nsubprocess.run(['x'])", "calls subprocess.run(), which does I/O"),
        ("import socket\nx = socket.socket()", "calls socket.socket(), which does I/O"),
        ("import threading\nthreading.Thread(target=print).start()", "calls threading.Thread(), which starts threads"),
        ("await asyncio.to_thread(print)", "calls asyncio.to_thread(), which starts threads or processes"),
        ("await ctx.run_activity(lambda: 1, time.time())", "calls time.time(), which reads the clock"),
        ("x = [time.time() for _ in range(3)]", "calls time.time(), which reads the clock"),
        ("async def inner(): return time.time()\nx = await inner()", "calls time.time(), which reads the clock"),
        ("x = str(time.time()).upper()", "calls time.time(), which reads the clock"),
    ],
)
def test_what_is_not_deterministic_is_named_with_its_line_and_the_remedy(write: Write, body: str, what: str) -> None:
    agent, file = write(body)
    lines = problems(agent).splitlines()
    assert len(lines) == 1
    assert what in lines[0]
    assert "custom agent 'strayer'" in lines[0]
    assert "App(activities=[…])" in lines[0]
    assert "ctx.run_activity" in lines[0]
    place, _, _ = lines[0].partition(": ")
    name, _, number = place.rpartition(":")
    assert name == str(file)
    source = file.read_text().splitlines()[int(number) - 1]
    assert source.strip() in [line.strip() for line in body.splitlines()]


@pytest.mark.parametrize(
    "body",
    [
        "await asyncio.sleep(3)",
        "log.info('at %s', ctx.invocation_id)",
        "x = json.dumps({'a': re.sub('a', 'b', 'c')})",
        "x = datetime(2026, 1, 1) + timedelta(days=1)",
        "x = datetime.fromisoformat('2026-01-01').isoformat()",
        "x = uuid.UUID(int=3), uuid.uuid5(uuid.NAMESPACE_DNS, 'x')",
        "x = os.path.join('a', 'b') + os.sep + os.path.basename('a/b')",
        "x = Path('a') / 'b'\nname = x.name + str(x.with_suffix('.txt'))",
        "time = ctx.session.state.get('time')\nx = time.time()",
        "x = ctx.time.time() or ctx.now() or ctx.session.state['open']()",
        "def inner(open): return open()\nx = inner(print)",
        "x: datetime | None = None",
        "try:\n    pass\nexcept (OSError, TimeoutError, asyncio.TimeoutError) as error:\n    log.error(error)",
        "x = await ctx.run_activity(read, 'path')\nawait ctx.run_activity(time.time)",
        "x = isinstance(ctx.agent, (Path, random.Random))",
        "x = time.strptime('2026', '%Y')",
        "x = max(map(len, ['a']))",
        "ctx.set_agent_state(self.name, agent_state=Step())\nyield self._create_agent_state_event(ctx)",
        "async for event in ctx.run_agent(self.sub_agents[0]):\n    yield event",
    ],
)
def test_what_is_deterministic_passes(write: Write, body: str) -> None:
    before = """
    def read(path: str) -> str:
        return open(path).read() + str(time.time())

    class Step(BaseAgentState):
        step: int = 0
    """
    agent, _ = write(body, before=before)
    assert compile_app(App(name="app", root_agent=agent)).root.kind == "custom"


def test_what_the_agent_reaches_is_read_too(write: Write) -> None:
    before = """
    import functools

    def stamp():
        return deeper()

    def deeper():
        return time.time()

    def passing(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args)
        return wrapper

    @passing
    def decorated():
        return random.random()

    by_name = lambda x: uuid.uuid4()

    class Note(BaseAgentState):
        at: float = Field(default_factory=time.monotonic)

    class Helper:
        def help(self):
            return os.getpid()

    HELPER = Helper()
    """
    body = """
    x = self.step(stamp())
    decorated()
    sorted([], key=by_name)
    state = self._load_agent_state(ctx, Note)
    self.size
    Agent.shout()
    """
    after = """
    def step(self, x):
        return HELPER.help()

    @property
    def size(self):
        return date.today()

    @staticmethod
    def shout():
        return input()

    @classmethod
    def from_file(cls):
        return cls(name=open("x").read())
    """
    agent, _ = write(body, before=before, after=after)
    found = problems(agent)
    expected = (
        "time.time()",
        "random.random",
        "uuid.uuid4()",
        "time.monotonic",
        "os.getpid()",
        "date.today()",
        "input()",
    )
    assert [what for what in expected if what not in found] == []
    # `from_file` makes agents; the workflow never calls it.
    assert len(found.splitlines()) == len(expected)


def test_a_method_above_is_read_through_super(write: Write) -> None:
    before = """
    class Above(BaseAgent):
        clock: object = None

        def at(self):
            return now()
    """
    agent, file = write("x = self.at()", before=before)
    text = file.read_text().replace("class Agent(BaseAgent):", "class Agent(Above):")
    file.write_text(text + "    def at(self):\n        return super().at()\n")
    importlib.reload(sys.modules[type(agent).__module__])
    found = problems(sys.modules[type(agent).__module__].Agent(name="strayer"))
    assert "calls time.time()" in found


def test_an_agent_that_holds_something_impure_is_caught(write: Write) -> None:
    agent, file = write("x = self.rng.random()", after="rng: random.Random = Field(default_factory=random.Random)")
    assert f"{file}:" in problems(agent)


def test_a_module_of_the_users_is_followed_and_an_installed_one_is_not(write: Write, tmp_path: Path) -> None:
    (tmp_path / "stray_helpers.py").write_text("import time\n\ndef stamp():\n    return time.time()\n")
    try:
        agent, _ = write("x = stray_helpers.stamp()", before="import stray_helpers")
        assert f"{tmp_path / 'stray_helpers.py'}:4: custom agent" in problems(agent)
    finally:
        sys.modules.pop("stray_helpers", None)
    agent, _ = write("x = Event.model_validate_json(structlog.get_logger().name)", before="import structlog")
    assert compile_app(App(name="app", root_agent=agent)).root.kind == "custom"
