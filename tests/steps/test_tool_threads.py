"""Code of the user's runs in threads, also that of types and values; what is JSON already needs none."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from temporalio.client import Client

from perdure.agents import App
from perdure.agents.tools import FunctionTool, ToolContext
from perdure.steps.user_code import CodeRunner, runs_user_code
from tests.workflows.support import agent, calls, serving, text

pytestmark = pytest.mark.server


@dataclass
class Where:
    """Which code ran, and whether the thread was one for user code."""

    ran: dict[str, bool] = field(default_factory=dict[str, bool])
    jobs: list[str] = field(default_factory=list[str])
    """What was run in such a thread, by `CodeRunner`."""

    def note(self, what: str) -> None:
        self.ran[what] = runs_user_code() and threading.current_thread() is not threading.main_thread()


WHERE = Where()


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> Where:
    WHERE.ran.clear()
    WHERE.jobs.clear()
    run, run_until = CodeRunner.run, CodeRunner.run_until

    async def noted_run(self: CodeRunner, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        WHERE.jobs.append(fn.__name__)
        return await run(self, fn, *args, **kwargs)

    async def noted_run_until(self: CodeRunner, end: float, fn: Any, /, *args: Any) -> Any:
        WHERE.jobs.append(fn.__name__)
        return await run_until(self, end, fn, *args)

    monkeypatch.setattr(CodeRunner, "run", noted_run)
    monkeypatch.setattr(CodeRunner, "run_until", noted_run_until)
    return WHERE


def noted(value: int) -> int:
    WHERE.note("validator")
    return value


async def run(client: Client, name: str, fn: Any) -> list[dict[str, Any] | None]:
    clerk = agent("clerk", [calls(fn.__name__, number=3), text("done")], [FunctionTool(fn)])
    async with serving(client, App(name=name, root_agent=clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        return [one.response for event in await user.events() for one in event.get_function_responses()]


async def test_a_tool_of_plain_json_is_one_job_of_a_thread(client: Client, app_name: str, where: Where) -> None:
    def look(number: int, tool_context: ToolContext, kind: str | None = None) -> dict[str, Any]:
        """Look."""
        where.note("function")
        tool_context.state["seen"] = [number, kind]
        return {"found": number}

    assert await run(client, app_name, look) == [{"found": 3}]
    assert where.ran == {"function": True}
    assert where.jobs == ["look"]


async def test_types_and_values_of_the_users_are_read_in_threads_too(
    client: Client, app_name: str, where: Where
) -> None:
    class Found(dict[str, Any]):
        def items(self) -> Any:
            where.note("result")
            return super().items()

    def look(number: Annotated[int, AfterValidator(noted)]) -> Any:
        """Look."""
        where.note("function")
        return Found(found=number)

    assert await run(client, app_name, look) == [{"found": 3}]
    assert where.ran == {"validator": True, "function": True, "result": True}
    assert where.jobs == ["bind", "look", "_Given"]


@pytest.mark.parametrize("written", [{1, 2}, "x" * 30_000], ids=["a set", "a long text"])
async def test_what_a_tool_writes_is_read_in_a_thread_unless_it_is_small_json(
    client: Client, app_name: str, where: Where, written: Any
) -> None:
    def look(number: int, tool_context: ToolContext) -> int:
        """Look."""
        tool_context.state["seen"] = written
        return number

    assert await run(client, app_name, look) == [{"result": 3}]
    assert where.jobs == ["look", "_Given"]
