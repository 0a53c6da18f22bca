"""Decides what an LLM agent does next: model, tools, answers, transfer, until its turn ends (SEMANTICS.md). Pure.

The workflow carries each step out and asks for the one behind it; `perdure.views.next_steps` asks where an invocation
stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from perdure.errors import InvalidMessage
from perdure.journal.credential_questions import credential_requests, is_credential_request
from perdure.journal.events import REQUEST_CONFIRMATION, Event, ToolConfirmation
from perdure.journal.questions import confirmation_targets, is_confirmation_request, parse_confirmation
from perdure.journal.runs import Standing
from perdure.journal.tasks import ends_task
from perdure.journal.unusable_answers import failure_of
from perdure.plan.contents import types
from perdure.plan.nodes import TRANSFER, LlmNode
from perdure.rules.llm_turns import (
    Turn,
    answers_first,
    calls_behind_tasks,
    calls_to_authorize,
    calls_without_response,
    has_responded,
    ran_again,
    responded,
)
from perdure.rules.model_answers import structured_answer
from perdure.rules.next_call import Facts, given_tasks
from perdure.rules.tool_responses import silent_calls

Wait = Literal["sign in", "responses", "transfer", "model"]


@dataclass(frozen=True)
class AskModel:
    """The model is asked; what stands behind an earlier answer of it is done with."""


@dataclass(frozen=True)
class WaitFor:
    """The agent waits until the user has answered all of these calls, if there are any."""

    ids: tuple[str, ...]
    before: Wait = "responses"
    """What comes then. `responses`: what answers to its calls bring about. `transfer`: control is handed over.
    `model`: the model, which has seen the first values of long-running calls, is asked again. ADK 2."""


@dataclass(frozen=True)
class SignIn:
    """The credentials that toolsets need, before the model is asked, are taken up."""

    requests: tuple[str, ...]
    """The answered questions, by id."""


@dataclass(frozen=True)
class RunCalls:
    """The calls of the answer run that have no response; then one event holds all of their responses."""

    calls: tuple[types.FunctionCall, ...]


@dataclass(frozen=True)
class AskForThem:
    """What responses say that calls need is asked for: a log was cut off before the question."""


@dataclass(frozen=True)
class GiveTasks:
    """Sub-agents do the tasks that these calls give them, one after the other. ADK 2."""

    calls: tuple[types.FunctionCall, ...]


@dataclass(frozen=True)
class RunAuthorized:
    """Credentials that a person gave are taken up, and their calls run again."""

    requests: tuple[str, ...]
    """The answered questions, by id."""
    calls: tuple[types.FunctionCall, ...]


@dataclass(frozen=True)
class RunConfirmed:
    """The calls that a person approved run, and one event holds the responses of those and of the rejected ones."""

    calls: tuple[types.FunctionCall, ...]
    decisions: Mapping[str, ToolConfirmation]
    """By the calls' ids."""


@dataclass(frozen=True)
class GiveAnswer:
    """A value that a tool took is the agent's answer, and ends its turn."""

    event: Event
    cuts_short: bool = False
    """As of `EndTurn`."""


@dataclass(frozen=True)
class BeginAnew:
    """The agent begins at the top: a task is done that it gave, or the user has said something for its own. ADK 2."""


@dataclass(frozen=True)
class HandOver:
    """Another agent goes on, and the turn ends with that."""

    agent: str
    cuts_short: bool = False
    """As of `EndTurn`: ADK 2 breaks off an agent that it runs as a node."""
    interrupts: bool = False
    """As of `EndTurn`: afterwards."""


@dataclass(frozen=True)
class EndTurn:
    """The agent's turn ends behind its tools' responses."""

    cuts_short: bool = False
    """Its run ends with that, and no callback runs behind it."""
    interrupts: bool = False
    """No agent of the invocation goes on: it asks for a credential, and nothing waits."""


@dataclass(frozen=True)
class Listen:
    """The agent does a task, and waits until the user says something."""


@dataclass(frozen=True)
class End:
    """The agent's run ends."""


@dataclass(frozen=True)
class Fail:
    """The agent fails."""

    step: str
    cause: str


Respond = RunCalls | AskForThem | GiveTasks | RunAuthorized | RunConfirmed
"""What the calls of one answer of the model bring about."""

EndsTurn = GiveAnswer | HandOver | EndTurn

TurnStep = AskModel | WaitFor | SignIn | Respond | EndsTurn | BeginAnew | Fail

NextStep = TurnStep | Listen | End

_ORDER = ("calls", "tasks", "responses", "authorized", "confirmed", "transfer")
"""What the calls of an answer bring about, in order, each once."""


