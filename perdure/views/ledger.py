"""Builds the ledger of a session: each tool call with its runs and its outcome. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from perdure.journal.credential_questions import credential_targets
from perdure.journal.entries import fitting
from perdure.journal.events import QUESTIONS, Event
from perdure.journal.projection import Invocation, Projection
from perdure.journal.questions import confirmation_targets, is_confirmation_request, is_doubt_request, target_of
from perdure.journal.tool_runs import Outcome, idempotency_key
from perdure.messages.effects import Effect, EffectsPage
from perdure.messages.session import PageInput
from perdure.plan.contents import types
from perdure.plan.nodes import EXIT_LOOP, TRANSFER, LlmNode, ToolPlan


def effects_page(projection: Projection, request: PageInput) -> EffectsPage:
    """Return a page of the ledger, in the order of the calls in the log."""
    calls = list(_calls(projection))
    effects = fitting((_effect(call) for call in calls[max(request.since, 0) :]), request.max_bytes)
    return EffectsPage(effects=tuple(effects), total=len(calls))


@dataclass
class _Facts:
    """The entries and events about calls, by call id."""

    responses: dict[str, list[types.FunctionResponse]] = field(
        default_factory=dict[str, "list[types.FunctionResponse]"]
    )
    """The agents' responses."""
    approvals: dict[str, str] = field(default_factory=dict[str, str])
    """The newest confirmation request about each call."""
    credentials: dict[str, str] = field(default_factory=dict[str, str])
    """The newest question for a credential that each call needs."""
    doubts: dict[str, str] = field(default_factory=dict[str, str])
    """The newest question about each call in doubt."""
    answers: dict[str, Event] = field(default_factory=dict[str, Event])
    """The user's logged answers."""

    @classmethod
    def read(cls, projection: Projection) -> _Facts:
        facts = cls()
        for event in projection.events:
            for response in event.get_function_responses():
                if event.is_users:
                    facts.answers[response.id or ""] = event
                else:
                    facts.responses.setdefault(response.id or "", []).append(response)
            if is_confirmation_request(event):
                facts.approvals |= {call_id: asks for asks, call_id in confirmation_targets([event]).items()}
            if is_doubt_request(event):
                facts.doubts |= {target_of(call.args or {}): call.id or "" for call in event.get_function_calls()}
        asked = credential_targets(projection.events, projection.events)
        facts.credentials = {call_id: request for request, targets in asked.items() for call_id in targets}
        return facts

    def answer(self, request_id: str | None) -> dict[str, object] | None:
        """Return what the user answered to a request."""
        event = self.answers.get(request_id or "")
        responses = event.get_function_responses() if event else []
        return next((response.response or {} for response in responses if response.id == request_id), None)


@dataclass(frozen=True)
class _Called:
    """A tool call in a log."""

    projection: Projection
    facts: _Facts
    event: Event
    call: types.FunctionCall


def build_effects(projection: Projection) -> Iterator[Effect]:
    """Yield an effect for each tool call; Perdure's own requests and built-in tools have none."""
    return map(_effect, _calls(projection))


def _calls(projection: Projection) -> Iterator[_Called]:
    facts = _Facts.read(projection)
    for event in projection.events:
        if event.is_users or event.id in projection.of_scopes:
            continue
        invocation = projection.invocations.get(event.invocation_id)
        for call in event.get_function_calls():
            if call.name not in QUESTIONS and not _is_built_in(projection, invocation, event.author, call.name or ""):
                yield _Called(projection, facts, event, call)
            if call.id in projection.scopes:
                yield from _calls(projection.scopes[call.id])


def _is_built_in(projection: Projection, invocation: Invocation | None, agent: str, name: str) -> bool:
    tool = _tool(projection, invocation, agent, name)
    return name == TRANSFER if tool is None else tool.kind in ("transfer", EXIT_LOOP)


