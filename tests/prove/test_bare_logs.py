"""Where a bare log is cut, and what may come out differently there: no server needed."""

from __future__ import annotations

from collections.abc import Sequence

from google.genai import types

from perdure.journal.entries import (
    Entry,
    EventLogged,
    Failure,
    FailureCaught,
    InvocationSettled,
    InvocationStarted,
    MessageAccepted,
    ModelCalled,
    ResumeAccepted,
    SessionCreated,
    ToolKept,
    ToolOutput,
    ToolRan,
)
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.prove.bare_logs import (
    ATTEMPTS,
    CAUGHT,
    FAILED_THERE,
    FAILURE_OVER,
    HALF_SENT,
    NO_TRIGGER,
    NOT_RESUMABLE,
    TOOL_AGAIN,
    bare_cuts,
    without_pending,
)
from perdure.prove.ledger import Step
from perdure.prove.outcome import Outcome


def said(author: str, words: str, invocation: str = "e-1") -> Event:
    content = user_content(words) if author == USER else types.Content(role="model", parts=[types.Part(text=words)])
    return Event(id=f"{author}-{invocation}-{words}", author=author, invocation_id=invocation, content=content)


def called(*call_ids: str) -> Event:
    parts = [types.Part(function_call=types.FunctionCall(id=call_id, name="pay", args={})) for call_id in call_ids]
    content = types.Content(role="model", parts=parts)
    return Event(id=f"m-{call_ids[0]}", author="clerk", invocation_id="e-1", content=content)


def responded(*call_ids: str, author: str = "clerk") -> Event:
    answers = [types.FunctionResponse(id=call_id, name="pay", response={"ok": True}) for call_id in call_ids]
    content = types.Content(role="user", parts=[types.Part(function_response=answer) for answer in answers])
    return Event(id=f"r-{author}", author=author, invocation_id="e-1", content=content)


def paid(number: int, call_id: str, error: str | None = None) -> Step:
    activity = f"run/{number}"
    values = {"workflow": "w", "activity": activity, "attempt": 1, "process": 1, "key": f"e-1/{call_id}"}
    return Step(number=number, kind="tool", name="pay", ended=True, error=error, **values)  # pyright: ignore[reportArgumentType] -- a mapping of several types


def modelled(number: int) -> Step:
    activity = f"run/{number}"
    return Step(number, "model", "perdure:model", "w", activity, 1, 1, agent="clerk", call_index=number, ended=True)


def started(event: Event) -> list[Entry]:
    first = InvocationStarted(invocation_id=event.invocation_id, agent="clerk", plan="", timestamp=event.timestamp)
    return [MessageAccepted(event=event), first]


def logged(*events: Event) -> list[Entry]:
    return [EventLogged(event=event) for event in events]


def a_run(turns: Sequence[tuple[list[Event], list[Entry]]], steps: list[Step]) -> Outcome:
    outcome = Outcome(journal=[SessionCreated()], steps=steps)
    for events, entries in turns:
        outcome.journal += entries
        outcome.turns.append(events)
        outcome.turn_ends.append(len(outcome.journal))
    return outcome


GO, CALL, BACK, END = said(USER, "go"), called("a", "b"), responded("a", "b"), said("clerk", "done")
BROKE = ToolRan(call_id="a", outcome="failed", started=1.0, ended=2.0)
OVER = Event(
    id="o", author="clerk", invocation_id="e-1", actions=EventActions(end_of_agent=True)
)  # what a resumable app logs last


def test_a_kept_result_is_not_in_the_log_so_its_tool_runs_again() -> None:
    kept = ToolKept(invocation_id="e-1", call_id="a", output=ToolOutput(result=1))
    entries = [*started(GO), ModelCalled(agent="clerk"), *logged(CALL), kept, *logged(BACK)]
    entries += [ModelCalled(agent="clerk"), *logged(END, OVER)]
    reference = a_run([([GO, CALL, BACK, END, OVER], entries)], [modelled(0), paid(1, "a"), paid(2, "b"), modelled(3)])
    cuts = bare_cuts(reference, {}, resumable=True)
    assert [(cut.length, cut.allowed, cut.skipped) for cut in cuts] == [
        (1, (), None),
        (2, (TOOL_AGAIN,), None),
        (3, (), None),
        (4, (), NO_TRIGGER),
        (5, (), NO_TRIGGER),
    ]
    assert cuts[1].done == {("model of clerk", ""): 1}
    assert cuts[2].done == {("model of clerk", ""): 1, ("tool pay", "e-1/a"): 1, ("tool pay", "e-1/b"): 1}


def test_failures_of_the_turns_before_are_over_and_those_of_the_same_turn_are_not() -> None:
    call, back = called("a"), responded("a")
    failure = Failure(agent="clerk", step="pay", cause="no")
    failed = InvocationSettled(invocation_id="e-1", status="failed", failures=(failure,))
    first = [*started(GO), ModelCalled(agent="clerk"), *logged(call), BROKE, failed]
    # The second model call failed as well: it is counted, and nothing is logged.
    second = [ResumeAccepted(invocation_id="e-1"), *logged(back), ModelCalled(agent="clerk"), failed]
    third = [ResumeAccepted(invocation_id="e-1"), ModelCalled(agent="clerk"), *logged(called("c"))]
    steps = [modelled(0), paid(1, "a", "RuntimeError"), paid(2, "a"), modelled(3), modelled(4)]
    reference = a_run([([GO, call], first), ([back], second), ([called("c")], third)], steps)
    cuts = bare_cuts(reference, {}, resumable=True)
    assert [(cut.turn, cut.allowed, cut.skipped) for cut in cuts] == [
        (0, (), None),
        (0, (), None),
        (1, (FAILURE_OVER,), None),
        (2, (FAILURE_OVER,), None),
    ]
    assert ("tool pay", "e-1/a") not in cuts[1].done
    assert cuts[2].done[("tool pay", "e-1/a")] == 2
    # The second turn's model fails behind the cut, and has failed before the last one.
    assert [dict(cut.failed_calls) for cut in cuts] == [{}, {}, {}, {"clerk": 1}]
    assert cuts[3].done[("model of clerk", "")] == 3


