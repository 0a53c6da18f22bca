"""What an LLM agent does next: a table over its standing, the app and the version of ADK, and the walk of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from google.genai import types

from perdure.journal.entries import Entry, ToolKept, ToolOutput
from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, Event, EventActions, ToolConfirmation
from perdure.journal.node_runs import NodeRun
from perdure.journal.runs import AgentRun, Standing
from perdure.plan.nodes import AdkRules, LlmNode, Plan, ToolPlan
from perdure.rules.llm_turns import Turn, find_turn
from perdure.rules.next_call import Facts
from perdure.rules.next_step import (
    AskForThem,
    AskModel,
    BeginAnew,
    End,
    EndTurn,
    Fail,
    GiveAnswer,
    GiveTasks,
    HandOver,
    Listen,
    NextStep,
    RunAuthorized,
    RunCalls,
    RunConfirmed,
    SignIn,
    WaitFor,
    next_step,
    step_ahead,
)
from tests.journal.sample_entries import answer, called, fold, llm, logged, message, started

ASKED = {"c1": ToolConfirmation(hint="?")}
CONFIRMED = types.FunctionResponse(id="q1", name=REQUEST_CONFIRMATION, response={"confirmed": True})


def facts_of(
    *entries: Entry,
    adk: Literal[0, 1, 2] = 0,
    resumable: bool = True,
    mode: Literal["task"] | None = None,
    ahead: bool = False,
    interrupted: bool = False,
) -> Facts:
    declared = types.FunctionDeclaration(name="ask")
    task = ToolPlan(name="helper", declaration=declared, delegates="task")
    tools = (ToolPlan(name="ask", declaration=declared), task)
    root = LlmNode(
        name="root",
        model="scripted",
        tools=tools,
        sub_agents=(llm("helper"),),
        mode=mode,
        output_schema={"type": "object"},
    )
    plan = Plan(app="shop", resumable=resumable, adk=AdkRules(major=adk) if adk else None, root=root)
    projection = fold(message(1), started(1), *entries)
    return Facts(plan, projection, projection.invocations["i1"], looks_ahead=ahead, interrupted=interrupted)


def calling(*names: str, long_running: Sequence[str] = ()) -> Event:
    calls = [types.FunctionCall(id=f"c{number}", name=name, args={}) for number, name in enumerate(names, start=1)]
    parts = [types.Part(function_call=call) for call in calls]
    return Event(
        id="m",
        author="root",
        content=types.Content(role="model", parts=parts),
        long_running_tool_ids=frozenset(long_running),
    )


def responding(*ids: str, **actions: Any) -> Event:
    parts = [types.Part(function_response=types.FunctionResponse(id=id, name="ask", response={})) for id in ids]
    return Event(author="root", content=types.Content(role="user", parts=parts), actions=EventActions(**actions))


def asking(name: str, **args: Any) -> Event:
    part = types.Part(function_call=types.FunctionCall(id="q1", name=name, args=args))
    content = types.Content(role="user", parts=[part])
    return Event(id="q", author="root", content=content, long_running_tool_ids=frozenset({"q1"}))


APPROVAL = asking(REQUEST_CONFIRMATION, originalFunctionCall={"id": "c1", "name": "ask"})
CREDENTIAL = asking(REQUEST_CREDENTIAL, functionCallId="c1", authConfig={})
TOOLSET = asking(REQUEST_CREDENTIAL, functionCallId="_adk_toolset_auth_Docs", authConfig={})
CALL = calling("ask").get_function_calls()[0]


def replied(name: str, response: dict[str, Any]) -> Event:
    part = types.Part(function_response=types.FunctionResponse(id="q1", name=name, response=response))
    return Event(author="user", invocation_id="i1", content=types.Content(role="user", parts=[part]))


def node_of(facts: Facts) -> LlmNode:
    assert isinstance(facts.plan.root, LlmNode)
    return facts.plan.root


def then(turn: Turn | Standing, behind: NextStep | None = None, said: Event | None = None, **facts: Any) -> NextStep:
    known = facts_of(**facts)
    if said is not None:
        known.projection.events.append(said)
    return next_step(known, node_of(known), turn if isinstance(turn, Turn) else Turn(turn), behind)


def behind_calls(
    *names: str, long_running: Sequence[str] = (), told: Event | None = None, asks: Event | None = None
) -> Standing:
    responses = [told] if told is not None else []
    requests = [asks] if asks is not None else []
    return Standing(calling=calling(*names, long_running=long_running), responses=responses, requests=requests)


TOLD = behind_calls("ask", told=responding("c1"))
TRANSFER = behind_calls("ask", told=responding("c1", transfer_to_agent="helper"))
SKIPS = behind_calls("ask", told=responding("c1", skip_summarization=True))
OPEN = behind_calls("ask", long_running=["c1"], told=responding("c1"))
TO_APPROVE = behind_calls("ask", told=responding("c1", requested_tool_confirmations=ASKED), asks=APPROVAL)
TO_SIGN = behind_calls("ask", told=responding("c1", requested_auth_configs={"c1": {}}), asks=CREDENTIAL)
BESIDE_TO_APPROVE = behind_calls(
    "ask", "ask", told=responding("c1", "c2", requested_tool_confirmations=ASKED), asks=APPROVAL
)
NOTHING = WaitFor(())


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        # Before the model is asked.
        (then(Standing()), AskModel()),
        (then(Standing(requests=[TOOLSET])), WaitFor(("q1",), "sign in")),
        (then(Standing(requests=[TOOLSET]), resumable=False), EndTurn(cuts_short=True, interrupts=True)),
        (
            then(Standing(requests=[TOOLSET]), WaitFor(("q1",), "sign in"), replied(REQUEST_CREDENTIAL, {"a": 1})),
            SignIn(("q1",)),
        ),
        # Its calls, in order.
        (then(behind_calls("ask")), RunCalls((CALL,))),
        (then(behind_calls("ask"), RunCalls((CALL,))), NOTHING),
        (then(behind_calls("ask"), RunCalls((CALL,)), resumable=False), EndTurn()),
        (then(TOLD), NOTHING),
        (then(behind_calls("ask", told=responding("c1", requested_tool_confirmations=ASKED))), AskForThem()),
        (then(behind_calls("helper")), GiveTasks((calling("helper").get_function_calls()[0],))),
        (then(behind_calls("helper", told=responding("c1")), NOTHING), BeginAnew()),
        (then(OPEN), WaitFor(("c1",))),
        (then(OPEN, adk=1), WaitFor(("c1",))),
        (then(OPEN, adk=2), NOTHING),
        (then(OPEN, resumable=False), AskModel()),
        # Approvals and credentials.
        (then(TO_APPROVE), WaitFor(("q1",))),
        (
            then(TO_APPROVE, WaitFor(("q1",)), replied(REQUEST_CONFIRMATION, {"confirmed": True})),
            RunConfirmed((CALL,), {"c1": ToolConfirmation(confirmed=True)}),
        ),
        (then(TO_APPROVE, RunConfirmed((), {})), AskModel()),
        (then(TO_APPROVE, resumable=False), AskModel()),
        (then(TO_APPROVE, resumable=False, adk=2), AskModel()),
        (then(BESIDE_TO_APPROVE, resumable=False, adk=2), EndTurn()),
        (then(BESIDE_TO_APPROVE, resumable=False, adk=1), AskModel()),
        (then(TO_SIGN), WaitFor(("q1",))),
        (
            then(TO_SIGN, WaitFor(("q1",)), replied(REQUEST_CREDENTIAL, {"a": 1})),
            RunAuthorized(("q1",), (CALL,)),
        ),
        (then(TO_SIGN, resumable=False, adk=1), AskModel()),
        (then(TO_SIGN, resumable=False, adk=2), EndTurn(cuts_short=True, interrupts=True)),
        # Behind all of that.
        (then(TOLD, NOTHING), AskModel()),
        (then(SKIPS, NOTHING), EndTurn()),
        (then(TOLD, NOTHING, interrupted=True), EndTurn(cuts_short=True)),
        (then(Turn(TOLD, ends_agent=True), NOTHING), EndTurn(cuts_short=True)),
        (then(Turn(TOLD, ends_turn=True), NOTHING), EndTurn()),
        (then(TRANSFER, NOTHING), HandOver("helper")),
        (then(TRANSFER, NOTHING, adk=2), WaitFor((), "transfer")),
        (then(TRANSFER, WaitFor((), "transfer"), adk=2), HandOver("helper")),
        # At the end of a turn.
        (then(Standing(ended=True)), End()),
        (then(Turn(Standing(ended=True), long_running=["c1"]), adk=2), WaitFor(("c1",), "model")),
        (then(Turn(Standing(ended=True), long_running=["c1"]), adk=1), End()),
        (then(Turn(Standing(ended=True), long_running=["c1"]), adk=2, resumable=False), End()),
        (then(Turn(Standing(ended=True)), WaitFor(("c1",), "model"), adk=2), AskModel()),
        (then(Standing(ended=True), mode="task", adk=2), Listen()),
        (then(Turn(Standing(ended=True), cut_short=True), mode="task", adk=2), End()),
        (then(Turn(Standing(), replied=True), mode="task", adk=2), BeginAnew()),
    ],
)
def test_what_an_agent_does_next(found: NextStep, wanted: NextStep) -> None:
    assert found == wanted


def test_a_value_that_a_tool_took_is_the_answer() -> None:
    found = then(behind_calls("ask", told=responding("c1", set_model_response={"size": 3})), NOTHING)
    assert isinstance(found, GiveAnswer)
    assert found.event.text == '{"size": 3}'


@pytest.mark.parametrize(
    ("found", "step", "cause"),
    [
        (
            then(behind_calls("ask", told=responding("c1", transfer_to_agent="gone")), NOTHING, adk=1),
            "transfer_to_agent",
            "ValueError: Agent gone not found in the agent tree.",
        ),
        (
            then(behind_calls("ask", told=responding("c1", transfer_to_agent="gone")), WaitFor((), "transfer"), adk=2),
            "transfer_to_agent",
            "ValueError: Transfer target agent 'gone' not found.",
        ),
        (
            then(TO_APPROVE, WaitFor(("q1",)), replied(REQUEST_CONFIRMATION, {"sure": 1})),
            REQUEST_CONFIRMATION,
            "the imported answer to 'q1' says nothing",
        ),
    ],
)
def test_what_no_rule_can_follow_fails_the_agent(found: NextStep, step: str, cause: str) -> None:
    assert isinstance(found, Fail)
    assert found.step == step
    assert cause in found.cause


def test_each_thing_that_calls_bring_about_is_done_once_and_in_order() -> None:
    """Whatever a step leaves undone, the one behind it is another: no turn goes round in a circle."""
    told = responding("c1", requested_tool_confirmations=ASKED)
    for standing in (behind_calls("ask"), behind_calls("ask", told=told), TO_APPROVE, TO_SIGN, OPEN, TRANSFER):
        for adk in (0, 1, 2):
            for resumable in (True, False):
                known = facts_of(adk=adk, resumable=resumable)
                kinds: list[object] = []
                found = next_step(known, node_of(known), Turn(standing))
                while not isinstance(found, (AskModel, EndTurn, HandOver, Fail)):
                    kinds.append((type(found), found.before if isinstance(found, WaitFor) else None))
                    found = next_step(known, node_of(known), Turn(standing), found)
                assert len(kinds) == len(set(kinds)) <= 5, kinds


def ahead(turn: Turn, *entries: Entry, **facts: Any) -> NextStep:
    known = facts_of(*entries, ahead=True, **facts)
    return step_ahead(known, node_of(known), turn)


def test_who_looks_ahead_sees_past_what_is_done() -> None:
    turn = Turn(behind_calls("ask", long_running=["c1"]))
    silent = ToolKept(invocation_id="i1", call_id="c1", output=ToolOutput())
    assert ahead(turn, called(1, "c1")) == RunCalls((CALL,))
    assert ahead(turn, called(1, "c1"), silent) == WaitFor(("c1",))
    assert ahead(turn, called(1, "c1"), silent, answer(1, "c1")) == AskModel()
    assert ahead(turn, called(1, "c1"), silent, answer(1, "c1"), logged("c1")) == AskModel()


def test_who_looks_ahead_sees_that_a_turn_ends_and_its_open_calls_are_waited_for() -> None:
    turn = Turn(SKIPS, long_running=["c1"])
    assert ahead(turn, called(1, "c1"), adk=2) == WaitFor(("c1",), "model")
    assert ahead(turn, called(1, "c1"), answer(1, "c1"), adk=2) == EndTurn()
    assert ahead(turn, called(1, "c1"), adk=1) == EndTurn()


def test_where_nothing_pauses_an_answer_runs_the_call_of_an_earlier_turn() -> None:
    known = facts_of(resumable=False)
    earlier = calling("ask").model_copy(update={"invocation_id": "i0"})
    known.projection.events += [earlier, APPROVAL]
    content = types.Content(role="user", parts=[types.Part(function_response=CONFIRMED)])
    known.invocation.message = known.invocation.message.model_copy(update={"content": content})
    turn = find_turn(known, node_of(known), AgentRun("root", None))
    assert (turn.elsewhere, turn.step.calling) == ("m", earlier)
    found = next_step(known, node_of(known), turn)
    assert found == RunConfirmed((CALL,), {"c1": ToolConfirmation(confirmed=True)})
    turn.step.responses.append(responding("c1"))
    assert next_step(known, node_of(known), turn, found) == AskModel()


def test_a_tasks_agent_that_has_ended_its_turn_listens() -> None:
    """The end takes what it said out of its run: only the log tells that it waits."""
    known = facts_of(adk=2, mode="task")
    said = types.Content(role="model", parts=[types.Part(text="How many?")])
    known.projection.events.append(Event(author="root", isolation_scope="t", content=said))
    run = AgentRun("root", None, node=NodeRun(path="root@1", scope="t"), ended=True)
    assert not run.own
    assert next_step(known, node_of(known), find_turn(known, node_of(known), run)) == Listen()
