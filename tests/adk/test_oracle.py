"""Apps as ADK's users write them, served by `perdure dev`, leave what they left on ADK itself."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

import pytest

from tests.adk.oracle import comparing
from tests.adk.oracle.check import APPS, Result, check, recorded_truth
from tests.adk.oracle.values import Json

KILLED = ("travel_concierge",)
"""Apps that are also killed in each turn: agents as tools, two of them at once."""


def failures(results: list[Result]) -> list[str]:
    return [f"{one.app}: {line}" for one in results for line in (*one.differences, one.passed_over) if line]


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
async def test_apps_leave_the_same_as_on_adk() -> None:
    """Events, states, artifacts, effects and model requests, the server killed and started again between turns."""
    results = await asyncio.to_thread(check)
    assert failures(results) == []
    assert len(results) == 10


@pytest.mark.server
@pytest.mark.process
@pytest.mark.timeout(300)
async def test_a_turn_whose_server_is_killed_ends_by_itself_with_nothing_lost_and_nothing_twice() -> None:
    results = await asyncio.to_thread(check, names=KILLED, kill=("model", 1))
    assert failures(results) == []
    assert [one.kills for one in results] == [3]


def _text_changed(truth: Json) -> None:
    truth["turns"][0]["events"][-1]["content"]["parts"][0]["text"] += "!"


def _event_lost(truth: Json) -> None:
    truth["turns"][0]["events"].pop()


def _stored_event_lost(truth: Json) -> None:
    truth["sessions"]["main"]["stored"].pop()


def _state_added(truth: Json) -> None:
    truth["sessions"]["main"]["state"]["never"] = 1


def _effect_doubled(truth: Json) -> None:
    truth["effects"].append(truth["effects"][0])


def _request_changed(truth: Json) -> None:
    truth["requests"][0]["system"] = "Be someone else."


def _status_changed(truth: Json) -> None:
    truth["turns"][0]["status"] = 500


def _artifact_added(truth: Json) -> None:
    truth["artifacts"]["main"] = {"never.txt": {"0": {"text": ""}}}


BREAKS: dict[str, Callable[[Json], None]] = {
    "turn 1 events[7].content.parts[0].text is": _text_changed,
    "turn 1 events: 6, not 7": _event_lost,
    "session main stored events:": _stored_event_lost,
    "session main state.never is 1; ADK has none": _state_added,
    "effect too often or not of ADK:": _effect_doubled,
    "a model request of": _request_changed,
    "turn 1: status is 500, not 200": _status_changed,
    "artifacts.main is": _artifact_added,
}


@pytest.mark.parametrize("words", BREAKS)
def test_what_differs_is_told(words: str) -> None:
    truth = recorded_truth(APPS / "market_brief")
    assert truth is not None
    broken = copy.deepcopy(truth)
    assert comparing.differences(truth, broken, played=True) == []
    BREAKS[words](broken)
    found = comparing.differences(truth, broken, played=True)
    assert len(found) == 1
    assert found[0].startswith(words), found


def test_an_effect_or_an_event_too_many_is_told_after_kills() -> None:
    truth = recorded_truth(APPS / "market_brief")
    assert truth is not None
    broken = copy.deepcopy(truth)
    assert comparing.after_kills(truth, broken) == []
    _effect_doubled(broken)
    broken["sessions"]["main"]["stored"].append(broken["sessions"]["main"]["stored"][-1])
    found = comparing.after_kills(truth, broken)
    assert [line.partition(":")[0] for line in found] == [
        "session main stored events",
        "effect too often or not of ADK",
    ]


@pytest.mark.parametrize(
    ("adk", "here", "same"),
    [
        (("event-10", "event-11"), ("event-3", "event-4"), True),
        (("event-10", "event-11"), ("event-3", "event-3"), False),
        (("event-10", "event-10"), ("event-3", "event-4"), False),
    ],
)
def test_requests_that_name_events_are_compared_after_kills(
    adk: tuple[str, ...], here: tuple[str, ...], same: bool
) -> None:
    """A result of `load_memory` names events, which are numbered otherwise where turns may be cut off."""
    truth = recorded_truth(APPS / "market_brief")
    assert truth is not None
    broken = copy.deepcopy(truth)
    for one, ids in ((truth, adk), (broken, here)):
        one["requests"].append({"model": "butler", "contents": [{"parts": [{"text": id}]} for id in ids]})
    strange = [line for line in comparing.after_kills(truth, broken) if line.startswith("a model request")]
    assert len(strange) == (0 if same else 1)
