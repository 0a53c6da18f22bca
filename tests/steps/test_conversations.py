"""R12 and R13 for every log there is: whatever it holds, each provider takes the conversation that a model gets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.journal.events import USER, Event, EventActions, is_on_branch
from perdure.prove.conversations import refusals
from perdure.steps import prompt
from perdure.steps.pairing import Shown, Turn, pair
from perdure.steps.prompt import PromptMemo, build_contents, without_session_ids

AGENTS = ("a", "b")
BRANCHES = (None, "fan.a", "fan.b", "fan.a.in.b")
Include = Literal["default", "none"]

_ids = st.sampled_from(["adk-1", "adk-2", "adk-3", "call_0", "", None])
"""Few, so that many meet; `call_0` is said in each turn by some servers, and others give none."""
_names = st.sampled_from(["look", "ask", "adk_request_confirmation"])
_texts = st.sampled_from(["hello", "", " \n"])


@st.composite
def _parts(draw: st.DrawFn) -> types.Part:
    match draw(st.sampled_from(["text", "call", "response", "blob", "nothing"])):
        case "text":
            marks: dict[str, Any] = {"thought": draw(st.sampled_from([None, True]))}
            return types.Part(text=draw(_texts), thought_signature=draw(st.sampled_from([None, b"s"])), **marks)
        case "call":
            return types.Part(function_call=types.FunctionCall(id=draw(_ids), name=draw(_names)))
        case "response":
            value = {"n": draw(st.integers(0, 9))}
            response = types.FunctionResponse(id=draw(_ids), name=draw(_names), response=value)
            return types.Part(function_response=response)
        case "blob":
            return types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png"))
        case _:
            return types.Part()


@st.composite
def _events(draw: st.DrawFn) -> Event:
    role = draw(st.sampled_from(["user", "model", "tool", None]))
    return Event(
        author=draw(st.sampled_from([*AGENTS, USER])),
        invocation_id="i",
        branch=draw(st.sampled_from(BRANCHES)),
        content=types.Content(role=role, parts=draw(st.lists(_parts(), max_size=4))),
    )


def numbered(events: list[Event]) -> list[Event]:
    return [event.model_copy(update={"id": f"e{number}"}) for number, event in enumerate(events)]


_logs = st.lists(_events(), max_size=12).map(numbered)


@settings(max_examples=200, deadline=None)
@given(
    log=_logs,
    branch=st.sampled_from(BRANCHES),
    include=st.sampled_from(["default", "none"]),
    after=st.none() | st.integers(0, 11).map("e{}".format),
)
def test_any_log_makes_a_conversation_that_is_taken(
    log: list[Event], branch: str | None, include: Include, after: str | None
) -> None:
    contents = build_contents(log, agent="a", branch=branch, include_contents=include, begun_after=after)
    assert refusals(contents, by_id=True) == []
    assert refusals(without_session_ids(contents), by_id=False) == []


def _event(author: str, *parts: types.Part) -> Event:
    return Event(author=author, invocation_id="i", content=types.Content(role="user", parts=list(parts)))


def _answer(call: types.FunctionCall, number: int) -> types.Part:
    response = types.FunctionResponse(id=call.id, name=call.name, response={"to": call.id, "n": number})
    return types.Part(function_response=response)


@st.composite
def _rounds(draw: st.DrawFn) -> list[Event]:
    """Rounds of an agent's calls with ids of their own, answered in any order, late, twice, or not at all."""
    log = [_event(USER, types.Part(text="go"))]
    waiting: list[types.FunctionCall] = []
    for number in range(draw(st.integers(1, 4))):
        calls = [
            types.FunctionCall(id=f"{number}.{index}", name=draw(_names)) for index in range(draw(st.integers(1, 3)))
        ]
        log.append(_event("a", *(types.Part(function_call=call) for call in calls)))
        waiting += calls
        for _ in range(draw(st.integers(0, 3))):
            answered = draw(st.lists(st.sampled_from(waiting), min_size=1, max_size=3, unique_by=lambda call: call.id))
            log.append(_event(draw(st.sampled_from([USER, "a"])), *(_answer(call, len(log)) for call in answered)))
            if draw(st.booleans()):
                log.append(_event(draw(st.sampled_from([USER, *AGENTS])), types.Part(text="aside")))
    return numbered(log)