def next_step(facts: Facts, node: LlmNode, turn: Turn, behind: NextStep | None = None) -> NextStep:
    """Return what an LLM agent does next.

    Args:
        facts: Plan, session and invocation.
        node: The agent.
        turn: Where it stands; whoever carries out a step brings it up to date.
        behind: The step that was carried out last; `None` as the agent is entered, or entered again.
    """
    step = turn.step
    if step.refused is not None and step.refused.id in facts.invocation.refused:
        # Entered again before the failure was settled.
        return Fail("model", failure_of(step.refused))
    if turn.replied:
        return BeginAnew()
    if isinstance(behind, WaitFor) and behind.before == "model":
        return AskModel()
    if step.ended:
        return _behind_turn(facts, node, turn)
    if step.calling is not None:
        found = _respond(facts, node, turn, step.calling, _place(behind))
        return found if found is not None else _behind_responses(facts, node, turn, _place(behind))
    if step.responses:
        return _behind_responses(facts, node, turn, _place(behind))
    return _before_model(facts, step, behind) if step.requests else AskModel()


def step_ahead(facts: Facts, node: LlmNode, turn: Turn) -> NextStep:
    """Return what an LLM agent does that is entered again, past what is done already."""
    found = next_step(facts, node, turn)
    while _is_done(facts, turn, found):
        found = next_step(facts, node, turn, found)
    if not isinstance(found, EndTurn):
        return found
    ended = replace(turn, step=Standing(ended=True), cut_short=turn.cut_short or found.cuts_short)
    then = next_step(facts, node, ended)
    waits = isinstance(then, Listen) or (isinstance(then, WaitFor) and not _is_done(facts, ended, then))
    return then if waits else found


def _is_done(facts: Facts, turn: Turn, found: NextStep) -> bool:
    if isinstance(found, WaitFor):
        return all(map(facts.is_answered, found.ids))
    kept, calling = facts.invocation.kept, turn.step.calling
    if not isinstance(found, RunCalls) or calling is None or any(call.id not in kept for call in found.calls):
        return False
    # None of them has a response to come.
    outputs = {call.id or "": kept[call.id or ""] for call in found.calls}
    return len(silent_calls(found.calls, outputs, calling.long_running_tool_ids or frozenset())) == len(found.calls)


def _place(behind: NextStep | None) -> int:
    """Return how far the agent has come with the calls of an answer."""
    match behind:
        case RunCalls() | AskForThem():
            return _ORDER.index("calls") + 1
        case GiveTasks():
            return _ORDER.index("tasks") + 1
        case WaitFor(before="responses" | "transfer"):
            return _ORDER.index(behind.before) + 1
        case RunAuthorized():
            return _ORDER.index("authorized") + 1
        case RunConfirmed():
            return _ORDER.index("confirmed") + 1
        case _:
            return 0


def _before_model(facts: Facts, step: Standing, behind: NextStep | None) -> NextStep:
    """Return what comes where toolsets need credentials before the model is asked."""
    ids = tuple(request.id or "" for request in credential_requests(step.requests))
    if facts.plan.resumable and not isinstance(behind, WaitFor):
        return WaitFor(ids, "sign in")
    given = tuple(id for id in ids if facts.answer_to(id) is not None)
    return SignIn(given) if given else EndTurn(cuts_short=True, interrupts=True)


def _respond(facts: Facts, node: LlmNode, turn: Turn, calling: Event, place: int) -> Respond | WaitFor | Fail | None:
    """Return what the calls of an answer bring about next, if there is anything left."""
    step, elsewhere = turn.step, turn.is_asked_elsewhere(facts, calling)
    # Where nothing pauses, an answer begins another turn, in which its call runs.
    goes_on = facts.plan.resumable or elsewhere
    if place <= _ORDER.index("calls"):
        left = calls_without_response(node, calling, step)
        if left and not elsewhere and not has_responded(node, calling, step):
            return RunCalls(tuple(left))
        if len(step.responses) == 1 and not step.requests and _asks(step.responses[0]):
            return AskForThem()
    if place <= _ORDER.index("tasks"):
        told = responded(step)
        tasks = tuple(call for call in given_tasks(node, calling) if call.id not in told)
        if tasks:
            return GiveTasks(tasks)
    late = calls_behind_tasks(node, calling, step)
    if place <= _ORDER.index("responses") and late:
        return RunCalls(tuple(late))
    if place <= _ORDER.index("responses") and facts.plan.resumable:
        return WaitFor(tuple(_awaited(facts, calling, step)))
    if place <= _ORDER.index("authorized") and goes_on and calls_to_authorize(step):
        return _authorize(facts, turn, calling)
    if place <= _ORDER.index("confirmed") and goes_on:
        return _confirm(facts, calling, step)
    return None


def _asks(response: Event) -> bool:
    return bool(response.actions.requested_tool_confirmations or response.actions.requested_auth_configs)


def _awaited(facts: Facts, calling: Event, step: Standing) -> list[str]:
    """Return the calls, and the questions about calls, without whose answers the model does not go on."""
    told = responded(step) if facts.adk >= 2 else set[str]()
    waiting = [id for id in sorted(calling.long_running_tool_ids or ()) if id not in told]
    asked = [request.id or "" for request in credential_requests(step.requests)]
    return [*waiting, *confirmation_targets(step.requests), *asked]


