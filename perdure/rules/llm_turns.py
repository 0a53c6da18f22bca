"""Where an LLM agent stands in its turn, and how far it is with the calls of its model's last answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from perdure.journal.credential_questions import (
    asking_call,
    credential_requests,
    credential_targets,
    is_credential_request,
)
from perdure.journal.events import USER, Event
from perdure.journal.questions import confirmation_targets, is_confirmation_request
from perdure.journal.runs import AgentRun, Standing, last_step, place_of, upwards
from perdure.journal.tasks import awaits_reply, is_reply
from perdure.plan.contents import types
from perdure.plan.nodes import TRANSFER, LlmNode
from perdure.rules.next_call import Facts, given_tasks


@dataclass
class Turn:
    """An LLM agent's turn, as far as it has come."""

    step: Standing
    branch: str | None = None
    long_running: list[str] = field(default_factory=list[str])
    """Long-running calls of its run, by id."""
    elsewhere: str | None = None
    """The event, by id, with the call that this invocation's message confirms, of an earlier turn."""
    replied: bool = False
    """The user has said something since the agent's last turn, which does a task."""
    cut_short: bool = False
    """The agent's code ended its run, so that no callback runs after it."""
    ends_agent: bool = False
    """The agent's code, in a tool, ended its run."""
    ends_turn: bool = False
    """What stands behind the responses is the agent's answer."""
    as_node: bool = False
    """google.adk 2 runs the agent as a node, and it does no task: the root, or one that control came to from there."""

    def is_asked_elsewhere(self, facts: Facts, calling: Event) -> bool:
        """Return whether an earlier invocation asked what this one's message confirms: nothing pauses in this app."""
        return not facts.plan.resumable and calling.id == self.elsewhere

    def credential_targets(self, facts: Facts, calling: Event) -> dict[str, tuple[str, ...]]:
        """Return, by the id of each question for a credential, the ids of the calls that run again with the answer."""
        ids = {call.id for call in calling.get_function_calls()}
        # Of an earlier invocation, the responses that say what the calls need are in the log only.
        told = self.step.responses or [
            event
            for event in facts.projection.events
            if ids & event.actions.requested_auth_configs.keys() and event.author == calling.author
        ]
        return credential_targets(self.step.requests, told)


def find_turn(facts: Facts, node: LlmNode, run: AgentRun) -> Turn:
    """Return where an LLM agent stands that is entered, or entered again."""
    turn = Turn(Standing(), run.branch, as_node=node.mode != "task" and _runs_as_node(facts, run))
    if run.own:
        turn.step = last_step(run.own, facts.projection.events)
    else:
        _find_elsewhere(facts, node, turn)
    if node.mode == "task" and (turn.step.ended or not run.own):
        turn.step = Standing(ended=has_spoken(facts, run))
        turn.replied = bool(run.own) and not turn.step.ended
    turn.long_running = [id for event in run.own for id in sorted(event.long_running_tool_ids or ())]
    refused = turn.step.refused is not None
    if facts.adk and (refused or (turn.step.ended and _is_answered_since(facts, run, turn.long_running))):
        turn.step = Standing(ended=refused)
    return turn


def _runs_as_node(facts: Facts, run: AgentRun) -> bool:
    """Return whether no agent of another kind runs an agent, nor one above it that handed over."""
    if facts.adk < 2:
        return False
    above = [up.agent for up in upwards(run)]
    last = next((index for index, up in enumerate(upwards(run)) if up.node is not None), len(above))
    return all(isinstance(facts.plan.nodes.get(agent), LlmNode) for agent in above[: last + 1])


def has_spoken(facts: Facts, run: AgentRun) -> bool:
    """Return whether an agent that does a task has said something, and the user nothing since."""
    place = place_of(run)
    arrived = facts.looks_ahead and any(is_reply(event) for event in facts.invocation.answers)
    scope = (place.scope if place is not None else None) or ""
    return not arrived and awaits_reply(facts.projection.own_events, scope, run.agent)


