"""Decides what becomes of a call that a model has made, when its agent comes to it (SEMANTICS.md). Pure.

The workflow carries the answer out; `perdure.views.next_steps` asks where an invocation stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from perdure.errors import InvalidMessage
from perdure.journal.entries import ToolOutput
from perdure.journal.events import Event, ToolConfirmation
from perdure.journal.projection import Invocation, Projection
from perdure.journal.questions import last_request, parse_verdict
from perdure.journal.runs import Standing
from perdure.journal.tasks import FINISH_TASK
from perdure.plan.contents import types
from perdure.plan.nodes import MODEL_OPTIONS, LlmNode, Plan, ToolPlan
from perdure.rules.in_doubt import NOT_HAPPENED
from perdure.rules.model_answers import instant_output
from perdure.rules.tool_responses import REJECTED, asks_person

_BLOCKED = (
    "call {id!r} came with an imported log and nobody allowed it to run; import the log again with"
    " allow_pending_calls, or resume it from events that end with the call's response"
)

_BESIDE_TASK = (
    "finish_task was ignored because a task delegation was sent in the same turn. Call finish_task by itself once the"
    " delegated result is available."
)
"""As ADK words it."""


@dataclass(frozen=True)
class Facts:
    """What the rules go by, beside where an agent stands."""

    plan: Plan
    projection: Projection
    """Of the session, or of an agent that a tool runs."""
    invocation: Invocation
    looks_ahead: bool = False
    """Answers that are accepted count as logged: they are, before an agent looks for them."""
    interrupted: bool = False
    """A question for a credential has ended the invocation, since nothing pauses: no agent goes on."""

    @property
    def adk(self) -> int:
        """The major version of google.adk whose agents these are; 0 if they are Perdure's own."""
        return self.plan.adk.major if self.plan.adk is not None else 0

    def answer_to(self, request_id: str) -> dict[str, Any] | None:
        """Return a person's answer to a question, if there is one."""
        accepted = self.invocation.answers if self.looks_ahead else ()
        responses = (response for event in accepted for response in event.get_function_responses())
        found = next((response.response or {} for response in responses if response.id == request_id), None)
        return found if found is not None else self.projection.answer_to(request_id)

    def answer_of_turn(self, request_id: str) -> dict[str, Any] | None:
        """Return the answer that counts now: where nothing pauses, only what this turn's message answers."""
        if self.plan.resumable:
            return self.answer_to(request_id)
        answers = self.invocation.message.get_function_responses()
        return next((one.response or {} for one in answers if one.id == request_id), None)

    def is_answered(self, call_id: str) -> bool:
        """Return whether a long-running call has an answer."""
        call = self.projection.calls.get(call_id)
        return call is not None and (call.answer == "logged" or (self.looks_ahead and call.answer == "accepted"))


@dataclass(frozen=True)
class Kept:
    """Its tool has run before, and returned this."""

    output: ToolOutput


@dataclass(frozen=True)
class BuiltIn:
    """It has an output without a run of a tool."""

    output: ToolOutput


@dataclass(frozen=True)
class AsksApproval:
    """A person is asked first."""

    output: ToolOutput


@dataclass(frozen=True)
class Rejected:
    """A person has rejected it."""

    output: ToolOutput = REJECTED


@dataclass(frozen=True)
class AwaitsVerdict:
    """It may have taken effect; a person was asked, and has not answered."""

    request_id: str


@dataclass(frozen=True)
class TakenAsSaid:
    """It may have taken effect; a person has said whether it did."""

    output: ToolOutput


@dataclass(frozen=True)
class Fails:
    """Its agent fails: it came with an import, and nobody let it run, or the import's answer about it says nothing."""

    why: Literal["not allowed", "says nothing"]
    cause: str


@dataclass(frozen=True)
class Runs:
    """Its tool is started, or started again."""

    tool: ToolPlan
    again: str | None = None
    """The question by whose answer a person lets an at-most-once call run again, by id."""
    returned: bool = False
    """The tool has returned before; only callbacks behind it are left to run."""


