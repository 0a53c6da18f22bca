"""What a session awaits and what a resume would do: right before every entry of every expected log, and by hand."""

from __future__ import annotations

import pytest
from google.genai import types

from perdure.errors import InvocationNotFound
from perdure.journal.entries import (
    Entry,
    EventLogged,
    Failure,
    LogImported,
    PlanLoaded,
    ResumeAccepted,
    SessionCreated,
    ToolKept,
    ToolOutput,
    ToolRan,
    ToolStarted,
)
from perdure.journal.events import REQUEST_CONFIRMATION, Event, EventActions
from perdure.journal.fold import fold_journal
from perdure.messages.keys import SessionKey
from perdure.plan.nodes import LlmNode, Plan, ToolOptions, ToolPlan
from perdure.views.explanation import SessionExplanation, explain_session
from tests.conformance.journals import record
from tests.conformance.logs import all_scenarios
from tests.conformance.scenario import Scenario
from tests.journal.sample_entries import (
    PLAN,
    WAITING,
    answer,
    called,
    fold,
    logged,
    message,
    plan_with,
    responded,
    resumed,
    said,
    settled,
    started,
)
from tests.views.told_steps import check_told

SCENARIOS = [scenario for scenario in all_scenarios() if record(scenario).plan.resumable]
KEY = SessionKey("shop", "ann", "s-1")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_step_that_is_told_is_the_step_that_comes(scenario: Scenario) -> None:
    """Before each event of an agent the outlook names that agent, on that branch, and what leaves such an event."""
    recorded = record(scenario)
    checked = check_told(recorded.entries, recorded.plan)
    # A scenario of composites alone has no step of a model.
    assert checked or not any(isinstance(node, LlmNode) for node in recorded.plan.nodes.values())


def explain(*entries: Entry, plan: Plan = PLAN, closed: str | None = None) -> SessionExplanation:
    # `started` pins to PLAN.
    whole = (SessionCreated(), PlanLoaded(plan=plan, digest=PLAN.digest), *entries)
    return explain_session(fold_journal(whole), KEY, closed=closed)


def test_a_waiting_invocation_is_moved_by_its_answer_only() -> None:
    told = explain(*WAITING)
    assert (told.key, told.status) == (KEY, "waiting")
    (invocation,) = told.invocations
    (awaited,) = invocation.awaits
    assert (awaited.call.id, awaited.call.agent, awaited.call.since) == ("c1", "root", 7.0)
    assert (awaited.tool, awaited.takes, awaited.example) == ("ask", "value", {"result": "…"})
    assert invocation.resume.verdict == "nothing"
    step = invocation.resume.step
    assert step is not None
    assert (step.agent, step.next, [call.next for call in step.calls]) == (
        "root",
        "awaits answers",
        ["awaits an answer"],
    )


def test_an_accepted_answer_is_told_and_the_model_comes_next() -> None:
    told = explain(*WAITING[:-1], settled(1, "stopped", reason="lunch"), answer(1, "c1"))
    (invocation,) = told.invocations
    assert (invocation.status, invocation.reason, invocation.awaits) == ("stopped", "lunch", ())
    assert (invocation.resume.verdict, invocation.resume.answers) == ("runs on", ("c1",))
    assert invocation.resume.step is not None
    assert invocation.resume.step.next == "calls its model"


def test_a_failure_is_told_with_its_cause_and_kept_results() -> None:
    failure = Failure(agent="root", step="ask", cause="RuntimeError: no")
    tools = (ToolPlan(name="ask", declaration=types.FunctionDeclaration(name="ask")),)
    plan = Plan(app="shop", resumable=True, root=LlmNode(name="root", model="scripted", tools=tools))
    told = explain(
        message(1),
        started(1),
        called(1, "c1", "c2", long_running=False),
        ToolKept(invocation_id="i1", call_id="c1", output=ToolOutput(result=1)),
        ToolRan(call_id="c2", outcome="failed", attempts=3, started=1.0, ended=2.0, cause="no"),
        settled(1, "failed", failures=(failure,)),
        plan=plan,
    )
    (invocation,) = told.invocations
    assert invocation.failures == (failure,)
    assert [(kept.call_id, kept.tool, kept.agent) for kept in invocation.resume.kept] == [("c1", "ask", "root")]
    assert invocation.resume.step is not None
    assert [(call.next, call.attempts) for call in invocation.resume.step.calls] == [("result kept", 0), ("runs", 3)]


def paying(*, reconcile: bool = False, confirmation: bool = False) -> Plan:
    tool = ToolPlan(
        name="ask",
        declaration=types.FunctionDeclaration(name="ask"),
        at_most_once=not confirmation,
        reconcile=reconcile,
        options=ToolOptions(max_attempts=1),
        confirmation="always" if confirmation else "never",
    )
    return Plan(app="shop", resumable=True, root=LlmNode(name="root", model="scripted", tools=(tool,)))


