"""`build_contents` against the requests that the conformance scenarios pin down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.journal.events import REQUEST_CONFIRMATION, Event
from perdure.steps.prompt import build_contents
from tests.conformance.logs import all_scenarios, expected_turns
from tests.conformance.normal_form import normalize_request
from tests.conformance.scenario import LlmSpec, Scenario

PINNED = [
    scenario
    for scenario in all_scenarios()
    if scenario.expect.requests
    # What is asked for again stands in no log; the scenario runner looks at these requests.
    and not any(
        "finish_reason" in step for agent in scenario.agents if isinstance(agent, LlmSpec) for step in agent.script
    )
]


@dataclass(frozen=True)
class ModelCall:
    """A model call of a scenario: who made it, on what branch, and the log at that time."""

    agent: str
    index: int
    branch: str | None
    events: list[Event]


def model_calls(scenario: Scenario) -> Iterator[ModelCall]:
    """Yield the model calls that a scenario's log shows, failing ones too."""
    scripts = {agent.name: agent.script for agent in scenario.agents if isinstance(agent, LlmSpec)}
    branches: dict[str, str | None] = {}
    counts = dict.fromkeys(scripts, 0)
    log: list[Event] = []
    for turn, items in zip(expected_turns(scenario), scenario.expect.turns, strict=True):
        for event in turn:
            if event.author in scripts and is_model_answer(event):
                yield ModelCall(event.author, counts[event.author], event.branch, list(log))
                counts[event.author] += 1
            if event.author != "user":
                branches[event.author] = event.branch
            log.append(event)
        if {"failed": True} in items and not lacks_response(turn):
            # Models failed at the end of this turn; other branches are invisible, so when exactly does not matter.
            for agent, script in scripts.items():
                index = counts[agent]
                if index < len(script) and "error" in script[index]:
                    yield ModelCall(agent, index, branches.get(agent), list(log))
                    counts[agent] += 1


def is_model_answer(event: Event) -> bool:
    calls = event.get_function_calls()
    asks = any(call.name == REQUEST_CONFIRMATION for call in calls)
    return bool(event.parts) and not event.get_function_responses() and not asks


def lacks_response(turn: list[Event]) -> bool:
    """Return whether a turn ends with calls whose tools have failed."""
    called = {call.id for event in turn for call in event.get_function_calls()}
    responded = {response.id for event in turn for response in event.get_function_responses()}
    waiting = {call_id for event in turn for call_id in event.long_running_tool_ids or ()}
    return bool(called - responded - waiting)


@pytest.mark.parametrize("scenario", PINNED, ids=lambda scenario: scenario.name)
def test_model_sees_what_the_scenario_pins_down(scenario: Scenario) -> None:
    specs = {agent.name: agent for agent in scenario.agents if isinstance(agent, LlmSpec)}
    seen: dict[str, list[list[dict[str, Any]]]] = {agent: [] for agent in scenario.expect.requests}
    for call in model_calls(scenario):
        if call.agent in seen:
            contents = build_contents(
                call.events,
                agent=call.agent,
                branch=call.branch,
                include_contents=specs[call.agent].include_contents,
            )
            seen[call.agent].append(normalize_request(contents))
    assert seen == scenario.expect.requests


def test_scenarios_pin_requests_down() -> None:
    """Guards against a folder that was not found."""
    assert len(PINNED) >= 50
    assert sum(len(calls) for scenario in PINNED for calls in scenario.expect.requests.values()) >= 150
