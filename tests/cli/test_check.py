"""`perdure check`: rows, exit codes, JSON; one app that cannot be imported beside others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli import run_command

NATIVE = """
from perdure import App, FunctionTool, LlmAgent, ScriptedModel

def pay(amount: int) -> str:
    '''Pay.'''
    return "paid"

app = App(name="native_shop", root_agent=LlmAgent(name="clerk", model=ScriptedModel([]), tools=[pay]))
"""
REFUSED = NATIVE.replace("tools=[pay]", "tools=[pay, pay]").replace("native_shop", "refused_shop")
HAZARDOUS = (
    NATIVE.replace("return", "PAID.append(amount); return").replace("native_shop", "hazardous_shop") + "PAID = []\n"
)


CUSTOM = """
import time
from perdure import App, BaseAgent, Event

class Late(BaseAgent):
    async def _run_async_impl(self, ctx):
        yield Event(author=self.name, timestamp=time.time())

app = App(name="late_shop", root_agent=Late(name="late"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, source in (
        ("native_shop", NATIVE),
        ("refused_shop", REFUSED),
        ("hazardous_shop", HAZARDOUS),
        ("late_shop", CUSTOM),
        ("broken_shop", "import nothing_of_this_name\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("_shop")]:
        del sys.modules[name]


def test_what_is_durable_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", "native_shop"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "native_shop: 2 durable",
        "  durable  clerk  LlmAgent",
        "  durable    pay  function tool",
    ]


def test_hazards_pass_too_and_are_told_with_their_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", "hazardous_shop"]) == 0
    told = capsys.readouterr().out
    assert "hazardous_shop: 2 durable, 1 hazard" in told
    assert "hazard   hazardous_shop/agent.py:6: pay() changes PAID" in told
    assert "remedy: keep it in the session's state" in told


def test_a_custom_agents_code_is_read_for_what_differs_the_second_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["check", "late_shop"]) == 0
    told = capsys.readouterr().out
    assert "hazard   late_shop/agent.py:7: the code of agent 'late' calls time.time(), which reads the clock" in told


def test_each_app_of_a_folder_is_told_of_and_one_that_is_refused_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["check", "--json", str(folder)]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(app["app"], app.get("refused") is not None) for app in told] == [
        ("broken_shop", True),
        ("hazardous_shop", False),
        ("late_shop", False),
        ("native_shop", False),
        ("refused_shop", True),
    ]
    assert "nothing_of_this_name" in told[0]["refused"]
    assert [part["path"] for part in told[3]["parts"]] == ["clerk", "clerk/pay"]
    assert [hazard["kind"] for hazard in told[1]["hazards"]] == ["module_state"]


def test_what_cannot_be_imported_is_told_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", "broken_shop"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("refused  broken_shop\n")
    assert "ModuleNotFoundError" in told or "no module" in told
