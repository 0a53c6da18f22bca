"""Short ways to write a journal by hand: invocation N is `iN`, its message `mN`, the answer to call X `a-X`."""

from __future__ import annotations

from typing import Any

from google.genai import types

from perdure.journal.entries import (
    AnswerAccepted,
    AnswerLogged,
    Entry,
    EventLogged,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    MessageAccepted,
    PlanLoaded,
    SessionCreated,
)
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.journal.fold import fold_journal
from perdure.journal.projection import Projection
from perdure.plan.nodes import LlmNode, Node, Plan


def llm(name: str, *children: Node, locked: bool = False) -> LlmNode:
    return LlmNode(name=name, model="scripted", sub_agents=children, disallow_transfer_to_parent=locked)


def plan_with(*children: Node, resumable: bool = True) -> Plan:
    return Plan(app="shop", resumable=resumable, root=llm("root", *children))


PLAN = plan_with(llm("helper"))


def message(number: int, request_id: str | None = None) -> MessageAccepted:
    event = Event(id=f"m{number}", author=USER, invocation_id=f"i{number}", content=user_content("hi"))
    return MessageAccepted(event=event, request_id=request_id)


def started(number: int, agent: str = "root") -> InvocationStarted:
    return InvocationStarted(invocation_id=f"i{number}", agent=agent, plan=PLAN.digest, timestamp=float(number))


def resumed(number: int) -> InvocationResumed:
    return InvocationResumed(invocation_id=f"i{number}")


def settled(number: int, status: str, **fields: Any) -> InvocationSettled:
    return InvocationSettled.model_validate({"invocation_id": f"i{number}", "status": status, **fields})


def run_of(agent: str) -> str:
    return "root" if agent == "root" else f"root/{agent}"


def called(number: int, *call_ids: str, agent: str = "root", long_running: bool = True) -> EventLogged:
    parts = [
        types.Part(function_call=types.FunctionCall(id=call_id, name="ask", args={"n": 1})) for call_id in call_ids
    ]
    return EventLogged(
        event=Event(
            id=f"call-{'-'.join(call_ids)}",
            author=agent,
            invocation_id=f"i{number}",
            timestamp=7.0,
            content=types.Content(role="model", parts=parts),
            long_running_tool_ids=frozenset(call_ids) if long_running else None,
        ),
        run=run_of(agent),
    )


def responses(*call_ids: str, value: object = True) -> types.Content:
    parts = [
        types.Part(function_response=types.FunctionResponse(id=call_id, name="ask", response={"ok": value}))
        for call_id in call_ids
    ]
    return types.Content(role="user", parts=parts)


def responded(number: int, *call_ids: str) -> EventLogged:
    event = Event(id="r", author="root", invocation_id=f"i{number}", content=responses(*call_ids))
    return EventLogged(event=event, run="root")


def answer(number: int, *call_ids: str, request_id: str | None = None) -> AnswerAccepted:
    event = Event(id=f"a-{'-'.join(call_ids)}", author=USER, invocation_id=f"i{number}", content=responses(*call_ids))
    return AnswerAccepted(event=event, request_id=request_id)


def logged(*call_ids: str) -> AnswerLogged:
    return AnswerLogged(event_id=f"a-{'-'.join(call_ids)}", timestamp=9.0)


def said(number: int, agent: str, **actions: object) -> EventLogged:
    return EventLogged(
        event=Event(
            id="s",
            author=agent,
            invocation_id=f"i{number}",
            content=types.Content(role="model", parts=[types.Part(text="hi")]),
            actions=EventActions.model_validate(actions),
        ),
        run=run_of(agent),
    )


def fold(*entries: Entry, plan: Plan = PLAN) -> Projection:
    return fold_journal((SessionCreated(), PlanLoaded(plan=plan), *entries))


WAITING = (message(1), started(1), called(1, "c1"), responded(1, "c1"), settled(1, "waiting"))
