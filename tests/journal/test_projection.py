"""The projection's rules, on the expected logs of all scenarios and on journals written by hand."""

from __future__ import annotations

import pytest

from perdure.journal.entries import (
    ActivityKept,
    Entry,
    EventLogged,
    Failure,
    InvocationStarted,
    MessageAccepted,
    ModelCalled,
    PlanLoaded,
    ResumeAccepted,
    SessionCreated,
    SharedStateRead,
    TempStateSet,
    ToolKept,
    ToolOutput,
)
from perdure.journal.events import USER, Event, EventActions
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.open_calls import SessionStatus
from perdure.journal.projection import Projection, split_state_delta
from perdure.plan.nodes import SequentialNode
from perdure.views.pages import invocation_view, session_status
from tests.conformance.journals import record
from tests.conformance.logs import all_scenarios, expected_turns
from tests.conformance.scenario import Scenario
from tests.journal.sample_entries import (
    PLAN,
    WAITING,
    answer,
    called,
    fold,
    llm,
    logged,
    message,
    plan_with,
    responded,
    responses,
    resumed,
    said,
    settled,
    started,
)

SCENARIOS = all_scenarios()
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@every_scenario
def test_readers_see_the_expected_log_and_state(scenario: Scenario) -> None:
    projection = fold_journal(record(scenario).entries)
    assert projection.events == sum(expected_turns(scenario), list[Event]())
    assert projection.state == scenario.expect.final_state
    assert projection.turns == []


@every_scenario
def test_every_message_runs_the_agent_that_the_expected_log_shows(scenario: Scenario) -> None:
    """The first agent event is of the agent that starts; if the app shows no checkpoints, it may be one underneath."""
    projection = fold_journal(record(scenario).entries)
    for invocation in projection.invocations.values():
        assert invocation.agent is not None
        events = [event for event in projection.events if event.invocation_id == invocation.id]
        first = next((event.author for event in events if event.author != USER), invocation.agent)
        plan = projection.plans[invocation.plan or ""]
        assert first == invocation.agent if plan.resumable else invocation.agent in plan.path(first)


@every_scenario
def test_the_calls_that_stay_open_are_those_without_a_users_response(scenario: Scenario) -> None:
    recorded = record(scenario)
    for length in recorded.turn_ends:
        projection = fold_journal(recorded.entries[:length])
        answered = {
            response.id
            for event in projection.events
            if event.author == USER
            for response in event.get_function_responses()
        }
        waiting = [
            call_id
            for event in projection.events
            for call in event.get_function_calls()
            if (call_id := call.id) in (event.long_running_tool_ids or ()) and call_id not in answered
        ]
        assert [call.id for call in projection.open_calls()] == waiting


# Hand-written journals.


def turns(projection: Projection) -> list[tuple[str, str]]:
    return [(turn.kind, turn.invocation_id) for turn in projection.turns]


def test_messages_answers_and_resumes_take_turns_in_order_of_arrival() -> None:
    before = (*WAITING, message(2), started(2), settled(2, "failed"))
    projection = fold(*before, message(3), answer(1, "c1"), ResumeAccepted(invocation_id="i2"))
    assert turns(projection) == [("message", "i3"), ("answer", "i1"), ("resume", "i2")]
    apply_entry(projection, started(3))
    assert turns(projection) == [("answer", "i1"), ("resume", "i2")]
    apply_entry(projection, resumed(1))
    assert turns(projection) == [("resume", "i2")]


def test_a_message_is_in_the_log_only_when_its_turn_has_come() -> None:
    projection = fold(message(1), started(1), message(2))
    assert [event.id for event in projection.events] == ["m1"]
    assert projection.invocations["i2"].status == "queued"
    apply_entry(projection, settled(1, "finished"))
    apply_entry(projection, started(2))
    assert [(event.id, event.timestamp) for event in projection.events] == [("m1", 1.0), ("m2", 2.0)]


def test_an_answer_to_a_running_invocation_takes_no_turn() -> None:
    projection = fold(message(1), started(1), called(1, "c1"), answer(1, "c1"))
    assert turns(projection) == []
    assert projection.invocations["i1"].answers != []