def _authorize(facts: Facts, turn: Turn, calling: Event) -> RunAuthorized:
    step = turn.step
    asked = (request.id or "" for request in credential_requests(step.requests))
    given = tuple(id for id in asked if facts.answer_of_turn(id) is not None)
    targets = turn.credential_targets(facts, calling)
    wanted = {call_id for request_id in given for call_id in targets[request_id]} - ran_again(step)
    return RunAuthorized(given, tuple(call for call in calling.get_function_calls() if call.id in wanted))


def _confirm(facts: Facts, calling: Event, step: Standing) -> RunConfirmed | Fail | None:
    targets = confirmation_targets(step.requests)
    if not set(targets.values()) - ran_again(step):
        return None
    decisions: dict[str, ToolConfirmation] = {}
    for request_id, call_id in targets.items():
        answer = facts.answer_of_turn(request_id)
        try:
            if answer is not None:
                decisions[call_id] = parse_confirmation(answer)
        except InvalidMessage as error:
            # An answer that stood in an imported log has been taken as it was.
            return Fail(REQUEST_CONFIRMATION, f"the imported answer to {request_id!r} says nothing: {error}")
    return RunConfirmed(tuple(call for call in calling.get_function_calls() if call.id in decisions), decisions)


def _behind_responses(facts: Facts, node: LlmNode, turn: Turn, place: int) -> NextStep:
    """Return what comes once all that the calls of an answer bring about is done."""
    step, calling = turn.step, turn.step.calling
    # Whatever its result; it may have been logged before the agent was entered again.
    ends_agent = turn.ends_agent or (calling is not None and any(map(ends_task, step.responses)))
    answer = structured_answer(node, turn.branch, step.responses[-1]) if step.responses else None
    if answer is not None:
        return GiveAnswer(answer, ends_agent)
    if ends_agent or turn.ends_turn:
        return EndTurn(ends_agent)
    last = step.responses[-1] if step.responses else None
    if calling is not None and given_tasks(node, calling):
        last = next((one for one in step.responses if one.actions.transfer_to_agent is not None), None)
        if last is None:
            return BeginAnew()
    hands_over = last is not None and _hands_over_beside(facts, step, last)
    if hands_over and calling is not None and place <= _ORDER.index("transfer"):
        return WaitFor(tuple(sorted(calling.long_running_tool_ids or ())), "transfer")
    if not hands_over and (calling is None or _goes_back_to_model(facts, turn, calling)):
        return AskModel()
    # Only where nothing pauses: a long-running tool that returned nothing ends the turn.
    return _follow(facts, turn, last) if last is not None else EndTurn()


def _hands_over_beside(facts: Facts, step: Standing, response: Event) -> bool:
    """Return whether a tool hands over control beside calls that are open, once these are answered. ADK 2."""
    if facts.adk < 2 or not facts.plan.resumable or step.calling is None or step.requests:
        return False
    return response.actions.transfer_to_agent is not None


def _goes_back_to_model(facts: Facts, turn: Turn, calling: Event) -> bool:
    """Return whether the user answered: then the model goes on, whatever the tools' own responses ask for."""
    if facts.plan.resumable:
        return bool(calling.long_running_tool_ids or turn.step.requests)
    return turn.is_asked_elsewhere(facts, calling)


def _follow(facts: Facts, turn: Turn, response: Event) -> NextStep:
    """Return what the actions of a response ask for, and what stands where nothing pauses."""
    requests, target = turn.step.requests, response.actions.transfer_to_agent
    interrupts = facts.adk >= 2 and any(map(is_credential_request, requests))
    if target is not None:
        # Of google.adk's tools alone an agent may not be there: a tool of Perdure's is told so.
        if target not in facts.plan.nodes:
            return Fail(TRANSFER, _unknown(facts, target))
        return HandOver(target, turn.as_node, interrupts)
    is_cut_short = turn.cut_short or facts.interrupted or interrupts
    # A question is the last word if it stands behind the responses.
    asks_last = any(map(is_confirmation_request, requests)) and answers_first(facts, response)
    if response.actions.skip_summarization or is_cut_short or asks_last:
        return EndTurn(is_cut_short, interrupts)
    return AskModel()


def _unknown(facts: Facts, target: str) -> str:
    """Return how google.adk tells that there is no agent of a name."""
    if facts.adk >= 2:
        return f"ValueError: Transfer target agent {target!r} not found."
    return f"ValueError: Agent {target} not found in the agent tree."


def _behind_turn(facts: Facts, node: LlmNode, turn: Turn) -> WaitFor | Listen | End:
    """Return what comes once an agent has said what it says in a turn."""
    open_calls = tuple(id for id in turn.long_running if not facts.is_answered(id))
    if open_calls and facts.adk >= 2 and facts.plan.resumable:
        # The model has seen the first values, and goes on with the answers.
        return WaitFor(open_calls, "model")
    return Listen() if node.mode == "task" and not turn.cut_short else End()