@dataclass(frozen=True)
class InDoubt:
    """It was started once, and may have taken effect: its tool's `reconcile` function is asked, or a person."""

    tool: ToolPlan
    again: str | None = None
    """As of `Runs`: since then it was started again."""


NextOfCall = Kept | BuiltIn | AsksApproval | Rejected | AwaitsVerdict | TakenAsSaid | Runs | InDoubt | Fails


def next_of_call(
    facts: Facts,
    node: LlmNode,
    step: Standing,
    call: types.FunctionCall,
    decision: ToolConfirmation | None = None,
    *,
    authorized: bool = False,
) -> NextOfCall:
    """Return what becomes of a call.

    Args:
        facts: Plan, session and invocation.
        node: The agent whose model made it.
        step: Where the agent stands, behind the answer that has the call.
        call: The call.
        decision: What a person has decided about it, if one was asked.
        authorized: Whether it runs again since a person has given the credential that it needs.
    """
    kept = facts.invocation.kept.get(call.id or "")
    returned = kept is not None and kept.awaits_callbacks
    decided = decision is not None or authorized
    if kept is not None and not returned and not (decided and asks_person(call, kept)):
        return Kept(kept)
    if decision is not None and not decision.confirmed and not facts.adk:
        return Rejected()
    tool = node.tool(call.name or "")
    once = _next_of_once(facts, tool, step, call) if tool is not None and tool.at_most_once else None
    if call.id in facts.projection.blocked_calls and (once is None or isinstance(once, (Runs, InDoubt))):
        return Fails("not allowed", _BLOCKED.format(id=call.id))
    if facts.adk:
        output = instant_finish(node, step.calling, call) if step.calling is not None else None
    else:
        output = instant_output(facts.plan, node, call, decided=decision is not None)
    if output is not None:
        return AsksApproval(output) if output.needs_confirmation else BuiltIn(output)
    return once if once is not None and not returned else Runs(tool or _unplanned(call), returned=returned)


def _next_of_once(
    facts: Facts, tool: ToolPlan, step: Standing, call: types.FunctionCall
) -> AwaitsVerdict | TakenAsSaid | Runs | InDoubt | Fails:
    """Return what becomes of a call that is started once."""
    request_id = last_request(step.doubts, call.id or "")
    if request_id is not None:
        answer = facts.answer_to(request_id)
        if answer is None:
            return AwaitsVerdict(request_id)
        try:
            verdict = parse_verdict(answer)
        except InvalidMessage as error:
            # An answer that stood in an imported log has been taken as it was.
            return Fails("says nothing", f"an imported answer says nothing: {error}")
        if verdict.happened is not None:
            return TakenAsSaid(ToolOutput(result=verdict.result if verdict.happened else dict(NOT_HAPPENED)))
    was_started = call.id in facts.invocation.started and not _is_let_run(facts, request_id)
    return InDoubt(tool, request_id) if was_started else Runs(tool, request_id)


def _is_let_run(facts: Facts, request_id: str | None) -> bool:
    """Return whether an answer that is not logged yet lets a call run again: the start is forgotten with that."""
    return request_id is not None and facts.looks_ahead and facts.projection.answer_to(request_id) is None


def given_tasks(node: LlmNode, calling: Event) -> list[types.FunctionCall]:
    """Return the calls of an answer by which the agent has others do tasks in talk with the user. ADK 2."""
    tools = {tool.name for tool in node.tools if tool.delegates == "task"}
    return [call for call in calling.get_function_calls() if call.name in tools]


def instant_finish(node: LlmNode, calling: Event, call: types.FunctionCall) -> ToolOutput | None:
    """Return the output of a call that would end the agent's task, where the same answer gives others tasks."""
    if node.mode != "task" or call.name != FINISH_TASK or not given_tasks(node, calling):
        return None
    return ToolOutput(result={"error": _BESIDE_TASK})


def _unplanned(call: types.FunctionCall) -> ToolPlan:
    """Return a plan for a tool that the plan does not name: a toolset may have it, or the step says that none has."""
    name = call.name or "unknown"
    return ToolPlan(name=name, declaration=types.FunctionDeclaration(name=name), options=MODEL_OPTIONS)
