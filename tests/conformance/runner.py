"""Runs one scenario through the real client, worker and server, and compares what came out."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from google.genai import types
from temporalio.client import Client
from temporalio.worker import Worker

from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.errors import DefinitionWarning, InvocationFailed, RequestRefused
from perdure.journal.events import USER, Event, user_content
from perdure.messages.keys import SessionKey
from perdure.messages.session import Trial
from perdure.prove.scenario import Answer, Turn
from perdure.worker import create_workers
from tests.conformance.build import ScenarioApp, ScenarioError, ScenarioParts
from tests.conformance.normal_form import FAILED, Item, call_ids, diff, normalize_log
from tests.conformance.scenario import Scenario
from tests.trajectories.found_runs import check_runs
from tests.views.told_steps import check_told
from tests.workflows.support import read_entries

Mode = Literal["live", "re-enter"]
"""`re-enter` drops an invocation's coroutines at every pause."""

AnyScenarioApp = ScenarioParts[Any]
Build = Callable[[Scenario, str], AnyScenarioApp]
"""Makes an app of a scenario, under a name."""

TIMEOUT = 60.0
"""Seconds that a scenario may take. One that hangs has failed."""

TOLD_WRONG = "explain told of another step than came"

_numbers = count(1)


@dataclass
class Outcome:
    """What a scenario left behind."""

    turns: list[list[Event]] = field(default_factory=list[list[Event]])
    failed: list[bool] = field(default_factory=list[bool])
    """Whether each turn failed or was refused."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    requests: dict[str, list[list[Item]]] = field(default_factory=dict[str, list[list[Item]]])
    tool_runs: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    """What went wrong beside the log: a script not used up, a turn that could not be taken, a time-out."""


async def run_scenario(
    scenario: Scenario, client: Client, *, mode: Mode = "live", cached: bool = True, build: Build = ScenarioApp
) -> list[str]:
    """Run a scenario and return how it differs from what it expects: lines of a readable diff, empty if it does not.

    Raises:
        ScenarioError: The scenario cannot be built.
        DefinitionError: Perdure does not take its agent tree.
    """
    return compare(scenario, await play(scenario, client, mode=mode, cached=cached, build=build))


async def play(
    scenario: Scenario, client: Client, *, mode: Mode = "live", cached: bool = True, build: Build = ScenarioApp
) -> Outcome:
    """Run a scenario and return what it left behind.

    Args:
        scenario: The scenario.
        client: A client of the server.
        mode: Whether pauses are live awaits or re-entries.
        cached: Keep workflows in memory; if not, each of their tasks replays the whole history.
        build: Makes the app; by default of Perdure's own agents.
    """
    # Names of apps are those of task queues, which scenarios that run at the same time must not share.
    built = build(scenario, f"{scenario.app.name}_{next(_numbers)}")
    worker = _worker(built, client, cached=cached)
    session = _Session(built, client, Runner(built.app.name, client, trial=Trial(reenter=mode == "re-enter")))
    try:
        async with worker, asyncio.timeout(TIMEOUT):
            await session.play(scenario)
    except TimeoutError:
        session.outcome.problems.append(f"turn {len(session.outcome.turns) + 1} was not over after {TIMEOUT:.0f} s")
    except ScenarioError as error:
        session.outcome.problems.append(str(error))
    outcome = session.outcome
    outcome.tool_runs = built.tool_runs
    for agent, model in built.models.items():
        outcome.requests[agent] = model.requests
        outcome.problems += model.problems + model.leftover()
    return outcome


def _worker(built: AnyScenarioApp, client: Client, *, cached: bool) -> Worker:
    config = WorkerConfig() if cached else WorkerConfig(max_cached_workflows=0)
    with warnings.catch_warnings():
        # A scenario's loop may well have no exit but its script.
        warnings.simplefilter("ignore", DefinitionWarning)
        (worker,) = create_workers(client, [built.app], config)
    return worker


class _Session:
    """The user of a scenario, and what that user sees."""

    def __init__(self, built: AnyScenarioApp, client: Client, runner: Runner) -> None:
        self._client = client
        self.outcome = Outcome()
        self._built = built
        self._runner = runner
        self._who: dict[str, Any] = {"user_id": "u", "session_id": "s"}

    async def play(self, scenario: Scenario) -> None:
        await self._runner.create_session(**self._who, state=scenario.state)
        for number, turn in enumerate(scenario.turns, start=1):
            failed = False
            try:
                await self._take(turn, number)
            except (InvocationFailed, RequestRefused):
                failed = True
            before = sum(len(events) for events in self.outcome.turns)
            self.outcome.turns.append([event async for event in self._runner.events(**self._who, since=before)])
            self.outcome.failed.append(failed)
        self.outcome.state = (await self._runner.get_session(**self._who)).state
        try:
            key = SessionKey(self._built.app.name, self._who["user_id"], self._who["session_id"])
            entries = await read_entries(self._client.get_workflow_handle(key.workflow_id))
            check_told(entries)
            check_runs(entries)
        except AssertionError as wrong:
            self.outcome.problems.append(f"{TOLD_WRONG}: {wrong}")

    async def _take(self, turn: Turn, number: int) -> None:
        log = [event for events in self.outcome.turns for event in events]
        what: dict[str, Any]
        if turn.message is not None:
            what = {"new_message": user_content(turn.message)}
        elif turn.respond is not None:
            parts = [_response(answer, log, number) for answer in turn.respond]
            what = {"new_message": types.Content(role=USER, parts=parts)}
        elif turn.resume is not None:
            what = {"invocation_id": _invocation(turn.resume.invocation, log, number)}
        else:
            raise ScenarioError(f"turn {number} has neither message nor respond nor resume")
        async for _ in self._runner.run_async(**self._who, **what):
            # What the turn logged is read from the log.
            pass


def _response(answer: Answer, log: Sequence[Event], turn: int) -> types.Part:
    ids = call_ids(log, answer.call)
    if not 1 <= answer.occurrence <= len(ids):
        raise ScenarioError(
            f"turn {turn} answers call {answer.occurrence} of {answer.call!r}, but the log holds {len(ids)} of them"
        )
    return types.Part(
        function_response=types.FunctionResponse(
            id=ids[answer.occurrence - 1], name=answer.call, response=answer.response
        )
    )


def _invocation(number: int, log: Sequence[Event], turn: int) -> str:
    ids = list(dict.fromkeys(event.invocation_id for event in log))
    if not 1 <= number <= len(ids):
        raise ScenarioError(f"turn {turn} resumes invocation {number}, but the log holds {len(ids)} of them")
    return ids[number - 1]


def compare(scenario: Scenario, outcome: Outcome) -> list[str]:
    """Return how an outcome differs from what its scenario expects; empty if it does not."""
    expect = scenario.expect
    lines = list(outcome.problems)
    authors = scenario.authors if scenario.compare == "per_author" else None
    turns = normalize_log(outcome.turns, authors)
    for turn, failed in zip(turns, outcome.failed, strict=True):
        if failed:
            turn.append(FAILED)
    if len(turns) != len(expect.turns):
        lines.append(f"{len(turns)} turns were taken, expected {len(expect.turns)}")
    for number in range(max(len(turns), len(expect.turns))):
        lines += _section(f"turn {number + 1}", _at(expect.turns, number), _at(turns, number))
    for agent, expected in expect.requests.items():
        actual = outcome.requests.get(agent, [])
        for number in range(max(len(expected), len(actual))):
            title = f"model call {number + 1} of {agent}"
            lines += _section(title, _at(expected, number), _at(actual, number))
    state = {key: value for key, value in outcome.state.items() if not key.startswith("temp:")}
    lines += _section("final state", [expect.final_state], [state])
    return lines + _compare_runs(expect.tool_runs, outcome.tool_runs)


def _compare_runs(expected: dict[str, int | tuple[int, int]], actual: Counter[str]) -> list[str]:
    lines: list[str] = []
    for tool in sorted({*expected, *actual}):
        wanted = expected.get(tool, 0)
        least, most = wanted if isinstance(wanted, tuple) else (wanted, wanted)
        if not least <= actual[tool] <= most:
            runs = f"{least}" if least == most else f"{least} to {most}"
            lines.append(f"tool {tool} ran {actual[tool]} times, expected {runs}")
    return lines


def _section(title: str, expected: Sequence[Any], actual: Sequence[Any]) -> list[str]:
    lines = diff(expected, actual)
    return [f"{title} (- expected, + actual):", *(f"  {line}" for line in lines)] if lines else []


def _at(items: Sequence[Sequence[Any]], index: int) -> Sequence[Any]:
    return items[index] if index < len(items) else []
