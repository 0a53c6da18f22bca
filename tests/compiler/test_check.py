"""What `perdure check` finds in the source of an app, and what it passes over."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from perdure.compiler.check.findings import Seen, UserCode
from perdure.compiler.check.hazards import hazards
from perdure.compiler.check.modules import app_modules, module_hazards

MODULES: dict[str, tuple[str, list[str]]] = {
    "dict": ("CARTS = {}\ndef f(k):\n    CARTS[k] = 1\n", ["module_state"]),
    "annotated": ("CARTS: dict[str, int] = {}\ndef f(k):\n    CARTS[k] += 1\n", ["module_state"]),
    "list": ("SEEN = list()\nasync def f(k):\n    SEEN.append(k)\n", ["module_state"]),
    "nested": (
        "import collections\nA = collections.defaultdict(list)\ndef f(k):\n    A[k].append(1)\n",
        ["module_state"],
    ),
    "deleted": ("A = {}\ndef f(k):\n    del A[k]\n", ["module_state"]),
    "global": ("COUNT = 0\ndef f():\n    global COUNT\n    COUNT += 1\n", ["module_state"]),
    "method": ("A = set()\nclass C:\n    def f(self):\n        A.add(1)\n", ["module_state"]),
    "told once": ("A = []\ndef f():\n    A.append(1)\ndef g():\n    A.append(2)\n", ["module_state"]),
    "constant": ("PRICES = {'a': 1}\ndef f(k):\n    return PRICES[k]\n", []),
    "a copy": ("PRICES = {'a': 1}\ndef f():\n    PRICES = {}\n    PRICES['b'] = 2\n    return PRICES\n", []),
    "a parameter": ("A = []\ndef f(A):\n    A.append(1)\n", []),
    "at import": ("A = []\nA.append(1)\n", []),
    "another's method": ("A = {}\ndef f(b):\n    b.A.update({})\n", []),
    "client": ("from google import genai\nclient = genai.Client(api_key='k')\n", ["client_at_import"]),
    "in a call": ("import httpx\nrun = print(httpx.AsyncClient())\n", ["client_at_import"]),
    "engine": ("import sqlalchemy\nE = sqlalchemy.create_engine('sqlite://')\n", ["client_at_import"]),
    "connect": ("import sqlite3\nDB = sqlite3.connect(':memory:')\n", ["client_at_import"]),
    "boto": ("import boto3\nS3 = boto3.client('s3')\n", ["client_at_import"]),
    "in a function": ("import httpx\ndef f():\n    return httpx.Client()\n", []),
    "a toolset": ("t = McpToolset(connection_params=StdioConnectionParams())\n", []),
    "own connect": ("def connect():\n    pass\nconnect()\n", []),
}


@pytest.mark.parametrize("case", MODULES)
def test_a_module_is_read_for_state_and_connections(case: str, tmp_path: Path) -> None:
    source, kinds = MODULES[case]
    file = tmp_path / "module.py"
    file.write_text(source)
    assert [hazard.kind for hazard in module_hazards(file)] == kinds


FUNCTIONS: dict[str, tuple[str, list[str], list[str]]] = {
    "clock": ("import time\ndef f():\n    return time.time()\n", ["clock_or_randomness"], []),
    "another name": ("from datetime import datetime as d\ndef f():\n    d.now()\n", ["clock_or_randomness"], []),
    "uuid": ("import uuid\nasync def f():\n    uuid.uuid4()\n", ["clock_or_randomness"], []),
    "random": ("import random\ndef f():\n    random.choice([1])\n", ["clock_or_randomness"], []),
    "behind": ("import time\ndef g():\n    time.time()\ndef f():\n    g()\n", ["clock_or_randomness"], []),
    "a date that is given": ("import datetime\ndef f(d):\n    return datetime.datetime.fromisoformat(d)\n", [], []),
    "mentioned": ("import time\ndef f():\n    return time.time\n", [], []),
    "genai": ("def f(c):\n    c.models.generate_content(model='m')\n", [], ["own_model_calls"]),
    "openai": ("def f(c):\n    c.chat.completions.create()\n", [], ["own_model_calls"]),
    "runner": ("from google.adk.runners import Runner as R\ndef f():\n    R()\n", [], ["own_model_calls"]),
    "another runner": ("class Runner:\n    pass\ndef f():\n    Runner()\n", [], []),
    "memory": (
        "async def f(c):\n    await c.add_session_to_memory()\n",
        ["in_memory_memory"],
        ["in_memory_memory"],
    ),
    "node": ("async def f(c):\n    await c.run_node(len)\n", ["own_nodes"], []),
    "credential": ("def f(c):\n    c.request_credential(1)\n", ["credentials"], ["credentials"]),
    "nothing": ("def f(c):\n    return len(c)\n", [], []),
}
"""By case: source of a function `f`, what is said of it as a callback, and as a tool."""


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType]
    name = "module_that_is_checked"

    def load(source: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield load
    sys.modules.pop(name, None)


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_function_is_read_for_what_is_not_recorded(case: str, imported: Callable[[str], ModuleType]) -> None:
    source, as_callback, as_tool = FUNCTIONS[case]
    function = imported(source).f
    for role, kinds in (("callback", as_callback), ("tool", as_tool)):
        found = hazards(Seen(code=[UserCode(role, "f", function)]), None)  # pyright: ignore[reportArgumentType]
        assert [hazard.kind for hazard in found] == kinds


def test_the_modules_of_an_app_are_those_in_its_folder(imported: Callable[[str], ModuleType], tmp_path: Path) -> None:
    imported("A = 1\n")
    (tmp_path / "not_imported.py").write_text("A = 1\n")
    assert [file.name for file in app_modules(tmp_path)] == ["module_that_is_checked.py"]
