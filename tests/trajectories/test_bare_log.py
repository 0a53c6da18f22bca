"""Bare event logs as journals: what is inferred, and what is refused with its reason. No server."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from google.genai import types

from perdure.errors import InvalidTrajectory, LogError
from perdure.journal.entries import EventLogged, LogImported
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.journal.fold import fold_journal
from perdure.journal.packing import pack, unpack
from perdure.journal.projection import Projection
from perdure.plan.nodes import CustomNode, LoopNode, SequentialNode
from perdure.trajectories import checks as imports
from perdure.trajectories.bare_log import read_log
from perdure.trajectories.checks import agent_of_import
from perdure.trajectories.triggered_log import TriggeredTrajectory, read_triggered_log
from tests.conformance.journals import record
from tests.conformance.logs import all_scenarios, expected_turns
from tests.conformance.scenario import Scenario
from tests.journal.sample_entries import PLAN, llm, plan_with


def fresh_ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"x{next(numbers)}"


def asked(text: str = "go", invocation: str = "i1", id: str = "") -> Event:
    return Event(id=id, author=USER, invocation_id=invocation, content=user_content(text))


def said(text: str = "done", author: str = "root", invocation: str = "i1", **fields: Any) -> Event:
    content = types.Content(role="model", parts=[types.Part(text=text)])
    return Event(author=author, invocation_id=invocation, content=content, **fields)


def called(*ids: str, name: str = "work", waits: tuple[str, ...] = (), author: str = "root", **args: Any) -> Event:
    parts = [types.Part(function_call=types.FunctionCall(id=id, name=name, args=args)) for id in ids]
    return Event(
        author=author,
        invocation_id="i1",
        content=types.Content(role="model", parts=parts),
        long_running_tool_ids=frozenset(waits) or None,
    )


def responded(*ids: str, name: str = "work", author: str = "root", invocation: str = "i1", **response: Any) -> Event:
    parts = [
        types.Part(function_response=types.FunctionResponse(id=id, name=name, response=response or {"ok": True}))
        for id in ids
    ]
    return Event(author=author, invocation_id=invocation, content=types.Content(role="user", parts=parts))


def state(author: str = "root", **actions: Any) -> Event:
    return Event(author=author, invocation_id="i1", actions=EventActions.model_validate(actions))


def confirm(call_id: str = "c1", author: str = "root", **original: Any) -> Event:
    asked_about: dict[str, Any] = {"id": call_id, "name": "work", "args": dict[str, Any]()} | original
    args: dict[str, Any] = {"originalFunctionCall": asked_about, "toolConfirmation": {}}
    return called("k1", name="adk_request_confirmation", waits=("k1",), author=author, **args)


def confirmed(value: bool = True) -> Event:
    return responded("k1", name="adk_request_confirmation", author=USER, confirmed=value)


def drive(*events: Event, allow: bool = False) -> TriggeredTrajectory:
    return read_triggered_log(events, allow_pending_calls=allow, fresh=fresh_ids())


def read(*events: Event) -> Projection:
    return read_log(events, fresh=fresh_ids()).projection


SCENARIOS = {scenario.name: scenario for scenario in all_scenarios()}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_log_of_adk_gives_what_the_session_itself_would_have_written(scenario: Scenario) -> None:
    recorded = record(scenario)
    expected = fold_journal(recorded.entries)
    log = [event for turn in expected_turns(scenario) for event in turn]
    session = read_log(log, state=scenario.state, fresh=fresh_ids()).projection
    assert session.events == expected.events
    assert session.state == expected.state
    assert session.calls == expected.calls
    assert not session.turns
    statuses = {id: invocation.status for id, invocation in session.invocations.items()}
    assert statuses == {id: invocation.status for id, invocation in expected.invocations.items()}
    if scenario.app.resumable:
        for id, invocation in session.invocations.items():
            assert agent_of_import(session, recorded.plan, invocation) == expected.invocations[id].agent


def test_a_journal_that_was_made_survives_packing() -> None:
    driven = drive(asked(), said(), asked(invocation="i2"))
    assert fold_journal(unpack(pack(driven.entries))) == driven.projection


def test_the_last_event_sets_its_invocation_going_and_nothing_else() -> None:
    driven = drive(asked(), called("c1", waits=("c1",)), asked("more", "i2"))
    assert driven.invocation_id == "i2"
    assert driven.offset == 2
    assert [turn.invocation_id for turn in driven.projection.turns] == ["i2"]
    assert driven.projection.invocations["i1"].status == "waiting"


def test_events_without_ids_get_them() -> None:
    bare = [event.model_copy(update={"invocation_id": ""}) for event in (asked(), said(), asked("more"))]
    driven = drive(*bare)
    log = [*driven.projection.events, driven.projection.invocations[driven.invocation_id].message]
    assert len({event.id for event in log}) == 3
    assert log[0].invocation_id == log[1].invocation_id != driven.invocation_id


def test_an_answer_without_an_invocation_goes_to_that_of_its_call() -> None:
    answer = responded("c1", author=USER, invocation="")
    assert drive(asked(), called("c1", waits=("c1",)), responded("c1"), answer).invocation_id == "i1"


def test_where_nothing_pauses_an_answer_starts_an_invocation_of_its_own() -> None:
    """An app that is not resumable: the model went on at once, so its call is behind it."""
    past = (asked(), called("c1", waits=("c1",)), responded("c1"), said())
    driven = drive(*past, responded("c1", author=USER, invocation="i2"))
    assert driven.invocation_id == "i2"
    assert driven.projection.invocations["i1"].status == "finished"


def test_a_response_to_a_plain_call_is_kept_as_its_tools_result() -> None:
    driven = drive(asked(), called("c1"), responded("c1", author=USER, ok=7))
    invocation = driven.projection.invocations["i1"]
    assert invocation.kept["c1"].result == {"ok": 7}
    assert invocation.status == "queued"
    # The agent logs the response, once, when it goes on.
    assert len(driven.projection.events) == 2


def test_model_calls_are_counted_where_the_log_shows_them() -> None:
    """Scripted models, and whoever counts calls, go on with the next one."""
    session = read(asked(), called("c1"), responded("c1"), said(), asked(invocation="i2"), said(invocation="i2"))
    assert session.model_calls == {"root": 3}


def failed(author: str = "root") -> Event:
    """As google.adk 2 logs it."""
    return Event(author=author, invocation_id="i1", error_code="RuntimeError", node_info={"path": author})


ANSWER: dict[str, Any] = {"city": "Oslo", "degrees": 3}


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        ([called("c1"), failed()], 1),
        ([failed()], 1),
        ([called("c1", author="other"), failed()], 2),
        ([called("c1", name="set_model_response"), responded("c1", name="set_model_response", **ANSWER)], 1),
        (
            [
                called("c1", name="set_model_response"),
                responded("c1", name="set_model_response", **ANSWER),
                said('{"city": "Oslo", "degrees": 3}'),
            ],
            1,
        ),
        (
            [
                called("c1", name="set_model_response"),
                responded("c1", name="set_model_response", result=[1]),
                said("[1]"),
            ],
            1,
        ),
        (
            [
                called("c1", name="set_model_response"),
                responded("c1", name="set_model_response", error="no city"),
                said("Sorry."),
            ],
            2,
        ),
        ([called("c1"), responded("c1", **ANSWER), said('{"city": "Oslo", "degrees": 3}')], 2),
    ],
)
def test_what_google_adk_says_of_a_tools_end_is_no_model_call(events: list[Event], calls: int) -> None:
    assert sum(read(asked(), *events).model_calls.values()) == calls


TEXT = said()
LONG = called("c1", waits=("c1",))

REFUSED: dict[str, tuple[list[Event], str]] = {
    "an empty log": ([], "the log is empty"),
    "a final text": ([asked(), TEXT], r"finished; append a user's message"),
    "the end": ([asked(), TEXT, state(end_of_agent=True)], "'i1' has finished"),
    "a pending call": ([asked(), LONG, responded("c1")], r"waits for an answer to work \(c1\)"),
    "a request for approval": ([asked(), called("c1"), confirm()], "asks a person to approve"),
    "calls that nobody allowed": ([asked(), called("c1", "c2")], r"would run \(c1, c2\); pass allow_pending_calls"),
    "calls beside the response": (
        [asked(), called("c1", "c2"), responded("c1", author=USER)],
        r"would run \(c2\); pass allow_pending_calls",
    ),
    "calls beside the answer": (
        [asked(), called("c1", "c2", waits=("c1",)), responded("c1", author=USER)],
        r"would run \(c2\); pass allow_pending_calls",
    ),
    "an empty message": ([asked("")], "the message is empty"),
    "a message in an old invocation": ([asked(), TEXT, asked()], "'i1' is one already"),
    "a response to an unknown call": ([asked(), responded("c9", author=USER)], "'c9', which the log does not hold"),
    "a second response": (
        [asked(), called("c1"), responded("c1"), responded("c1", author=USER)],
        "'c1' has its response already",
    ),
    "a second answer": (
        [asked(), LONG, responded("c1", author=USER), responded("c1", author=USER)],
        "answered already",
    ),
    "an answer that decides nothing": (
        [
            asked(),
            called("c1"),
            confirm(),
            responded("c1"),
            responded("k1", name="adk_request_confirmation", author=USER),
        ],
        '"confirmed" is missing',
    ),
    "an event of nobody": ([asked(), said(author="")], "event 2 has no author"),
    "a piece of an answer": ([asked(), said(partial=True)], "event 2 is a piece"),
    "an agent before its message": ([said()], "event 1 belongs to invocation"),
    "a user's function call": ([called("c1", author=USER)], "only a model may call a tool"),
    "an event id twice": ([asked(id="e"), said(id="e")], "event 2: the event id 'e' is used twice"),
    "a call id twice": ([asked(), called("c1"), responded("c1"), called("c1")], "event 4: the function-call id 'c1'"),
    "a call without an id": ([asked(), called("")], "event 2 holds a function call without an id"),
    "a response of another tool": (
        [asked(), called("c1"), responded("c1", name="pay")],
        "is one of 'work', not of 'pay'",
    ),
    "a long-running call that is not there": (
        [asked(), called("c1", waits=("c2",))],
        "event 2: the long-running call 'c2' is not in its content",
    ),
    "a branch that is none": ([asked(), said(branch="left")], "the branch 'left' does not consist"),
    "a branch that is too deep": ([asked(), said(branch=".".join(["fan", "left"] * 51))], "50 at most"),
    "an approval for another call": (
        [asked(), called("c1"), confirm(name="look")],
        "asks about a call that 'root' did not",
    ),
    "an approval for other arguments": ([asked(), called("c1"), confirm(args={"n": 1})], "asks about a call"),
    "an approval for another agent's call": (
        [asked(), called("c1"), confirm(author="helper")],
        "that 'helper' did not",
    ),
}


@pytest.mark.parametrize(("events", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_drive_a_turn_is_refused_with_the_reason(events: list[Event], reason: str) -> None:
    with pytest.raises(InvalidTrajectory, match=reason):
        drive(*events)


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidTrajectory, match=r"event \(1\) has 2\.0 MB, and an event may have 1\.8 MB"):
        drive(asked("x" * 2_000_000))
    monkeypatch.setattr(imports, "MAX_IMPORT_BYTES", 1_000)
    with pytest.raises(InvalidTrajectory, match="the log has more than"):
        drive(asked("x" * 600), said("x" * 600), asked(invocation="i2"))


def test_temp_keys_are_dropped() -> None:
    written = EventActions(state_delta={"temp:x": 1, "y": 2})
    log = read_log([asked(), said(actions=written)], state={"temp:z": 1, "k": 1}, fresh=fresh_ids()).projection
    assert log.state == {"k": 1, "y": 2}
    assert log.events[1].actions.state_delta == {"y": 2}


def test_no_imported_call_may_run_unless_somebody_allowed_it() -> None:
    log = (asked(), called("c1"), said())
    assert drive(*log, asked(invocation="i2")).projection.blocked_calls == {"c1"}
    assert drive(*log, asked(invocation="i2"), allow=True).projection.blocked_calls == set()


def test_calls_that_readers_do_not_see_may_not_run_either() -> None:
    """A re-entry sees them; a file that holds such is refused before."""
    log = read_log([asked()], fresh=fresh_ids())
    entries = (*log.entries, EventLogged(event=called("c1"), hidden=True), LogImported())
    assert fold_journal(entries).blocked_calls == {"c1"}


def test_the_answer_to_a_confirmation_allows_its_call_and_no_other() -> None:
    both = called("c1", "c2")
    driven = drive(asked(), both, confirm(), responded("c1", "c2"), confirmed())
    assert driven.projection.blocked_calls == {"c2", "k1"}


def test_an_answer_in_the_history_allows_nothing() -> None:
    log = read_log([asked(), called("c1"), confirm(), responded("c1"), confirmed()], fresh=fresh_ids())
    assert fold_journal((*log.entries, LogImported())).blocked_calls == {"c1", "k1"}


def test_an_import_forgets_every_plan() -> None:
    """A plan from outside could give an agent tools, or take a confirmation away."""
    entries = record(SCENARIOS["lro_pending"]).entries
    session = fold_journal((*entries, LogImported(plan_digest="d")))
    assert (session.plans, session.newest_plan, session.imported_plan) == ({}, None, "d")
    assert {invocation.plan for invocation in session.invocations.values()} == {None}


def test_nothing_of_an_import_is_at_work() -> None:
    entries = record(SCENARIOS["llm_one_tool"]).entries
    running = fold_journal(entries[:5])
    assert "running" in {invocation.status for invocation in running.invocations.values()}
    session = fold_journal((*entries[:5], LogImported()))
    assert [invocation.status for invocation in session.invocations.values()] == ["stopped"]
    assert session.turns == []


def _misfit(*events: Event, plan: Any = PLAN) -> str:
    session = read(*events)
    with pytest.raises(LogError) as caught:
        agent_of_import(session, plan, session.invocations["i1"])
    return str(caught.value)


def test_an_invocation_of_a_strangers_log_does_not_go_on() -> None:
    assert "has events of 'stranger'" in _misfit(asked(), called("c1", author="stranger"))
    assert "has events of 'stranger'" in _misfit(asked(), called("c1"), state("stranger", agent_state={}))


def test_a_hand_over_to_nobody_does_not_go_on() -> None:
    over = responded("c1").model_copy(update={"actions": EventActions(transfer_to_agent="nobody")})
    assert "hands over to 'nobody'" in _misfit(asked(), called("c1"), over)


def test_a_checkpoint_that_makes_no_sense_does_not_go_on() -> None:
    plan = plan_with(LoopNode(name="loop", sub_agents=(llm("a"),)))
    forged = state("loop", agent_state={"current_sub_agent": "a", "times_looped": "many"})
    assert "counts 'many' iterations" in _misfit(asked(), forged, plan=plan)


def test_without_checkpoints_only_llm_agents_go_on() -> None:
    plan = plan_with(SequentialNode(name="steps", sub_agents=(llm("a"),)), resumable=False)
    assert "does not tell where 'steps' was" in _misfit(asked(), called("c1", author="a"), plan=plan)
    session = read(asked(), called("c1"))
    assert agent_of_import(session, plan, session.invocations["i1"]) == "root"


def test_a_custom_agent_may_have_begun_without_a_word() -> None:
    below = CustomNode(name="inner", sub_agents=(llm("a"),), code="a:B")
    outer = CustomNode(name="outer", sub_agents=(below,), code="a:B")
    plan = plan_with(SequentialNode(name="steps", sub_agents=(outer,)))
    entries = read_log([asked(), called("c1", author="a")], fresh=fresh_ids()).entries
    events_only = fold_journal([*entries, LogImported(bare=True)])
    assert agent_of_import(events_only, plan, events_only.invocations["i1"]) == "outer"
    # A journal tells it. Imports of before did not say that they were none.
    journal = fold_journal([*entries, LogImported()])
    assert agent_of_import(journal, plan, journal.invocations["i1"]) == "a"


def test_an_answer_that_is_a_message_began_at_the_agent_that_asked() -> None:
    plan = plan_with(CustomNode(name="outer", sub_agents=(llm("a"),), code="a:B"))
    answer = responded("c1", author=USER, invocation="i2")
    log = [asked(), called("c1", author="a", waits=("c1",)), answer, said(author="a", invocation="i2")]
    session = fold_journal([*read_log(log, fresh=fresh_ids()).entries, LogImported(bare=True)])
    assert agent_of_import(session, plan, session.invocations["i1"]) == "outer"
    assert agent_of_import(session, plan, session.invocations["i2"]) == "a"


def test_an_invocation_without_events_starts_as_its_message_would_have() -> None:
    """R8: what the session did later plays no part."""
    session = read(
        asked(), asked("b", "i2"), said(author="helper", invocation="i2"), asked("c", "i3"), asked("d", "i4")
    )
    assert agent_of_import(session, PLAN, session.invocations["i1"]) == "root"
    assert agent_of_import(session, PLAN, session.invocations["i3"]) == "helper"
