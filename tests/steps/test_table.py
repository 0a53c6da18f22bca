"""The seam between activities and steps: an implementation that knows no agent answers every step out of a table."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.activities.journal_cache import JournalCache
from perdure.activities.plan import SearchAttributes
from perdure.agents import App, FunctionTool, LongRunningFunctionTool, ResumabilityConfig
from perdure.compiler.registry import register
from perdure.config import WorkerConfig
from perdure.errors import DefinitionError, ModelError
from perdure.journal.events import Event, EventActions
from perdure.journal.tool_output import ToolOutput
from perdure.messages.step_log import NextCall
from perdure.steps.base import Callback, ModelCall, Place, Snapshot, StepOutput, ToolCall
from perdure.steps.tool_results import ToolResults
from perdure.steps.user_code import CodeRunner
from perdure.streams.drafts import Drafts
from perdure.streams.hub import TokenHub, Writer
from perdure.temporal.payloads import adapt
from perdure.worker import SharedByWorkers, worker_with_steps
from tests.activities.exit_agents import Acting, act
from tests.workflows.support import ONCE, User, agent, make_app

pytestmark = pytest.mark.server

Row = tuple[str, str, str]
"""What a step is (model, tool, reconcile, remind, function), whose, and which of its kind or which tool."""


class TableSteps:
    """Implements `Steps` without any of the agents' code."""

    def __init__(self, table: Mapping[Row, Any]) -> None:
        self.table = table
        self.taken: list[Row] = []
        self.keys: set[str] = set()

    def _take(self, *row: str) -> Any:
        kind, whose, which = row
        self.taken.append((kind, whose, which))
        found = self.table[kind, whose, which]
        if isinstance(found, Iterator):
            found = next(cast(Iterator[Any], found))
        if isinstance(found, Exception):
            raise found
        return found

    async def call_model(self, at: Place, session: Snapshot, call: ModelCall, writer: Writer | None) -> StepOutput:
        assert session.projection.events[-1].content is not None
        return StepOutput(events=(self._take("model", at.agent, str(call.index)),))

    def prepare_model_call(self, at: Place, session: Snapshot, call: ModelCall) -> None: ...

    async def callback(
        self,
        at: Place,
        session: Snapshot,
        which: Callback,
        event: Event | None = None,
        drafts: Drafts | None = None,
    ) -> StepOutput:
        return self._take(which, at.agent, which)

    async def authorize(self, at: Place, session: Snapshot, requests: Sequence[str]) -> StepOutput:
        return self._take("authorize", at.agent, ",".join(requests))

    async def run_tool(self, at: Place, call: ToolCall) -> ToolOutput:
        await call.begin(False)
        self.keys.add(call.key)
        return self._take("tool", at.agent, call.tool)

    async def reconcile(self, at: Place, call: ToolCall) -> ToolOutput:
        return self._take("reconcile", at.agent, call.tool)

    async def remind(self, at: Place, call: ToolCall) -> None:
        self._take("remind", at.agent, call.tool)

    async def run_function(self, at: Place, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._take("function", at.agent, name)


def never() -> None:
    """Do nothing that a table would know of."""
    raise AssertionError("no code of the agents runs")


def answer(*parts: types.Part) -> Event:
    return Event(content=types.Content(role="model", parts=list(parts)))


def call(name: str, call_id: str) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=call_id, name=name, args={}))


@asynccontextmanager
async def served(client: Client, app: App, steps: TableSteps) -> AsyncGenerator[User]:
    config = WorkerConfig(graceful_shutdown_timeout=timedelta(milliseconds=100))
    client = adapt(client)
    journals = JournalCache(client, config.journal_cache_bytes)
    shared = SharedByWorkers(client, config, journals, SearchAttributes(client), TokenHub())
    code = CodeRunner("unused", 1)
    async with worker_with_steps(shared, register(app), steps, ToolResults(code, None)):
        yield User(client, app.name)
    code.close()


async def test_every_step_of_a_turn_is_taken_up_and_logged(client: Client, app_name: str) -> None:
    look, wait = FunctionTool(never, retry=ONCE), LongRunningFunctionTool(never, retry=ONCE)
    look.name, wait.name = "look", "wait"
    app = make_app(app_name, agent("clerk", [], [look, wait]))
    steps = TableSteps(
        {
            ("model", "clerk", "0"): answer(call("look", "c1"), call("wait", "c2")),
            ("tool", "clerk", "look"): ToolOutput(result={"seen": 1}, actions=EventActions(state_delta={"k": "v"})),
            ("tool", "clerk", "wait"): ToolOutput(),
            ("model", "clerk", "1"): answer(types.Part(text="done")),
        }
    )
    async with served(client, app, steps) as user:
        await user.create()
        waiting = await user.run("go")
        assert waiting.status == "waiting", waiting.failures
        [open_call] = waiting.pending
        assert (open_call.id, open_call.name) == ("c2", "wait")
        done = await user.answered({"c2": {"ok": True}})
        assert done.status == "finished", done.failures
        assert (await user.view()).state["k"] == "v"
        assert [event.text for event in await user.events() if event.text][-1] == "done"
    # An answer is an event of its own, so the model is asked once it is there.
    assert sorted(steps.taken) == sorted(steps.table)
    assert len(steps.keys) == 2


async def test_a_function_of_a_custom_agent_is_a_step(client: Client, app_name: str) -> None:
    app = App(
        name=app_name,
        root_agent=Acting(name="asks"),
        activities=[act],
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    asked = NextCall(name="act", args=("StopIteration",), arguments="digest")
    code = iter((StepOutput(calls=(asked,)), StepOutput()))
    steps = TableSteps({("function", "asks", "act"): None, ("run", "asks", "run"): code})
    async with served(client, app, steps) as user:
        await user.create()
        # The function itself would raise.
        done = await user.run("StopIteration")
        assert done.status == "finished", done.failures
        assert steps.taken == [("run", "asks", "run"), ("function", "asks", "act"), ("run", "asks", "run")]


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ModelError("no more of it", retryable=False), 1),
        (DefinitionError("this cannot be asked"), 1),
        (KeyError("a defect"), 3),
    ],
)
async def test_a_steps_failure_is_told_by_its_own_words(
    client: Client, app_name: str, error: Exception, tries: int
) -> None:
    steps = TableSteps({("model", "clerk", "0"): error})
    async with served(client, make_app(app_name, agent("clerk", [])), steps) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert str(error) in failed.failures[0].cause
        assert len(steps.taken) == tries
