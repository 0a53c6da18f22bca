"""The journal's entries, packed and in pages."""

from __future__ import annotations

import json

import pytest
from google.genai import types

from perdure.errors import LogError
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import (
    ENTRIES,
    ActivityKept,
    AnswerAccepted,
    AnswerLogged,
    CallbackRan,
    CallExpired,
    CallReminded,
    Entry,
    EventLogged,
    EventRewound,
    Failure,
    FailureCaught,
    InvocationPinned,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    ModelCalled,
    PlanLoaded,
    ResumeAccepted,
    RunBegan,
    ScopeBegan,
    SessionCreated,
    SharedStateRead,
    StateChanged,
    TempStateSet,
    ToolKept,
    ToolOutput,
    ToolRan,
    ToolStarted,
    Within,
    take,
)
from perdure.journal.events import Event, EventActions, user_content
from perdure.journal.packing import dump_entries, pack, unpack
from perdure.journal.tool_output import AgentAsked
from tests.conformance.logs import all_scenarios, plan_of

SIGNED = types.Part(text="…", thought=True, thought_signature=bytes(range(256)))
EVENT = Event(
    id="ev-1",
    author="clerk",
    invocation_id="e-1",
    content=types.Content(role="model", parts=[SIGNED]),
    actions=EventActions(state_delta={"x": None}),
)

ONE_OF_EACH: tuple[Entry, ...] = (
    SessionCreated(state={"topic": "land", "none": None, "user:lang": "en"}),
    MessageAccepted(event=Event(author="user", invocation_id="e-1", content=user_content("hi")), request_id="r-1"),
    PlanLoaded(plan=plan_of(all_scenarios()[0])),
    SharedStateRead(state={"user:lang": "de"}),
    InvocationStarted(invocation_id="e-1", agent="clerk", plan="d", timestamp=1.5),
    ModelCalled(agent="clerk"),
    ModelCalled(agent="clerk", again="MALFORMED_FUNCTION_CALL"),
    RunBegan(invocation_id="e-1", agent="clerk", branch="fan.clerk", after="ev-1", run="flow/clerk"),
    CallbackRan(
        invocation_id="e-1", agent="clerk", branch="fan.clerk", which="before", ids=("ev-2",), run="flow/clerk"
    ),
    EventLogged(event=EVENT),
    EventLogged(event=EVENT.model_copy(update={"actions": EventActions(agent_state={})}), hidden=True),
    TempStateSet(invocation_id="e-1", delta={"temp:x": {"y": None}}),
    ToolKept(
        invocation_id="e-1",
        call_id="adk-1",
        output=ToolOutput(result={"a": None}, actions=EventActions(escalate=True), needs_confirmation=True),
    ),
    ScopeBegan(
        invocation_id="e-1",
        call_id="adk-2",
        agent="clerk",
        tool="banker",
        asked=AgentAsked(content=user_content("wire 7"), state={"x": None}, args={"request": "wire 7"}),
        event_id="ev-3",
        timestamp=1.5,
    ),
    Within(call_id="adk-2", entry=TempStateSet(invocation_id="e-1", delta={"temp:z": 1})),
    ActivityKept(invocation_id="e-1", agent="story", branch="fan.story", name="draw", result=[1, None]),
    FailureCaught(
        invocation_id="e-1",
        agent="story",
        branch="fan.story",
        failures=(Failure(agent="draw", step="model", cause="overloaded"),),
        sub_run="story/draw#2",
        run="story",
        name="draw",
        index=1,
        arguments="d",
    ),
    ToolStarted(
        invocation_id="e-1", call_id="adk-1", agent="clerk", tool="pay", idempotency_key="e-1/adk-1", timestamp=1.5
    ),
    CallReminded(call_id="adk-1"),
    CallExpired(call_id="adk-1"),
    ToolRan(call_id="adk-1", invocation_id="e-2", outcome="failed", attempts=3, started=1.5, ended=2.5, cause="down"),
    LogImported(allow_pending_calls=True, plan_digest="d"),
    InvocationPinned(invocation_id="e-1", agent="clerk", plan="d2", runs=(("clerk", 4), ("", 2))),
    AnswerAccepted(event=Event(author="user", invocation_id="e-1", custom_metadata={"who": "ann"})),
    AnswerLogged(event_id="ev-2", timestamp=2.5),
    StateChanged(event=Event(id="s", author="user", invocation_id="p-s", actions=EventActions(state_delta={"x": 1}))),
    EventRewound(event=Event(id="w", author="clerk", invocation_id="e-0")),
    InvocationSettled(
        invocation_id="e-1",
        status="failed",
        failures=(Failure(agent="clerk", step="model", cause="overloaded"),),
        reason="a reason",
    ),
    ResumeAccepted(invocation_id="e-1"),
    InvocationResumed(invocation_id="e-1"),
)