def test_what_ran_in_an_invocation_that_does_not_go_on_does_not_run_again() -> None:
    """Beside a call that failed another one completed, whose result no event holds."""
    kept = ToolKept(invocation_id="e-1", call_id="b", output=ToolOutput())
    failure = Failure(agent="clerk", step="pay", cause="no")
    failed = InvocationSettled(invocation_id="e-1", status="failed", failures=(failure,))
    again, more = said(USER, "more", "e-2"), said("clerk", "again", "e-2")
    turns = [
        ([GO, CALL], [*started(GO), ModelCalled(agent="clerk"), *logged(CALL), kept, BROKE, failed]),
        ([again, more], [*started(again), ModelCalled(agent="clerk"), *logged(more)]),
    ]
    steps = [modelled(0), paid(1, "a", "RuntimeError"), paid(2, "b"), modelled(3)]
    for resumable in (False, True):
        cuts = bare_cuts(a_run(turns, steps), {}, resumable=resumable)
        assert (cuts[2].skipped, cuts[2].allowed) == (None, (FAILURE_OVER,))
        assert cuts[2].done == {("model of clerk", ""): 1, ("tool pay", "e-1/a"): 1, ("tool pay", "e-1/b"): 1}


def test_a_log_is_not_cut_behind_a_failure_that_was_dealt_with() -> None:
    failure = Failure(agent="clerk", step="pay", cause="no")
    caught = FailureCaught(invocation_id="e-1", agent="boss", failures=(failure,), sub_run="boss/clerk")
    entries = [*started(GO), ModelCalled(agent="clerk"), *logged(CALL), caught, *logged(END)]
    cuts = bare_cuts(a_run([([GO, CALL, END], entries)], [modelled(0), paid(1, "a")]), {}, resumable=True)
    assert [cut.skipped for cut in cuts] == [None, CAUGHT, CAUGHT]


def test_a_log_is_not_cut_amid_the_attempts_of_a_node() -> None:
    """A node's attempts are counted by google.adk's loop: of one that goes on with the log, from the first."""

    def of_node(name: str, error: str | None) -> Event:
        place = {"path": f"graph@1/{name}@1"}
        return Event(id=f"{name}-{error}", author="graph", invocation_id="e-1", node_info=place, error_code=error)

    log = [said(USER, "go"), of_node("a", "once"), of_node("a", "twice"), of_node("b", None), of_node("a", None)]
    outcome = a_run([(log, [*started(log[0]), *logged(*log[1:])])], [])
    assert [cut.skipped == ATTEMPTS for cut in bare_cuts(outcome, {}, resumable=True)] == [False, *[True] * 3, False]


def test_a_turn_that_failed_with_an_event_is_not_driven_on_where_the_user_sent_something_else() -> None:
    """What a provider refuses is logged, so the log's end drives a resume, which the user did not ask for."""
    refused = Event(id="n", author="clerk", invocation_id="e-1", error_code="SAFETY")
    failure = Failure(agent="clerk", step="model", cause="no")
    failed = InvocationSettled(invocation_id="e-1", status="failed", failures=(failure,))
    first = ([GO, refused], [*started(GO), ModelCalled(agent="clerk"), *logged(refused), failed])
    again, more = said(USER, "more", "e-2"), said("clerk", "again", "e-2")
    second = ([again, more], [*started(again), ModelCalled(agent="clerk"), *logged(more)])
    resumed = ([END], [ResumeAccepted(invocation_id="e-1"), ModelCalled(agent="clerk"), *logged(END)])
    steps = [modelled(0), modelled(1)]
    for turns, reason in (([first, second], FAILED_THERE), ([first, resumed], None), ([first], None)):
        assert bare_cuts(a_run(turns, steps), {}, resumable=True)[1].skipped == reason


def test_an_app_that_is_not_resumable_is_cut_behind_what_the_user_sends() -> None:
    again, more = said(USER, "more", "e-2"), said("clerk", "again", "e-2")
    turns = [
        ([GO, END], [*started(GO), ModelCalled(agent="clerk"), *logged(END)]),
        ([again, more], [*started(again), ModelCalled(agent="clerk"), *logged(more)]),
    ]
    cuts = bare_cuts(a_run(turns, [modelled(0), modelled(1)]), {}, resumable=False)
    assert [cut.skipped for cut in cuts] == [None, NOT_RESUMABLE, None, NOT_RESUMABLE]


def test_what_the_user_sent_at_once_is_not_cut() -> None:
    answers = [responded("a", author=USER), said("clerk", "x"), said(USER, "p"), said(USER, "q")]
    reference = a_run([(answers, [])], [])
    assert bare_cuts(reference, {}, resumable=True)[2].skipped == HALF_SENT


def test_a_pending_response_is_left_out_of_both_logs_but_nothing_else() -> None:
    answer = responded("a", author=USER)
    outcome = Outcome(turns=[[GO, CALL, BACK], [answer, END]])
    left = without_pending(outcome, frozenset({"a"})).turns
    assert [event.id for turn in left for event in turn] == [GO.id, CALL.id, BACK.id, answer.id, END.id]
    assert [response.id for response in left[0][2].get_function_responses()] == ["b"]
    assert without_pending(outcome, frozenset({"a", "b"})).turns == [[GO, CALL], [answer, END]]