def test_answers_to_a_stopped_invocation_are_kept_and_take_no_turn() -> None:
    projection = fold(*WAITING[:-1], settled(1, "stopped", reason="enough"), answer(1, "c1"))
    assert turns(projection) == []
    assert projection.open_calls() == []
    assert projection.loggable_answer(projection.invocations["i1"]) is not None
    assert session_status(projection) == "stopped"
    assert invocation_view(projection, projection.invocations["i1"]).reason == "enough"


def test_a_stop_takes_the_turns_of_its_invocation_away() -> None:
    projection = fold(*WAITING, answer(1, "c1"), message(2), settled(1, "stopped"))
    assert turns(projection) == [("message", "i2")]


def test_an_answer_waits_for_the_response_event_of_its_own_call() -> None:
    projection = fold(message(1), started(1), called(1, "c1", "c2"), answer(1, "c2"))
    invocation = projection.invocations["i1"]
    assert projection.loggable_answer(invocation) is None
    apply_entry(projection, responded(1, "c1", "c2"))
    event = projection.loggable_answer(invocation)
    assert event is not None
    assert event.id == "a-c2"


def test_a_tool_that_returned_nothing_has_no_response_event_to_wait_for() -> None:
    projection = fold(message(1), started(1), called(1, "c1"), answer(1, "c1"))
    apply_entry(projection, ToolKept(invocation_id="i1", call_id="c1", output=ToolOutput(result={})))
    assert projection.loggable_answer(projection.invocations["i1"]) is not None


def test_a_tool_whose_response_is_still_to_be_logged_holds_its_answer_back() -> None:
    projection = fold(message(1), started(1), called(1, "c1"), answer(1, "c1"))
    apply_entry(projection, ToolKept(invocation_id="i1", call_id="c1", output=ToolOutput(result={"status": "pending"})))
    assert projection.loggable_answer(projection.invocations["i1"]) is None


def test_an_answer_that_can_be_logged_is_not_held_up_by_one_that_cannot() -> None:
    projection = fold(message(1), started(1), called(1, "c1"), called(1, "c2"), responded(1, "c2"))
    apply_entry(projection, answer(1, "c1"))
    apply_entry(projection, answer(1, "c2"))
    event = projection.loggable_answer(projection.invocations["i1"])
    assert event is not None
    assert event.id == "a-c2"


def test_an_accepted_answer_closes_its_call_before_it_is_logged() -> None:
    """So that a second one is refused, however long the first waits for its turn."""
    projection = fold(*WAITING, message(2), started(2), answer(1, "c1"))
    assert projection.open_calls() == []
    assert projection.calls["c1"].answer == "accepted"
    assert projection.answer_to("c1") is None
    apply_entry(projection, settled(2, "finished"))
    apply_entry(projection, resumed(1))
    apply_entry(projection, logged("c1"))
    assert projection.calls["c1"].answer == "logged"
    assert projection.answer_to("c1") == {"ok": True}
    assert projection.events[-1].timestamp == 9.0


def test_the_tools_own_pending_response_is_no_answer() -> None:
    assert fold(*WAITING).answer_to("c1") is None


def test_open_calls_say_who_waits_for_what_since_when() -> None:
    (call,) = fold(*WAITING).open_calls("i1")
    assert (call.id, call.name, call.args, call.agent, call.invocation_id) == ("c1", "ask", {"n": 1}, "root", "i1")
    assert (call.branch, call.since) == (None, 7.0)
    assert fold(*WAITING).open_calls("i2") == []


def test_a_finished_invocation_takes_answers_only_where_nothing_pauses() -> None:
    finished = (*WAITING[:-1], settled(1, "finished"))
    assert fold(*finished).open_calls() == []
    unresumable = plan_with(resumable=False)
    start = started(1).model_copy(update={"plan": unresumable.digest})
    entries = [start if isinstance(entry, InvocationStarted) else entry for entry in finished]
    assert [call.id for call in fold(*entries, plan=unresumable).open_calls()] == ["c1"]


def test_a_message_that_answers_a_call_closes_it() -> None:
    """Without resumability an answer starts a new invocation."""
    event = Event(id="m2", author=USER, invocation_id="i2", content=responses("c1"))
    projection = fold(*WAITING[:-1], settled(1, "finished"), MessageAccepted(event=event))
    assert projection.calls["c1"].answer == "accepted"
    apply_entry(projection, started(2))
    assert projection.answer_to("c1") == {"ok": True}


