"""Which events of a log count, as ADK decides it: rewinds, and summaries in the place of events."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.journal.live_events import live_events, live_indexes, told_events
from perdure.steps.prompt import build_contents
from tests.adk_shop import SESSIONS, VERSIONS


def event(invocation: str, time: float = 0.0, author: str = "clerk", **actions: Any) -> Event:
    content = None if actions else types.Content(role="model", parts=[types.Part(text=f"{invocation} at {time}")])
    return Event(
        id=f"{invocation}-{time}",
        author=USER if actions else author,
        invocation_id=invocation,
        timestamp=time,
        content=content,
        actions=EventActions.model_validate(actions),
    )


def rewind(invocation: str, before: str) -> Event:
    return event(invocation, rewind_before_invocation_id=before)


def summary(invocation: str, start: float, end: float, words: str = "summed up") -> Event:
    content = {"role": "model", "parts": [{"text": words}]}
    return event(invocation, compaction={"startTimestamp": start, "endTimestamp": end, "compactedContent": content})


def told(*events: Event, branch: str | None = None) -> list[str]:
    return [one.text or "" for _, one in told_events(events, agent="clerk", branch=branch)]


def test_a_rewind_takes_out_its_invocation_and_all_since() -> None:
    log = [event("a"), event("b"), event("c"), rewind("r", "b"), event("d")]
    assert [one.invocation_id for one in live_events(log)] == ["a", "d"]


def test_a_rewound_rewind_takes_out_nothing() -> None:
    """The undo of the undo, as in ADK."""
    log = [event("a"), event("b"), rewind("r", "b"), rewind("q", "r")]
    assert [one.invocation_id for one in live_events(log)] == ["a", "b"]


def test_a_rewind_to_what_was_rewound_goes_back_to_it() -> None:
    log = [event("a"), event("b"), rewind("r", "b"), event("c"), rewind("q", "b")]
    assert [one.invocation_id for one in live_events(log)] == ["a"]


def test_a_rewind_to_nothing_known_takes_out_itself_only() -> None:
    log = [event("a"), rewind("r", "nobody"), event("b")]
    assert [one.invocation_id for one in live_events(log)] == ["a", "b"]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.sampled_from("abcd")), max_size=14))
def test_live_events_are_those_of_adks_walk(steps: list[tuple[str, bool, str]]) -> None:
    log = [rewind(f"r{n}", named) if is_rewind else event(name) for n, (name, is_rewind, named) in enumerate(steps)]
    expected: list[int] = []
    index = len(log) - 1
    while index >= 0:
        named = log[index].actions.rewind_before_invocation_id
        first = [at for at in range(index) if log[at].invocation_id == named]
        if named and first:
            index = first[0]
        elif not named:
            expected.append(index)
        index -= 1
    assert list(live_indexes(log)) == expected[::-1]


def test_a_summary_stands_for_the_events_of_its_time() -> None:
    assert told(event("a", 1), event("b", 2), summary("s", 1, 2), event("c", 3)) == ["summed up", "c at 3"]


def test_what_no_summary_covers_stays_where_it_was() -> None:
    log = (event("a", 1), event("b", 2), event("c", 3), summary("s", 2, 2), event("d", 4))
    assert told(*log) == ["a at 1", "summed up", "c at 3", "d at 4"]


def test_a_summary_that_another_contains_is_left_out() -> None:
    log = (event("a", 1), summary("s", 1, 1, "first"), event("b", 2), summary("t", 1, 2, "both"), event("c", 3))
    assert told(*log) == ["both", "c at 3"]
    same = (event("a", 1), summary("s", 1, 1, "old"), summary("t", 1, 1, "new"))
    assert told(*same) == ["new"]


def test_summaries_that_overlap_both_stay() -> None:
    log = (event("a", 1), event("b", 2), summary("s", 1, 2, "ab"), event("c", 3), summary("t", 2, 3, "bc"))
    assert told(*log) == ["ab", "bc"]


def test_a_clock_that_is_behind_loses_nothing() -> None:
    """A message to an imported session may be dated before the summary in it."""
    assert told(event("a", 1), summary("s", 1, 9), event("b", 5)) == ["summed up", "b at 5"]


NO_SUMMARIES: list[dict[str, Any]] = [
    {},
    {"startTimestamp": 0, "endTimestamp": 9},
    {"startTimestamp": "x", "endTimestamp": 9, "compactedContent": {"parts": []}},
    {"startTimestamp": 0, "endTimestamp": 9, "compactedContent": {"novelty": 1}},
    {"startTimestamp": 0, "endTimestamp": 9, "compactedContent": {"parts": [{"executableCode": {"language": []}}]}},
]


@pytest.mark.parametrize("compaction", NO_SUMMARIES)
def test_what_is_no_summary_stands_for_nothing(compaction: dict[str, Any]) -> None:
    odd = event("s", 2, compaction=compaction)
    assert told(event("a", 1), odd, event("b", 3)) == ["a at 1", "", "b at 3"]


def test_a_summary_of_another_branch_is_not_told() -> None:
    on_branch = summary("s", 1, 1).model_copy(update={"branch": "both.left"})
    assert told(event("a", 1), on_branch, branch="both.right") == ["a at 1"]


def test_a_response_behind_a_summary_keeps_its_call() -> None:
    call = Event(
        id="c",
        author="clerk",
        invocation_id="a",
        timestamp=1,
        content=types.Content(
            role="model",
            parts=[types.Part(function_call=types.FunctionCall(id=id, name=id)) for id in ("wait", "beside")],
        ),
    )
    beside, late = (
        Event(
            id=id,
            author="clerk",
            invocation_id="a",
            timestamp=time,
            content=types.Content(
                role="user",
                parts=[types.Part(function_response=types.FunctionResponse(id=id, name=id, response={"at": time}))],
            ),
        )
        for id, time in (("beside", 2), ("wait", 9))
    )
    log = [event("a", 0), call, beside, summary("s", 0, 3), late]
    assert [one.id for _, one in told_events(log, agent="clerk", branch=None)] == ["s-0.0", "c", "beside", "wait"]


def test_a_summarys_calls_are_not_told() -> None:
    """Nobody answers them, and a provider takes no call without its response."""
    made = summary("s", 1, 1)
    compaction: dict[str, Any] = dict(made.actions.compaction or {})
    call = {"functionCall": {"id": "c", "name": "pay"}}
    compaction["compactedContent"] = {"role": "model", "parts": [call, {"text": "summed up"}]}
    made = made.model_copy(update={"actions": EventActions(compaction=compaction)})
    contents = build_contents(
        [event("a", 1), made, Event(author=USER, content=user_content("go"))],
        agent="clerk",
        branch=None,
        include_contents="default",
    )
    parts = [part for content in contents for part in content.parts or []]
    assert [part.text for part in parts if part.text][-2:] == ["summed up", "go"]
    assert not [part for part in parts if part.function_call]


@pytest.mark.parametrize("version", VERSIONS)
def test_of_adks_own_logs_a_model_is_told_what_counts(version: str) -> None:
    def words(name: str) -> list[str]:
        events = [Event.model_validate(one) for one in SESSIONS[version][name]["session"]["events"]]
        return [one.text for _, one in told_events(events, agent="concierge", branch=None) if one.text]

    assert words("rewound") == ["set blue", "Blue."]
    assert "The user counted." in words("compacted")
    assert "count" not in words("compacted")