@st.composite
def _grown(draw: st.DrawFn) -> list[Event]:
    """Logs of several kinds, one behind the other; some with rewinds or summaries in them."""
    log = [event for part in draw(st.lists(_logs | _rounds(), max_size=3)) for event in part]
    rewind = EventActions(rewind_before_invocation_id="i")
    for actions in draw(st.lists(st.just(rewind) | _summaries(), max_size=2)):
        log.insert(draw(st.integers(0, len(log))), Event(author=USER, invocation_id="j", actions=actions))
    return [event.model_copy(update={"timestamp": float(at)}) for at, event in enumerate(numbered(log))]


@st.composite
def _summaries(draw: st.DrawFn) -> EventActions:
    start = draw(st.integers(0, 8))
    return EventActions(
        compaction={
            "start_timestamp": float(start),
            "end_timestamp": float(start + draw(st.integers(0, 12))),
            "compacted_content": {"role": "model", "parts": draw(st.sampled_from([[], [{"text": "in short"}]]))},
        }
    )


_looks = st.tuples(st.integers(0, 30), st.sampled_from(AGENTS), st.sampled_from(BRANCHES))


@settings(max_examples=300, deadline=None)
@given(
    log=_grown(),
    looks=st.lists(_looks, max_size=10),
    include=st.sampled_from(["default", "none"]),
    after=st.none() | st.integers(0, 11).map("e{}".format),
    parts=st.sampled_from([1, 2]),
)
def test_what_was_made_before_makes_no_difference(
    log: list[Event], looks: list[tuple[int, str, str | None]], include: Include, after: str | None, parts: int
) -> None:
    """Step by step as the log grows, or not with each event; and for others, some of whom look at less of it."""
    memo, beside = PromptMemo(), PromptMemo()
    steps: list[tuple[int, str, str | None]] = [(length, "a", None) for length in range(0, len(log) + 1, parts)]
    for length, agent, branch in [*sorted([*steps, *looks], key=lambda look: look[0]), *looks]:
        build = partial(build_contents, agent=agent, branch=branch, include_contents=include, begun_after=after)
        plain = build(log[:length])
        assert build(log[:length], memo=memo) == plain
        assert build(log[:length], memo=beside) == plain
        # Steps that are lost, whose log no other step sees.
        lost = [*log[:length], _event(agent, types.Part(text="lost")).model_copy(update={"id": "lost"})]
        assert build(lost, memo=memo.beside()) == build(lost)
        beside = memo.beside()


def _calls(*ids: str) -> Event:
    return _event("a", *(types.Part(function_call=types.FunctionCall(id=id, name="look")) for id in ids))


def _answers(*ids: str) -> Event:
    return _event("a", *(_answer(types.FunctionCall(id=id, name="look"), 1) for id in ids))


_ASIDE = _event("b", types.Part(text="aside"))
_SAID = _event("a", types.Part(text="said"))
_SUMMARY = Event(
    author=USER,
    invocation_id="j",
    actions=EventActions(
        compaction={
            "start_timestamp": 0.0,
            "end_timestamp": 3.0,
            "compacted_content": {"role": "model", "parts": [{"text": "in short"}]},
        }
    ),
)
_REWIND = Event(author=USER, invocation_id="j", actions=EventActions(rewind_before_invocation_id="i"))