def _tool(projection: Projection, invocation: Invocation | None, agent: str, name: str) -> ToolPlan | None:
    plan = projection.plan_of(invocation) if invocation else None
    node = plan.nodes.get(agent) if plan else None
    return node.tool(name) if isinstance(node, LlmNode) else None


def _is_told(projection: Projection, invocation: Invocation | None, event: Event, call: types.FunctionCall) -> bool:
    """Return whether a call's tool failed, and its model is told of that; of one at most once it is told otherwise."""
    runs = projection.tool_runs.get(call.id or "")
    tool = _tool(projection, invocation, event.author, call.name or "")
    tells = tool is not None and tool.on_failure == "tell_model" and not tool.at_most_once
    return tells and runs is not None and runs.outcome == "failed"


def _effect(called: _Called) -> Effect:
    projection, facts, event, call = called.projection, called.facts, called.event, called.call
    call_id = call.id or ""
    runs = projection.tool_runs.get(call_id)
    ran_in = (runs and runs.invocation_id) or event.invocation_id
    invocation = projection.invocations.get(ran_in)
    started = invocation.started.get(call_id) if invocation else None
    told = _is_told(projection, invocation, event, call)
    return Effect(
        call_id=call_id,
        tool=call.name or "",
        agent=event.author,
        branch=event.branch,
        invocation_id=event.invocation_id,
        idempotency_key=idempotency_key(ran_in, call_id, runs.key_salt if runs else projection.key_salt),
        attempts=runs.attempts if runs else 0,
        called=event.timestamp,
        started=runs.started if runs else started.timestamp if started else None,
        ended=runs.ended if runs else None,
        outcome="failed" if told else _outcome(projection, facts, invocation, event, call_id),
        cause=runs.cause if runs else None,
    )


def _outcome(
    projection: Projection, facts: _Facts, invocation: Invocation | None, event: Event, call_id: str
) -> Outcome:
    responses = facts.responses.get(call_id, [])
    approval, credential = facts.approvals.get(call_id), facts.credentials.get(call_id)
    if credential is not None and len(responses) < 2:
        if facts.answer(credential) is None:
            return "waiting"
        # The response that is there only says that a credential is needed.
        responses = []
    if approval is not None and len(responses) < 2:
        decision = facts.answer(approval)
        if decision is None:
            return "awaits approval"
        # The response that is there only says that a person must approve.
        responses = []
    elif approval is not None and (facts.answer(approval) or {}).get("confirmed") is False:
        return "rejected"
    long_running = projection.calls.get(call_id)
    if long_running is not None and (responses or long_running.responded):
        return _answered(facts, call_id, is_open=long_running.answer == "open")
    if responses:
        return _responded(projection, facts, call_id)
    return _unfinished(projection, facts, invocation, event, call_id)


def _answered(facts: _Facts, call_id: str, *, is_open: bool) -> Outcome:
    if is_open:
        return "waiting"
    event = facts.answers.get(call_id)
    return "expired" if event and (event.custom_metadata or {}).get("expired") is True else "answered"


def _responded(projection: Projection, facts: _Facts, call_id: str) -> Outcome:
    verdict = facts.answer(facts.doubts.get(call_id)) or {}
    if verdict.get("happened") is False:
        return "not run"
    runs = projection.tool_runs.get(call_id)
    # Or somebody who knows said that it had happened.
    return "done" if verdict.get("happened") or (runs and runs.outcome is None) else "not run"


def _unfinished(
    projection: Projection, facts: _Facts, invocation: Invocation | None, event: Event, call_id: str
) -> Outcome:
    """Return the outcome of a call without a response."""
    if invocation is None or invocation.status == "finished":
        return "not run"
    if call_id in invocation.kept:
        return "done"
    doubt = facts.doubts.get(call_id)
    if doubt is not None and projection.calls[doubt].answer == "open":
        return "in doubt"
    if invocation.status in ("running", "queued", "waiting"):
        return "running"
    if call_id in invocation.started:
        return "in doubt"
    runs = projection.tool_runs.get(call_id)
    return "failed" if runs and runs.outcome == "failed" else "interrupted"
