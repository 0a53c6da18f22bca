"""What becomes of a call when its agent comes to it: a table."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types

from perdure.journal.entries import Entry, ToolKept, ToolOutput, ToolStarted
from perdure.journal.events import REQUEST_RECONCILE, Event, EventActions, ToolConfirmation
from perdure.journal.runs import Standing
from perdure.plan.nodes import AdkRules, LlmNode, Plan, ToolPlan
from perdure.rules.in_doubt import NOT_HAPPENED
from perdure.rules.next_call import (
    AsksApproval,
    AwaitsVerdict,
    BuiltIn,
    Facts,
    Fails,
    InDoubt,
    Kept,
    NextOfCall,
    Rejected,
    Runs,
    TakenAsSaid,
    next_of_call,
)
from tests.journal.sample_entries import called, fold, message, started

CONFIRMED, DENIED = ToolConfirmation(confirmed=True), ToolConfirmation(confirmed=False)
BEGUN = ToolStarted(invocation_id="i1", call_id="c1", agent="root", tool="ask", idempotency_key="k", timestamp=1.0)
DONE = ToolOutput(result=1)
ASKED = ToolOutput(actions=EventActions(requested_tool_confirmations={"c1": ToolConfirmation(hint="?")}))
RAISED_BEHIND = ToolOutput(result=1, callback_args={})


def plan_of(adk: int = 0, **tool: Any) -> Plan:
    declared = types.FunctionDeclaration(name="ask")
    tools = (ToolPlan(name="ask", declaration=declared, **tool), ToolPlan(name="b", declaration=declared))
    rules = AdkRules(major=2 if adk == 2 else 1) if adk else None
    return Plan(app="shop", resumable=True, adk=rules, root=LlmNode(name="root", model="scripted", tools=tools))


ONCE, APPROVED = plan_of(at_most_once=True), plan_of(confirmation="always")
ADK, ADK_ONCE = plan_of(adk=2), plan_of(adk=2, at_most_once=True)


def tool_of(plan: Plan) -> ToolPlan:
    assert isinstance(plan.root, LlmNode)
    tool = plan.root.tool("ask")
    assert tool is not None
    return tool


def kept(output: ToolOutput) -> ToolKept:
    return ToolKept(invocation_id="i1", call_id="c1", output=output)


def next_of(
    plan: Plan,
    *entries: Entry,
    name: str = "ask",
    decision: ToolConfirmation | None = None,
    authorized: bool = False,
    verdict: dict[str, Any] | None = None,
    doubted: bool = False,
    blocked: bool = False,
) -> NextOfCall:
    projection = fold(message(1), started(1), called(1, "c1", long_running=False), *entries)
    if blocked:
        projection.blocked_calls.add("c1")
    call = types.FunctionCall(id="c1", name=name, args={})
    step = Standing()
    if doubted or verdict is not None:
        step.doubts.append(doubt())
    if verdict is not None:
        response = types.FunctionResponse(id="q1", name=REQUEST_RECONCILE, response=verdict)
        content = types.Content(role="user", parts=[types.Part(function_response=response)])
        projection.events.append(Event(author="user", invocation_id="i1", content=content))
    assert isinstance(plan.root, LlmNode)
    facts = Facts(plan, projection, projection.invocations["i1"])
    return next_of_call(facts, plan.root, step, call, decision, authorized=authorized)


def doubt() -> Event:
    args = {"originalFunctionCall": {"id": "c1", "name": "ask"}}
    call = types.FunctionCall(id="q1", name=REQUEST_RECONCILE, args=args)
    content = types.Content(role="user", parts=[types.Part(function_call=call)])
    return Event(author="root", content=content, long_running_tool_ids=frozenset({"q1"}))


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (next_of(plan_of()), Runs(tool_of(plan_of()))),
        (next_of(plan_of(), kept(DONE)), Kept(DONE)),
        (next_of(plan_of(), kept(ASKED)), Kept(ASKED)),
        (next_of(plan_of(), kept(ASKED), decision=CONFIRMED), Runs(tool_of(plan_of()))),
        (next_of(plan_of(), kept(ASKED), authorized=True), Runs(tool_of(plan_of()))),
        (next_of(plan_of(), kept(ASKED), decision=DENIED), Rejected()),
        (next_of(plan_of(), kept(DONE), decision=DENIED), Kept(DONE)),
        (next_of(APPROVED), AsksApproval(ToolOutput(needs_confirmation=True))),
        (next_of(APPROVED, decision=CONFIRMED), Runs(tool_of(APPROVED))),
        (next_of(APPROVED, decision=DENIED), Rejected()),
        (next_of(ADK, decision=DENIED), Runs(tool_of(ADK))),
        (next_of(ADK, kept(RAISED_BEHIND)), Runs(tool_of(ADK), returned=True)),
        (next_of(ADK_ONCE, BEGUN, kept(RAISED_BEHIND)), Runs(tool_of(ADK_ONCE), returned=True)),
        (next_of(ONCE), Runs(tool_of(ONCE))),
        (next_of(ONCE, BEGUN), InDoubt(tool_of(ONCE))),
        (next_of(ONCE, BEGUN, doubted=True), AwaitsVerdict("q1")),
        (next_of(ONCE, BEGUN, verdict={"happened": True, "result": 5}), TakenAsSaid(ToolOutput(result=5))),
        (next_of(ONCE, BEGUN, verdict={"happened": False}), TakenAsSaid(ToolOutput(result=dict(NOT_HAPPENED)))),
        (next_of(ONCE, verdict={"run_again": True}), Runs(tool_of(ONCE), again="q1")),
        (next_of(ONCE, BEGUN, verdict={"run_again": True}), InDoubt(tool_of(ONCE), again="q1")),
        (next_of(ONCE, kept(DONE), BEGUN), Kept(DONE)),
        (next_of(plan_of(), kept(DONE), blocked=True), Kept(DONE)),
        (next_of(ONCE, doubted=True, blocked=True), AwaitsVerdict("q1")),
    ],
)
def test_what_becomes_of_a_call(found: NextOfCall, wanted: NextOfCall) -> None:
    assert found == wanted


@pytest.mark.parametrize(
    ("found", "why", "says"),
    [
        (next_of(plan_of(), blocked=True), "not allowed", "nobody allowed it to run"),
        (next_of(APPROVED, blocked=True), "not allowed", "'c1' came with an imported log"),
        (next_of(ONCE, verdict={"run_again": True}, blocked=True), "not allowed", "allow_pending_calls"),
        (next_of(ONCE, BEGUN, verdict={"done": "maybe"}), "says nothing", "a call in doubt takes"),
    ],
)
def test_what_an_import_leaves_open_fails_its_agent(found: NextOfCall, why: str, says: str) -> None:
    assert isinstance(found, Fails)
    assert found.why == why
    assert says in found.cause


def test_a_tool_that_is_not_there_is_answered_at_once_but_a_toolset_of_adk_may_have_it() -> None:
    of_perdure = next_of(plan_of(), name="listed")
    assert isinstance(of_perdure, BuiltIn)
    assert "There is no tool 'listed'" in str(of_perdure.output.result)
    of_adk = next_of(ADK, name="listed")
    assert isinstance(of_adk, Runs)
    assert of_adk.tool.name == "listed"