def test_a_request_id_is_known_as_long_as_the_journal() -> None:
    projection = fold(message(1, "r1"), started(1), called(1, "c1"), answer(1, "c1", request_id="r2"))
    assert projection.requests == {"r1": "i1", "r2": "i1"}


FAILED = settled(1, "failed", failures=(Failure(agent="root", step="model", cause="overloaded"),))


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        ((), "idle"),
        ((message(1),), "running"),
        ((message(1), started(1)), "running"),
        ((message(1), started(1), settled(1, "finished")), "idle"),
        (WAITING, "waiting"),
        ((*WAITING, answer(1, "c1")), "running"),
        ((message(1), started(1), FAILED), "failed"),
        ((message(1), started(1), settled(1, "stopped")), "stopped"),
        ((*WAITING, message(2), started(2)), "running"),
        ((*WAITING, message(2), started(2), settled(2, "failed")), "failed"),
        ((*WAITING, message(2), started(2), settled(2, "stopped")), "waiting"),
        ((*WAITING, message(2), started(2), settled(2, "finished")), "waiting"),
        ((message(1), started(1), FAILED, message(2), started(2), settled(2, "finished")), "failed"),
    ],
)
def test_the_status_of_a_session_goes_by_precedence(entries: tuple[Entry, ...], status: SessionStatus) -> None:
    assert session_status(fold(*entries)) == status


def test_a_failure_that_nobody_can_resume_is_past_when_another_message_came() -> None:
    unresumable = plan_with(resumable=False)

    def start(number: int) -> InvocationStarted:
        return started(number).model_copy(update={"plan": unresumable.digest})

    projection = fold(message(1), start(1), FAILED, plan=unresumable)
    assert session_status(projection) == "failed"
    for entry in (message(2), start(2), settled(2, "finished")):
        apply_entry(projection, entry)
    assert session_status(projection) == "idle"
    assert invocation_view(projection, projection.invocations["i1"]).resumable is False


def test_a_view_of_a_failed_invocation_says_what_failed_and_that_it_can_be_resumed() -> None:
    projection = fold(message(1), started(1), called(1, "c1"), FAILED)
    view = invocation_view(projection, projection.invocations["i1"])
    assert (view.status, view.agent, view.resumable) == ("failed", "root", True)
    assert [failure.cause for failure in view.failures] == ["overloaded"]
    assert [call.id for call in view.pending] == ["c1"]


def test_a_resume_clears_what_had_failed() -> None:
    projection = fold(message(1), started(1), FAILED, ResumeAccepted(invocation_id="i1"), resumed(1))
    invocation = projection.invocations["i1"]
    assert (invocation.status, invocation.failures, projection.turns) == ("running", (), [])


TREE = plan_with(
    llm("open", llm("leaf")),
    llm("shut", llm("below"), locked=True),
    SequentialNode(name="flow", sub_agents=(llm("step"),)),
)


@pytest.mark.parametrize(
    ("authors", "agent"),
    [
        ([], "root"),
        (["root", "open"], "open"),
        (["open", "leaf"], "leaf"),
        (["open", "shut"], "open"),
        (["open", "below"], "open"),
        (["open", "flow", "step"], "open"),
        (["shut"], "root"),
        (["open", "gone"], "open"),
    ],
)
def test_a_message_runs_the_last_agent_from_which_control_can_go_back_to_the_root(
    authors: list[str], agent: str
) -> None:
    projection = fold(message(1), started(1), *(said(1, author) for author in authors), settled(1, "finished"))
    assert projection.starting_agent(TREE) == agent


def test_state_events_and_user_events_do_not_tell_where_control_is() -> None:
    """An agent that logged nothing but checkpoints and ends is passed over."""
    ended = EventLogged(event=Event(id="x", author="leaf", invocation_id="i1", actions=EventActions(end_of_agent=True)))
    at_state = EventLogged(event=Event(id="y", author="leaf", invocation_id="i1", actions=EventActions(agent_state={})))
    projection = fold(message(1), started(1), said(1, "open"), ended, at_state, message(2), started(2))
    assert projection.starting_agent(TREE) == "open"


