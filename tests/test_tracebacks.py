"""Tracebacks for those who wrote the code: their frames, and a line for the others'."""

from __future__ import annotations

import asyncio
import json
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from perdure import tracebacks
from perdure.steps.user_code import CodeRunner
from perdure.tracebacks import Raised, folded, folded_error, is_of_app

HERE = __file__
PACKAGE = Path(tracebacks.__file__).parent


@pytest.mark.parametrize(
    ("file", "of_app"),
    [
        ("/home/ann/travel/agent.py", True),
        ("/home/ann/lib/agent.py", True),
        ("/home/ann/perdure/agents/travel/agent.py", True),
        ("C:\\Users\\ann\\travel\\agent.py", True),
        ("/srv/app/.venv/lib/python3.12/site-packages/perdure/steps/user_code.py", False),
        ("/srv/app/.venv/lib/python3.12/site-packages/httpx/_client.py", False),
        ("C:\\app\\.venv\\Lib\\site-packages\\httpx\\_client.py", False),
        ("/usr/lib/python3/dist-packages/six.py", False),
        ("/usr/lib/python3.11/asyncio/tasks.py", False),
        ("/opt/python/lib/python3.13t/threading.py", False),
        (json.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        (str(PACKAGE / "steps" / "user_code.py"), False),
        ("/elsewhere/perdure/perdure/steps/user_code.py", False),
    ],
)
def test_a_path_tells_whose_a_frame_is(file: str, of_app: bool) -> None:
    """Also on another machine, with another Python, and where Perdure is a checkout."""
    assert is_of_app(file) is of_app


def fails() -> None:
    raise ValueError("no flight to Atlantis")


def fails_with_a_cause() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        raise LookupError("the table is broken") from error


async def run_by_perdure(code: Callable[[], None]) -> str:
    runner = CodeRunner("test", 1)
    try:
        await runner.run(code)
    except Exception as error:
        return folded_error(error)
    finally:
        runner.close()
    return ""


def lines_of(text: str) -> list[str]:
    return [line.replace(HERE, "HERE") for line in text.splitlines() if not set(line.strip()) <= {"^", "~"}]


def test_the_authors_frames_stand_first_and_the_others_are_counted() -> None:
    told = lines_of(asyncio.run(run_by_perdure(fails)))
    assert told[0] == "ValueError: no flight to Atlantis"
    assert [line.partition(", line")[0] for line in told if line.startswith("  File")] == ['  File "HERE"'] * 2
    assert told[-2] == '    raise ValueError("no flight to Atlantis")'
    assert told[-1].startswith("  … ")
    assert "of perdure" in told[-1]


def test_each_cause_is_told_with_its_frames() -> None:
    told = lines_of(asyncio.run(run_by_perdure(fails_with_a_cause)))
    [cause] = [number for number, line in enumerate(told) if line.startswith("caused by ")]
    assert told[0] == "LookupError: the table is broken"
    assert told[cause].startswith("caused by json.decoder.JSONDecodeError: Expecting property name")
    assert '    json.loads("{")' in told[cause:]
    assert told[-1].endswith("of python")


def test_of_a_syntax_error_the_place_in_the_source_is_told(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("root_agent = (\n")
    with pytest.raises(SyntaxError) as caught:
        compile(file.read_text(), str(file), "exec")
    told = folded_error(caught.value).splitlines()
    assert told[0] == "SyntaxError: '(' was never closed"
    assert f'  File "{file}", line 1' in told


def test_where_nobody_wrote_the_code_the_innermost_library_is_told() -> None:
    packages = sysconfig.get_path("purelib")
    stack = textwrap.indent(
        f'File "{PACKAGE}/steps/user_code.py", line 1, in run\n'
        f'File "{packages}/google/genai/client.py", line 2, in call\n'
        f'File "{packages}/httpx/_client.py", line 3, in send\n'
        'File "/usr/lib/python3.11/ssl.py", line 4, in read\n',
        "  ",
    )
    assert folded([Raised("OSError: gone", stack)]).splitlines() == [
        "OSError: gone",
        f'  File "{packages}/httpx/_client.py", line 3, in send',
        "  … 1 frame of perdure, 1 of google.genai, 1 of python",
    ]


def test_a_stack_that_was_cut_begins_with_its_first_whole_frame() -> None:
    stack = 'ghts.find(city)\n  File "/home/ann/agent.py", line 3, in look\n    return TABLE[city]\n'
    assert folded([Raised("KeyError: 'x'", stack)]).splitlines() == [
        "KeyError: 'x'",
        '  File "/home/ann/agent.py", line 3, in look',
        "    return TABLE[city]",
    ]


def test_an_exception_that_is_its_own_cause_has_an_end() -> None:
    error = ValueError("x")
    error.__cause__ = error
    assert folded_error(error) == "ValueError: x"


def test_a_library_that_calls_back_is_between_the_authors_frames() -> None:
    def check(value: object) -> object:
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        list(map(check, TypeAdapter(list[int]).validate_python([1])))
    told = folded_error(caught.value)
    assert told.count(HERE) == 2


@pytest.mark.parametrize(
    ("outer", "told"),
    [
        ("ApplicationError: ModelError: no key", ["perdure.errors.ModelError: no key"]),
        (
            "ApplicationError: the step failed",
            ["ApplicationError: the step failed", "perdure.errors.ModelError: no key"],
        ),
    ],
)
def test_what_only_repeats_its_cause_is_not_told(outer: str, told: list[str]) -> None:
    said = folded([Raised(outer), Raised("perdure.errors.ModelError: no key")])
    assert said == "\ncaused by ".join(told)


def test_of_types_alone_none_repeats_another() -> None:
    assert folded([Raised("LookupError"), Raised("ValueError")]) == "LookupError\ncaused by ValueError"