@pytest.mark.parametrize(
    "log",
    [
        pytest.param([_calls("1", "2"), _answers("1"), _ASIDE, _answers("2"), _calls("3"), _answers("3")], id="aside"),
        pytest.param([_calls("1"), _answers("1"), _SAID, _calls("1"), _answers("1"), _SAID], id="an id again"),
        pytest.param([_calls("1"), _SAID, _calls("2"), _answers("2"), _answers("1"), _SAID], id="late"),
        pytest.param([_calls("1"), _calls("2"), _answers("2", "1"), _SAID], id="both at once"),
        pytest.param([_calls("1"), _answers("1"), _calls("2"), _answers("2"), _answers("1"), _SAID], id="progress"),
        pytest.param([_calls("1"), _answers("1"), _SAID, _REWIND, _SAID, _calls("2"), _answers("2")], id="rewind"),
        pytest.param(
            [_calls("1", "2"), _answers("1"), _SAID, _SUMMARY, _SAID, _answers("2"), _SAID, _calls("3"), _answers("3")],
            id="behind a summary",
        ),
    ],
)
def test_what_comes_later_changes_what_came_before(log: list[Event]) -> None:
    memo, log = PromptMemo(), numbered([_event(USER, types.Part(text="go")), *log])
    for length in range(len(log) + 1):
        plain = build_contents(log[:length], agent="a", branch=None, include_contents="default")
        assert build_contents(log[:length], agent="a", branch=None, include_contents="default", memo=memo) == plain


def test_a_log_with_another_beginning_is_read_as_a_whole() -> None:
    """As after a session was replaced, or read again up to an earlier step."""
    memo = PromptMemo()
    for text in ("one", "two"):
        log = [_event(USER, types.Part(text=text)), _SAID, _event(USER, types.Part(text="and?"))]
        plain = build_contents(log, agent="a", branch=None, include_contents="default")
        assert build_contents(log, agent="a", branch=None, include_contents="default", memo=memo) == plain


@pytest.mark.parametrize("include", ["default", "none"])
@pytest.mark.parametrize("between", [None, _SUMMARY, _REWIND])
def test_a_step_costs_the_same_however_long_the_log_is(
    monkeypatch: pytest.MonkeyPatch, include: Include, between: Event | None
) -> None:
    """Of a log that grew round by round, only what is new is read, but once behind a summary or a rewind."""
    read: list[str | None] = []

    def counted(branch: str | None, of: str | None) -> bool:
        read.append(of)
        return is_on_branch(branch, of)

    monkeypatch.setattr(prompt, "is_on_branch", counted)
    paired: list[int] = []

    def pairing(shown: Sequence[Shown], *args: Any, **options: Any) -> list[Turn]:
        paired.append(len(shown))
        return pair(shown, *args, **options)

    monkeypatch.setattr(prompt, "pair", pairing)
    memo, log, costs = PromptMemo(), [_event(USER, types.Part(text="go"))], list[int]()
    for number in range(100):
        call = types.FunctionCall(id=f"c{number}", name="look")
        log += [_event("a", types.Part(function_call=call)), _event("a", _answer(call, number))]
        if number == 10 and between is not None:
            log += [between, _event(USER, types.Part(text="and?"))]
        read.clear()
        paired.clear()
        contents = build_contents(log, agent="a", branch=None, include_contents=include, memo=memo)
        assert len(contents) >= 2 * (number - 11)
        costs.append(len(read) + sum(paired))
    assert max(costs[:10] + costs[12:]) <= 6


@settings(max_examples=100, deadline=None)
@given(log=_rounds())
def test_each_call_is_shown_with_the_last_response_to_it_and_no_other(log: list[Event]) -> None:
    """Told by order, as a model pairs them that gets no ids."""
    contents = without_session_ids(build_contents(log, agent="a", branch=None, include_contents="default"))
    last = {answer.id: answer.response for event in log for answer in event.get_function_responses()}
    called = [call.id for event in log for call in event.get_function_calls()]
    parts = [part for content in contents for part in content.parts or []]
    calls = [cast(str, part.function_call.id) for part in parts if part.function_call]
    assert [part.function_response.response for part in parts if part.function_response] == [last[id] for id in calls]
    assert calls == [call_id for call_id in called if call_id in calls]
    hidden = {call.id for event in log for call in event.get_function_calls() if call.name and "adk_" in call.name}
    shown = [event for event in log if {call.id for call in event.get_function_calls()} - hidden or not _asks(event)]
    # An answer to an old call hides what was said since.
    if not shown[-1].get_function_responses():
        assert set(calls) == {call_id for call_id in called if call_id in last} - hidden


def _asks(event: Event) -> bool:
    return bool(event.get_function_calls())