def test_an_invocation_keeps_the_agent_that_started_it() -> None:
    """R8: what the session did later plays no part."""
    projection = fold(*WAITING, message(2), started(2), said(2, "helper"), settled(2, "finished"), answer(1, "c1"))
    assert projection.starting_agent(PLAN) == "helper"
    assert projection.invocations["i1"].agent == "root"


def test_temp_keys_belong_to_their_invocation_and_are_never_stored() -> None:
    projection = fold(
        SessionCreated(state={"a": 1, "temp:x": 0}),
        message(1),
        started(1),
        TempStateSet(invocation_id="i1", delta={"temp:x": 1}),
        said(1, "root", state_delta={"b": 2}),
    )
    assert projection.state == {"a": 1, "b": 2}
    assert projection.visible_state("i1") == {"a": 1, "b": 2, "temp:x": 1}
    assert projection.visible_state("i2") == {"a": 1, "b": 2}
    apply_entry(projection, settled(1, "finished"))
    assert projection.visible_state("i1") == {"a": 1, "b": 2}
    assert split_state_delta({"temp:x": 1, "y": 2, "user:z": 3}) == ({"y": 2, "user:z": 3}, {"temp:x": 1})


def test_a_snapshot_of_shared_state_replaces_all_shared_keys() -> None:
    projection = fold(
        said(1, "root", state_delta={"user:lang": "en", "user:old": 1, "app:n": 1, "own": 1}),
        SharedStateRead(state={"user:lang": "de", "app:n": 2}),
    )
    assert projection.state == {"user:lang": "de", "app:n": 2, "own": 1}


def test_hidden_entries_are_for_re_entry_only() -> None:
    hidden = EventLogged(
        event=Event(id="h", author="root", invocation_id="i1", actions=EventActions(agent_state={"step": 1})),
        hidden=True,
    )
    kept = ActivityKept(invocation_id="i1", agent="root", name="draw", result=1)
    projection = fold(message(1), started(1), hidden, kept)
    assert [event.id for event in projection.events] == ["m1"]
    assert projection.invocations["i1"].entries == [hidden, kept]


def test_a_finished_invocation_lets_go_of_what_only_a_resume_needs() -> None:
    output = ToolOutput(result=1)
    entries = (message(1), started(1), said(1, "root"), ToolKept(invocation_id="i1", call_id="c9", output=output))
    projection = fold(*entries)
    assert projection.invocations["i1"].kept == {"c9": output}
    apply_entry(projection, settled(1, "finished"))
    invocation = projection.invocations["i1"]
    assert (invocation.entries, invocation.kept, invocation.temp) == ([], {}, {})
    assert [event.id for event in projection.events] == ["m1", "s"]


def test_a_failed_or_waiting_invocation_keeps_everything() -> None:
    assert fold(*WAITING).invocations["i1"].entries == [WAITING[2], WAITING[3]]


def test_model_calls_are_counted_by_agent_over_the_whole_session() -> None:
    projection = fold(ModelCalled(agent="root"), ModelCalled(agent="helper"), ModelCalled(agent="root"))
    assert projection.model_calls == {"root": 2, "helper": 1}


def test_an_invocation_is_pinned_to_the_plan_that_it_started_with() -> None:
    newer = plan_with(llm("helper"), llm("newcomer"))
    projection = fold(message(1), started(1), PlanLoaded(plan=newer), message(2))
    assert projection.plan_of(projection.invocations["i1"]) == PLAN
    assert projection.plan_of(projection.invocations["i2"]) == newer


def test_the_event_of_a_call_is_found() -> None:
    projection = fold(*WAITING)
    event = projection.event_of_call("c1")
    assert event is not None
    assert event.id == "call-c1"
    assert projection.event_of_call("c9") is None


def test_responses_to_a_call_are_those_behind_it() -> None:
    """A log from elsewhere may hold an id in several turns."""
    projection = fold(
        message(1),
        started(1),
        called(1, "a", "b", long_running=False),
        responded(1, "a"),
        responded(1, "b"),
        responded(1, "a"),
        settled(1, "finished"),
        message(2),
        started(2),
        called(2, "a", long_running=False),
    )
    assert [len(projection.responses_to(call_id)) for call_id in ("a", "b", "c")] == [0, 1, 0]
    apply_entry(projection, responded(2, "a"))
    assert len(projection.responses_to("a")) == 1
