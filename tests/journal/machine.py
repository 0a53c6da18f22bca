"""Writes journals as a session's workflow may: whatever it can do next, it may do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from google.genai import types

from perdure.journal.entries import (
    ActivityKept,
    AnswerAccepted,
    AnswerLogged,
    CallExpired,
    CallReminded,
    Entry,
    EventLogged,
    Failure,
    FailureCaught,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    MessageAccepted,
    ModelCalled,
    PlanLoaded,
    ResumeAccepted,
    SessionCreated,
    SharedStateRead,
    StateChanged,
    TempStateSet,
    ToolKept,
    ToolOutput,
    ToolRan,
    ToolStarted,
)
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Invocation, Projection
from perdure.plan.nodes import CustomNode, LlmNode, LoopNode, Plan

_T = TypeVar("_T")

TEXTS = ("", "hi", "Grüße 👋", "漢字\u0000", '{"a": [null]}')
VALUES: tuple[Any, ...] = (None, 0, {}, {"a": None}, [1, {"b": [True, None]}], 10**20, "漢", 1.5)


def _plan(resumable: bool) -> Plan:
    leaf = LlmNode(name="leaf", model="scripted")
    story = CustomNode(name="story", code="m:Story", sub_agents=(LlmNode(name="writer", model="scripted"),))
    loop = LoopNode(name="loop", sub_agents=(LlmNode(name="step", model="scripted"),))
    root = LlmNode(name="root", model="scripted", sub_agents=(leaf, story, loop))
    return Plan(app="shop", resumable=resumable, root=root)


class JournalMachine:
    """A session without agents, models and clock: choices decide what happens."""

    def __init__(self, choices: Iterable[int], *, resumable: bool = True) -> None:
        self._choices = iter(choices)
        self.plan = _plan(resumable)
        self._count = 0
        self.projection = Projection()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The journal so far."""
        return tuple(self.projection.entries)

    def run(self) -> tuple[Entry, ...]:
        """Use up the choices and return the journal."""
        self._append(SessionCreated(state={"topic": self._pick(VALUES), "user:lang": "en"}))
        try:
            while True:
                self._pick(self._possible())()
        except StopIteration:
            return self.entries

    def _append(self, entry: Entry) -> None:
        apply_entry(self.projection, entry)

    def _pick(self, options: Sequence[_T]) -> _T:
        return options[next(self._choices) % len(options)]

    def _id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}-{self._count}"

    # What may happen next.

    def _possible(self) -> list[Callable[[], None]]:
        possible: list[Callable[[], None]] = [self._change_state]
        if sum(turn.kind == "message" for turn in self.projection.turns) < 2:
            possible.append(self._message)
        if self.projection.open_calls():
            possible += [self._answer] * 3
            possible.append(self._expire)
        invocations = self.projection.invocations.values()
        queued = {turn.invocation_id for turn in self.projection.turns}
        if any(i.status in ("failed", "stopped") and i.id not in queued for i in invocations):
            possible.append(self._resume)
        running = next((i for i in invocations if i.status == "running"), None)
        if running is not None:
            possible += self._at_work(running)
        elif self.projection.turns:
            possible += [self._take_turn] * 4
        return possible

    def _at_work(self, invocation: Invocation) -> list[Callable[[], None]]:
        def do(act: Callable[[Invocation], None]) -> Callable[[], None]:
            return lambda: act(invocation)

        acts = [self._say, self._call, self._call, self._respond, self._respond, self._checkpoint, self._keep]
        if self.projection.loggable_answer(invocation) is not None:
            acts += [self._log_answer] * 9
        elif not self.plan.resumable or self._pick((True, False)):
            acts.append(self._settle)
        return [do(act) for act in acts]

    # What a user does.

    def _message(self) -> None:
        invocation_id = self._id("e")
        event = Event(id=self._id("ev"), author=USER, invocation_id=invocation_id, content=self._content())
        self._append(MessageAccepted(event=event, request_id=self._pick((None, f"r-{invocation_id}"))))

    def _change_state(self) -> None:
        delta = {self._pick(("a", "user:b")): self._pick(VALUES)}
        event_id = self._id("ev")
        event = Event(
            id=event_id,
            author=USER,
            invocation_id=f"p-{event_id}",
            timestamp=float(len(self.projection.entries)),
            actions=EventActions(state_delta=delta),
        )
        self._append(StateChanged(event=event))

    def _content(self) -> types.Content:
        return user_content(self._pick(TEXTS))

    def _answer(self) -> None:
        call = self._pick(self.projection.open_calls())
        response = types.FunctionResponse(id=call.id, name=call.name, response={"value": self._pick(VALUES)})
        content = types.Content(role="user", parts=[types.Part(function_response=response)])
        event = Event(
            id=self._id("ev"), author=USER, invocation_id=call.invocation_id, branch=call.branch, content=content
        )
        if self.plan.resumable:
            self._append(AnswerAccepted(event=event))
        else:
            self._append(MessageAccepted(event=event.model_copy(update={"invocation_id": self._id("e")})))

    def _expire(self) -> None:
        """A deadline passes that fails the invocation."""
        call_id = self._pick(self.projection.open_calls()).id
        self._append(self._pick((CallExpired(call_id=call_id), CallReminded(call_id=call_id))))

    def _resume(self) -> None:
        candidates = [i.id for i in self.projection.invocations.values() if i.status in ("failed", "stopped")]
        self._append(ResumeAccepted(invocation_id=self._pick(candidates)))

    # What the workflow does.

    def _take_turn(self) -> None:
        turn = self.projection.turns[0]
        if turn.kind != "message":
            self._append(InvocationResumed(invocation_id=turn.invocation_id))
            return
        if self.projection.newest_plan is None:
            self._append(PlanLoaded(plan=self.plan))
        if self._pick((True, False)):
            self._append(SharedStateRead(state={"user:lang": self._pick(VALUES)}))
        self._append(
            InvocationStarted(
                invocation_id=turn.invocation_id,
                agent=self.projection.starting_agent(self.plan),
                plan=self.plan.digest,
                timestamp=float(len(self.projection.entries)),
            )
        )

    def _log(self, invocation: Invocation, parts: list[types.Part], *, hidden: bool = False, **fields: object) -> None:
        event = Event.model_validate(
            {
                "id": self._id("ev"),
                "author": self._pick(list(self.plan.nodes)),
                "invocation_id": invocation.id,
                "timestamp": float(len(self.projection.entries)),
                "content": types.Content(role="model", parts=parts) if parts else None,
                **fields,
            }
        )
        self._append(EventLogged(event=event, hidden=hidden, run=self._run(invocation, event.author)))

    def _run(self, invocation: Invocation, agent: str) -> str:
        """Return a run of an agent, as it may be named; control may be handed over from the one that began."""
        assert invocation.agent is not None
        handed = self.plan.path(agent)
        names = handed if invocation.agent == "root" else [invocation.agent, *handed]
        return "/".join(names) + (self._pick(("", "", "@1", "#2")) if len(names) > 1 else "")

    def _say(self, invocation: Invocation) -> None:
        self._append(ModelCalled(agent="root"))
        part = types.Part(text=self._pick(TEXTS), thought_signature=bytes([next(self._choices) % 256, 0, 255]))
        delta = {self._pick(("a", "user:b", "app:c")): self._pick(VALUES)}
        target = self._pick((None, "leaf", "root", "story"))
        self._log(invocation, [part], actions=EventActions(state_delta=delta, transfer_to_agent=target))

    def _call(self, invocation: Invocation) -> None:
        self._append(ModelCalled(agent="root"))
        ids = [self._id("adk") for _ in range(self._pick((1, 2)))]
        calls = [types.FunctionCall(id=call_id, name="ask", args={"x": self._pick(VALUES)}) for call_id in ids]
        waiting = frozenset(ids) if self._pick((True, False)) else None
        self._log(invocation, [types.Part(function_call=call) for call in calls], long_running_tool_ids=waiting)

    def _respond(self, invocation: Invocation) -> None:
        calls = [call for call in self.projection.calls.values() if call.pending.invocation_id == invocation.id]
        for call in calls:
            if not call.responded:
                output = ToolOutput(result=self._pick(VALUES), actions=EventActions(state_delta={"temp:x": 1}))
                self._append(ToolKept(invocation_id=invocation.id, call_id=call.pending.id, output=output))
                if output.result:
                    response = types.FunctionResponse(id=call.pending.id, name="ask", response={"r": output.result})
                    self._log(invocation, [types.Part(function_response=response)])
                return

    def _checkpoint(self, invocation: Invocation) -> None:
        actions = self._pick(
            (EventActions(agent_state={}), EventActions(agent_state={"step": 1}), EventActions(end_of_agent=True))
        )
        self._log(invocation, [], actions=actions, hidden=not self.plan.resumable)

    def _keep(self, invocation: Invocation) -> None:
        result = self._pick(VALUES)
        told: dict[str, Any] = {"invocation_id": invocation.id, "agent": "story", "name": "draw"}
        told["run"] = self._run(invocation, "story")
        self._append(
            self._pick(
                (
                    TempStateSet(invocation_id=invocation.id, delta={"temp:x": result}),
                    ActivityKept(result=result, **told),
                    FailureCaught(
                        failures=self._pick(((), (Failure(agent="writer", step="model", cause="down"),))),
                        sub_run=self._pick(("", f"{told['run']}/writer")),
                        **told,
                    ),
                    ToolStarted(
                        invocation_id=invocation.id,
                        call_id=self._pick(("c1", "c2")),
                        agent="root",
                        tool="pay",
                        idempotency_key="k",
                        timestamp=1.5,
                    ),
                    ToolRan(
                        call_id=self._pick(("c1", "c2")),
                        outcome=self._pick((None, "failed", "stopped", "not_started")),
                        started=1.5,
                        ended=2.25,
                    ),
                )
            )
        )

    def _log_answer(self, invocation: Invocation) -> None:
        event = self.projection.loggable_answer(invocation)
        assert event is not None
        self._append(AnswerLogged(event_id=event.id, timestamp=float(len(self.projection.entries))))

    def _settle(self, invocation: Invocation) -> None:
        statuses = ["failed", "stopped", "finished"]
        if self.plan.resumable and self.projection.open_calls(invocation.id):
            statuses += ["waiting"] * 6
        status = self._pick(statuses)
        failures = (Failure(agent="root", step="model", cause=self._pick(TEXTS)),) if status == "failed" else ()
        self._append(
            InvocationSettled.model_validate({"invocation_id": invocation.id, "status": status, "failures": failures})
        )