def _is_answered_since(facts: Facts, run: AgentRun, long_running: Sequence[str]) -> bool:
    """Return whether a long-running call was answered after all that the agent has said."""
    if not long_running:
        # As where a task's agent has ended its turn, which leaves nothing of it.
        return False
    accepted = facts.invocation.answers if facts.looks_ahead else ()
    for event in chain(reversed(accepted), reversed(facts.projection.events)):
        if event.id == run.own[-1].id:
            return False
        answered = {response.id for response in event.get_function_responses()}
        if event.author == USER and answered & set(long_running):
            return True
    return False


def _find_elsewhere(facts: Facts, node: LlmNode, turn: Turn) -> None:
    """In an app that is not resumable the answer to a question starts an invocation: the tool runs in it."""
    for response in facts.invocation.message.get_function_responses():
        request = facts.projection.event_of_call(response.id or "")
        if request is None or request.author != node.name:
            continue
        if is_confirmation_request(request):
            call_id = confirmation_targets([request])[response.id or ""]
        elif is_credential_request(request):
            call_id = asking_call(next(one for one in credential_requests([request]) if one.id == response.id))
        else:
            continue
        calling = facts.projection.event_of_call(call_id)
        turn.elsewhere = calling.id if calling is not None else None
        turn.step = Standing(calling=calling, requests=[request])
        return


def responded(step: Standing) -> set[str]:
    """Return the calls that have a response, by id."""
    return {one.id or "" for event in step.responses for one in event.get_function_responses()}


def ran_again(step: Standing) -> set[str]:
    """Return the calls that ran again after an answer, by id."""
    told = Counter(one.id or "" for event in step.responses for one in event.get_function_responses())
    return {call_id for call_id, times in told.items() if times > 1}


def calls_without_response(node: LlmNode, calling: Event, step: Standing) -> list[types.FunctionCall]:
    """Return the calls of an answer without a response, apart from tasks, whose results stand by themselves."""
    told = responded(step)
    return [call for call in _eager(node, calling) if call.id not in told]


def calls_behind_tasks(node: LlmNode, calling: Event, step: Standing) -> list[types.FunctionCall]:
    """Return the calls of an answer without a response that run once its tasks are done: transfers beside nothing else.

    ADK: `workflow/_llm_agent_wrapper.py`, which breaks off its step at the tasks unless there are calls of tools.
    """
    told = responded(step)
    tasks = given_tasks(node, calling)
    others = [call for call in calling.get_function_calls() if call not in tasks]
    late = bool(tasks) and all(call.name == TRANSFER for call in others)
    return [call for call in others if call.id not in told] if late else []


def has_responded(node: LlmNode, calling: Event, step: Standing) -> bool:
    """Return whether what the calls of an answer respond is logged, apart from tasks."""
    left = calls_without_response(node, calling, step)
    long_running = calling.long_running_tool_ids or frozenset[str]()
    return len(left) < len(_eager(node, calling)) and all(call.id in long_running for call in left)


def _eager(node: LlmNode, calling: Event) -> list[types.FunctionCall]:
    apart = [*given_tasks(node, calling), *calls_behind_tasks(node, calling, Standing())]
    return [call for call in calling.get_function_calls() if call not in apart]


def calls_to_authorize(step: Standing) -> set[str]:
    """Return the calls, by id, for which credentials were asked, and that have not run again yet."""
    targets = credential_targets(step.requests, step.responses)
    return {call_id for call_ids in targets.values() for call_id in call_ids} - ran_again(step)


def answers_first(facts: Facts, response: Event | None) -> bool:
    """Return whether responses stand in front of the confirmations that other calls ask for, as in ADK 2."""
    if response is None or facts.adk < 2:
        return False
    asked = response.actions.requested_tool_confirmations
    return any(one.id not in asked for one in response.get_function_responses())