def test_the_record_of_a_run_is_small() -> None:
    """There is one for each tool call, and the journal travels."""
    call_id = f"adk-{'0' * 36}"
    entry = ToolRan(call_id=call_id, attempts=10, started=1764000000.123, ended=1764000000.456)
    assert payload_size(entry) <= 150
    longest = entry.model_copy(update={"outcome": "failed", "invocation_id": f"e-{'0' * 36}"})
    assert payload_size(longest) <= 230


def test_the_examples_hold_every_kind() -> None:
    schema = ENTRIES.json_schema()
    kinds = set(schema["items"]["discriminator"]["mapping"])
    assert {entry.kind for entry in ONE_OF_EACH} == kinds


def test_entries_survive_packing() -> None:
    assert unpack(pack(ONE_OF_EACH)) == ONE_OF_EACH
    assert unpack(pack(())) == ()


def test_entries_survive_json_and_leave_out_what_is_not_set() -> None:
    data = dump_entries(ONE_OF_EACH)
    assert ENTRIES.validate_json(data) == ONE_OF_EACH
    assert "request_id" not in json.loads(dump_entries([MessageAccepted(event=EVENT)]))[0]


def test_an_entry_with_a_field_of_a_newer_version_is_still_read() -> None:
    entries = json.loads(dump_entries([ModelCalled(agent="clerk")]))
    entries[0]["later"] = 1
    assert ENTRIES.validate_python(entries) == (ModelCalled(agent="clerk"),)


@pytest.mark.parametrize("text", ["", "no base 85 \x00", pack(())[:-3], "c-ri{"])
def test_what_is_no_packed_journal_is_refused(text: str) -> None:
    with pytest.raises(LogError, match="no packed journal"):
        unpack(text)


def test_packing_makes_a_repetitive_journal_much_smaller() -> None:
    entries = ONE_OF_EACH * 50
    assert len(pack(entries)) < len(dump_entries(entries)) / 10


@pytest.mark.parametrize("max_bytes", [0, 1, 300, 1000, 10**6])
def test_pages_hold_everything_once_and_in_order(max_bytes: int) -> None:
    pages: list[tuple[Entry, ...]] = []
    start = 0
    while start < len(ONE_OF_EACH):
        pages.append(tuple(take(ONE_OF_EACH, start, max_bytes)))
        assert pages[-1], "a page that holds nothing would be asked for again for ever"
        start += len(pages[-1])
    assert sum(pages, ()) == ONE_OF_EACH
    for one in pages:
        assert len(one) == 1 or sum(map(payload_size, one)) <= max_bytes


def test_a_page_behind_the_end_is_empty() -> None:
    assert tuple(take(ONE_OF_EACH, len(ONE_OF_EACH), 1000)) == ()


def test_a_size_is_counted_in_bytes() -> None:
    """A query's answer is limited in bytes, and Chinese text takes three for each character."""
    entry = MessageAccepted(event=Event(author="user", content=user_content("漢" * 1000)))
    assert payload_size(entry) > 3000
    assert payload_size(entry) == len(dump_entries([entry])) - len("[]")
