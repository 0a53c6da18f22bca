"""What a tool returned and the log takes: at the edge of what that is, too, nothing is refused behind the tool."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from perdure.activities.payload_checks import check_size
from perdure.journal.nesting import MAX_LEVELS
from perdure.journal.tool_output import LocalCall, RunTimes, ToolOutput
from perdure.messages.keys import SessionKey
from perdure.rules.bounds import MAX_RESULT_VALUES
from perdure.steps.base import Place, ToolCall
from perdure.steps.tool_results import ToolResults
from perdure.steps.user_code import CodeRunner
from tests.agents.test_tools import context

AT = Place(SessionKey("app", "u", "s"), "e-1", "clerk")


@pytest.fixture
async def results() -> AsyncGenerator[ToolResults]:
    code = CodeRunner("results", 2)
    yield ToolResults(code, None)
    code.close()


def happened(result: Any) -> dict[str, Any]:
    return {"happened": True, "result": result}


async def output(results: ToolResults, result: Any, state: Any = None, *, wraps: bool = False) -> ToolOutput:
    given = context()
    if state is not None:
        given.state["x"] = state
    call = ToolCall(id="c", tool="look", args={}, key="k", state={})
    if not wraps:
        return await results.output(AT, call, result, given)
    return await results.output(AT, call, result, given, wrapped=happened)


def many(number: int) -> list[Any]:
    return [[] for _ in range(number)]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


EDGES = [
    *[(many, MAX_RESULT_VALUES + number) for number in (-14, -11, -10, -9, -4, -2, -1, 0, 1)],
    *[(deep, MAX_LEVELS + number) for number in range(-4, 3)],
]


@pytest.mark.parametrize(("make", "number"), EDGES)
@pytest.mark.parametrize("where", ["result", "state", "wrapped"])
async def test_whatever_is_given_is_taken_behind_the_tool(
    results: ToolResults, make: Callable[[int], Any], number: int, where: str
) -> None:
    value = make(number)
    given = (None, value) if where == "state" else (value, None)
    found = await output(results, *given, wraps=where == "wrapped")
    times, local = RunTimes(started=1.0, ended=2.0), LocalCall(invocation_id="e-1", call_id="c")
    check_size(found.model_copy(update={"times": times, "call": local}), "the result")


@pytest.mark.parametrize("value", [many(49_000), deep(MAX_LEVELS // 2)])
async def test_what_is_far_from_the_edge_is_given_whole(results: ToolResults, value: Any) -> None:
    found = await output(results, value, value)
    assert (found.result, found.actions.state_delta) == (value, {"x": value})