def test_a_call_in_doubt_is_asked_about_and_not_run() -> None:
    begun = ToolStarted(invocation_id="i1", call_id="c1", agent="root", tool="ask", idempotency_key="k", timestamp=1.0)
    once = (message(1), started(1), called(1, "c1", long_running=False))
    for entries, wanted in [((begun,), "asks what became of it"), ((), "runs")]:
        told = explain(*once, *entries, settled(1, "stopped"), plan=paying())
        step = told.invocations[0].resume.step
        assert step is not None
        assert [call.next for call in step.calls] == [wanted]


def approval(**fields: object) -> EventLogged:
    call = types.FunctionCall(
        id="q1", name=REQUEST_CONFIRMATION, args={"originalFunctionCall": {"id": "c1", "name": "ask", "args": {"n": 1}}}
    )
    event = Event(
        id="q",
        author="root",
        invocation_id="i1",
        content=types.Content(role="user", parts=[types.Part(function_call=call)]),
        long_running_tool_ids=frozenset({"q1"}),
    )
    return EventLogged(event=event.model_copy(update=fields), run="root")


def decided(*, confirmed: bool) -> tuple[Entry, ...]:
    accepted = answer(1, "q1")
    response = types.FunctionResponse(id="q1", name=REQUEST_CONFIRMATION, response={"confirmed": confirmed})
    content = types.Content(role="user", parts=[types.Part(function_response=response)])
    return (accepted.model_copy(update={"event": accepted.event.model_copy(update={"content": content})}), logged("q1"))


def test_an_approval_is_asked_for_awaited_and_followed() -> None:
    plan = paying(confirmation=True)
    once = (message(1), started(1), called(1, "c1", long_running=False))
    asked = (*once, approval(), responded(1, "c1"))
    for entries, wanted, kind in [
        (once, "asks for approval", "runs tools"),
        (asked, "awaits an answer", "awaits answers"),
        ((*asked, *decided(confirmed=True)), "runs", "runs tools"),
        ((*asked, *decided(confirmed=False)), "rejected", "runs tools"),
    ]:
        told = explain(*entries, settled(1, "stopped"), plan=plan)
        step = told.invocations[0].resume.step
        assert step is not None
        assert (step.next, [call.next for call in step.calls]) == (kind, [wanted])
    awaited = explain(*asked, settled(1, "waiting"), plan=plan).invocations[0].awaits
    assert [(found.tool, found.takes, found.example) for found in awaited] == [("ask", "decision", {"confirmed": True})]


def test_a_transfer_is_followed_down_to_the_agent_that_works() -> None:
    transfer = EventLogged(
        event=Event(
            id="t",
            author="root",
            invocation_id="i1",
            content=responded(1, "c0").event.content,
            actions=EventActions(transfer_to_agent="helper"),
        ),
        run="root",
    )
    told = explain(message(1), started(1), called(1, "c0", long_running=False), transfer, settled(1, "stopped"))
    step = told.invocations[0].resume.step
    assert step is not None
    assert (step.next, step.below[0].agent, step.below[0].next) == ("hands over", "helper", "calls its model")


def test_what_cannot_be_resumed_is_refused_in_words() -> None:
    running = explain(message(1), started(1), message(2)).invocations
    assert [found.resume.verdict for found in running] == ["refused", "refused"]
    assert "'i1' is running already" in running[0].resume.why
    assert (running[0].behind, running[1].behind) == ((), ("i1",))
    failed = explain(message(1), started(1), settled(1, "failed"), plan=plan_with(resumable=False)).invocations[0]
    assert (failed.resume.verdict, failed.resume.step) == ("refused", None)
    assert "not resumable" in failed.resume.why


def test_a_resume_that_is_accepted_waits_for_its_turn() -> None:
    told = explain(
        message(1), started(1), settled(1, "stopped"), message(2), started(2), ResumeAccepted(invocation_id="i1")
    )
    assert [(found.id, found.status, found.behind) for found in told.invocations] == [
        ("i2", "running", ()),
        ("i1", "queued", ("i2",)),
    ]


def test_of_finished_invocations_the_newest_is_told() -> None:
    finished = (message(1), started(1), said(1, "root"), settled(1, "finished"))
    told = explain(*finished, message(2), started(2), said(2, "root"), settled(2, "finished"))
    assert [(found.id, found.resume.verdict) for found in told.invocations] == [("i2", "nothing")]
    assert told.invocation_count == 2
    assert explain().invocations == ()


def test_a_closed_session_is_told_as_it_will_be_brought_back() -> None:
    told = explain(message(1), started(1), closed="terminated")
    (invocation,) = told.invocations
    assert (told.closed, told.status, invocation.status) == ("terminated", "stopped", "stopped")
    assert (invocation.resume.verdict, invocation.reason) == ("runs on", "the session's workflow was terminated")


def test_an_imported_invocation_has_no_plan_yet() -> None:
    told = explain(message(1), started(1), settled(1, "stopped"), LogImported())
    resume = told.invocations[0].resume
    assert (resume.verdict, resume.step) == ("runs on", None)
    assert "imported" in resume.why


def test_an_invocation_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvocationNotFound, match="'s-1' has no invocation 'i9'"):
        explain_session(fold(*WAITING), KEY, invocation_id="i9")
    told = explain_session(fold(*WAITING, resumed(1)), KEY, invocation_id="i1")
    assert [found.id for found in told.invocations] == ["i1"]
