"""Explains what a session awaits, why it does not go on, and what a resume would do, without doing it. Pure.

It asks the same projection that a resume starts from, and walks the tree of agent runs as the workflow would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.errors import InvocationNotFound, RequestRefused
from perdure.journal.entries import EventLogged, Failure, FailureCaught, InvocationSettled
from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_RECONCILE, USER, Event
from perdure.journal.fold import apply_entry
from perdure.journal.open_calls import InvocationStatus, PendingCall, SessionStatus
from perdure.journal.projection import Invocation, Projection
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationInput
from perdure.plan.nodes import Plan
from perdure.rules.intake import check_resume
from perdure.rules.model_calls import is_at_limit
from perdure.views.forms.declared import example_answer
from perdure.views.ledger import build_effects
from perdure.views.next_steps import AgentStep, look_ahead
from perdure.views.pages import awaited_tool, session_status

EXPLAINED = 20
"""Invocations that are explained at once, if nobody says how many."""

_NAMED_BEFORE = 5
"""Invocations that are named before a queued one."""

Takes = Literal["value", "decision", "verdict", "credential"]


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True)


class Awaited(_Told):
    """An open call, and what answers it."""

    call: PendingCall
    tool: str
    """The tool that it is about: of an approval or a question, the one that a model called."""
    takes: Takes
    """`value`: any JSON, which becomes the tool's response. `decision`: approve or reject. `verdict`: what became of a
    call that was cut off. `credential`: ADK's auth config, completed by a credential."""
    who: str = "anybody who may send to the session"
    example: dict[str, Any]
    """An answer of the right form."""


class KeptResult(_Told):
    """A tool's result that no event holds (yet); its tool does not run again."""

    call_id: str
    tool: str
    agent: str


class ResumeOutlook(_Told):
    """The outcome that a resume would have now."""

    verdict: Literal["runs on", "nothing", "refused"]
    why: str
    step: AgentStep | None = None
    """Where the agents stand, from the one that began the invocation down; `None` where that is not known yet."""
    kept: tuple[KeptResult, ...] = ()
    answers: tuple[str, ...] = ()
    """Ids of calls whose answers are accepted, and enter the log as soon as they may."""


class InvocationExplanation(_Told):
    """An invocation's standing, and why it does not go on."""

    id: str
    status: InvocationStatus
    agent: str | None = None
    plan: str | None = None
    """Digest of the plan that it is pinned to."""
    reason: str | None = None
    """Why it was stopped, or what else it waits for than answers."""
    failures: tuple[Failure, ...] = ()
    dealt_with: tuple[Failure, ...] = ()
    """Failures after which its agents went on: of tools whose model was told, and of what a custom agent caught; of
    functions, until the invocation has finished."""
    behind: tuple[str, ...] = ()
    """Of a queued one: invocations that work before it, the first of them."""
    behind_count: int = 0
    """All that work before it."""
    awaits: tuple[Awaited, ...] = ()
    arrived: tuple[Event, ...] = ()
    """Messages and answers that were taken, and enter the log as soon as they may."""
    resume: ResumeOutlook


class RaisedStep(_Told):
    """An attempt of a step that raised, as the session's history has it."""

    step: str
    """`model`, or the name of the tool, function or callback."""
    trace: str
    """The exception with its causes, in lines: the frames of the app's code, and a line for all others."""
    invocation_id: str | None = None
    """`None`, as the next, where the history does not say: of local tools."""
    agent: str | None = None
    call_id: str | None = None
    """Of a tool: the call's id."""
    next_attempt: int | None = None
    """Which attempt is under way, or comes next; `None` if it failed for good."""

    def is_of(self, invocation_id: str, failure: Failure) -> bool:
        """Return whether it is where a failure of an invocation was raised."""
        known = (self.invocation_id or invocation_id, self.agent or failure.agent, self.step)
        return self.next_attempt is None and known == (invocation_id, failure.agent, failure.step)


class SessionExplanation(_Told):
    """A session's standing: what it awaits, and what a resume would do."""

    app_name: str
    user_id: str
    id: str
    status: SessionStatus
    closed: str | None = None
    """How its workflow ended, if it is closed; the next message, answer or resume brings it back."""
    halted: str | None = None
    """Why no worker takes a step of it, if it is so: none serves its app, or its workflow tasks fail."""
    invocation_count: int
    """All of its invocations."""
    event_count: int = 0
    """Events in its log."""
    kept: tuple[Event, ...] = Field(default=(), exclude=True)
    """Events behind these, of steps whose activity goes on; they are in the log when it ends."""
    journal_length: int = 0
    """Entries in its journal, and of such steps: whoever sees the same number again sees the same session."""
    listens: str | None = None
    """The agent whose task is open: the user's next message is for it."""
    invocations: tuple[InvocationExplanation, ...] = Field(default=())
    """The one that was asked for; else those that are not finished, or the newest; of many, a page."""
    open_count: int = 0
    """All that there are of these."""
    next: int | None = None
    """Where the next page of them begins; `None` behind the last one."""
    raised: tuple[RaisedStep, ...] = ()
    """Where what failed in them was raised, and what is being tried again; only where somebody has looked for it."""

    @property
    def key(self) -> SessionKey:
        """Names the session."""
        return SessionKey(self.app_name, self.user_id, self.id)


def explain_session(
    projection: Projection,
    key: SessionKey,
    *,
    closed: str | None = None,
    halted: str | None = None,
    invocation_id: str | None = None,
    since: int = 0,
    limit: int = EXPLAINED,
    kept: int = 0,
) -> SessionExplanation:
    """Explain a session's standing.

    Args:
        projection: The session's; of a closed one, what was at work is stopped in it, as it will be.
        key: Which session.
        closed: How its workflow ended, if it is closed.
        halted: Why no worker takes a step of it, if it is so.
        invocation_id: Explain only this invocation.
        since: How many of those that would be explained are passed over.
        limit: How many are explained at the most: each takes a walk through the log.
        kept: How many of its last entries are those of steps whose activity goes on.

    Raises:
        InvocationNotFound: The session has no such invocation.
    """
    if invocation_id is not None and invocation_id not in projection.invocations:
        raise InvocationNotFound(f"session {key.session!r} has no invocation {invocation_id!r}")
    length = len(projection.entries)
    unlogged = [entry.event for entry in projection.entries[length - kept :] if isinstance(entry, EventLogged)]
    if closed is not None:
        _stop_what_ran(projection, closed)
    chosen = _chosen(projection, invocation_id)
    end = min(since + limit, len(chosen))
    return SessionExplanation(
        app_name=key.app,
        user_id=key.user,
        id=key.session,
        status=session_status(projection),
        closed=closed,
        halted=halted,
        invocation_count=len(projection.invocations),
        event_count=len(projection.events) - len(unlogged),
        kept=tuple(unlogged),
        journal_length=length,
        listens=_listens(projection),
        invocations=tuple(_explain(projection, found) for found in chosen[since:end]),
        open_count=len(chosen),
        next=end if end < len(chosen) else None,
    )


def _listens(projection: Projection) -> str | None:
    task = projection.open_task()
    return task.agent if task is not None and task.agent != USER else None


def _stop_what_ran(projection: Projection, closed: str) -> None:
    for invocation in list(projection.invocations.values()):
        if invocation.status == "running":
            reason = f"the session's workflow was {closed}"
            apply_entry(projection, InvocationSettled(invocation_id=invocation.id, status="stopped", reason=reason))


def _chosen(projection: Projection, invocation_id: str | None) -> list[Invocation]:
    if invocation_id is not None:
        return [projection.invocations[invocation_id]]
    every = list(projection.invocations.values())
    unfinished = [invocation for invocation in every if _is_unfinished(projection, invocation)] or every[-1:]
    # Of those that only stand in line there may be thousands.
    return sorted(unfinished, key=lambda invocation: invocation.status == "queued")


def _is_unfinished(projection: Projection, invocation: Invocation) -> bool:
    # Where nothing pauses, an invocation finishes with its calls open.
    return invocation.status != "finished" or bool(projection.open_calls(invocation.id))


def _explain(projection: Projection, invocation: Invocation) -> InvocationExplanation:
    turns = [turn.invocation_id for turn in projection.turns]
    behind = turns[: turns.index(invocation.id)] if invocation.id in turns else []
    running = [other.id for other in projection.invocations.values() if other.status == "running"]
    before = tuple(dict.fromkeys([*running, *behind])) if invocation.status == "queued" else ()
    return InvocationExplanation(
        id=invocation.id,
        status=invocation.status,
        agent=invocation.agent,
        plan=invocation.plan,
        reason=invocation.reason,
        failures=invocation.failures,
        dealt_with=tuple(_dealt_with(projection, invocation)),
        behind=before[:_NAMED_BEFORE],
        behind_count=len(before),
        awaits=tuple(_awaited(call, projection.plan_of(invocation)) for call in projection.open_calls(invocation.id)),
        arrived=tuple(_arrived(projection, invocation)),
        resume=_outlook(projection, invocation),
    )


def _arrived(projection: Projection, invocation: Invocation) -> Iterator[Event]:
    if not any(event.id == invocation.message.id for event in projection.events):
        yield invocation.message
    yield from invocation.answers


def _dealt_with(projection: Projection, invocation: Invocation) -> Iterator[Failure]:
    told = {(failure.agent, failure.step) for failure in invocation.failures}
    for failure in (*_failed_tools(projection, invocation), *_caught(invocation)):
        if (failure.agent, failure.step) not in told:
            told.add((failure.agent, failure.step))
            yield failure


def _failed_tools(projection: Projection, invocation: Invocation) -> Iterator[Failure]:
    failed = {call_id for call_id, runs in projection.tool_runs.items() if runs.outcome == "failed"}
    if failed:
        for effect in build_effects(projection):
            if effect.call_id in failed and effect.invocation_id == invocation.id:
                yield Failure(agent=effect.agent, step=effect.tool, cause=effect.cause or "")


def _caught(invocation: Invocation) -> Iterator[Failure]:
    for entry in invocation.entries:
        if isinstance(entry, FailureCaught):
            yield from entry.failures


def _awaited(call: PendingCall, plan: Plan | None) -> Awaited:
    kinds: dict[str, Takes] = {
        REQUEST_CONFIRMATION: "decision",
        REQUEST_CREDENTIAL: "credential",
        REQUEST_RECONCILE: "verdict",
    }
    takes = kinds.get(call.name, "value")
    return Awaited(call=call, tool=awaited_tool(call), takes=takes, example=example_answer(call, plan))


def _outlook(projection: Projection, invocation: Invocation) -> ResumeOutlook:
    try:
        check_resume(projection, InvocationInput(invocation_id=invocation.id))
    except RequestRefused as error:
        is_working = invocation.status in ("running", "queued")
        step = _step(projection, invocation) if is_working else None
        return ResumeOutlook(verdict="refused", why=str(error), step=step, answers=_answers(invocation))
    if invocation.status == "finished":
        return ResumeOutlook(verdict="nothing", why="it has finished")
    if invocation.status == "waiting" and not is_at_limit(invocation):
        task = projection.open_task()
        listens = task is not None and task.invocation_id == invocation.id
        what = "the user's next message" if listens else "an answer"
        why = f"it waits, and only {what} moves it on"
        verdict: Literal["runs on", "nothing"] = "nothing"
    else:
        why, verdict = _why_it_runs_on(projection, invocation), "runs on"
    return ResumeOutlook(
        verdict=verdict,
        why=why,
        step=_step(projection, invocation),
        kept=tuple(_kept(projection, invocation)),
        answers=_answers(invocation),
    )


def _why_it_runs_on(projection: Projection, invocation: Invocation) -> str:
    if is_at_limit(invocation):
        return "it has made as many model calls as it may, and may make as many again"
    if invocation.agent is None:
        return "it has not begun: its message is taken up, with the plan that the app has then"
    if invocation.plan is None:
        return "it was imported: it is pinned to the plan that the app has then, and its agents are entered again"
    return "its agents are entered again where they were; what completed is not run again"


def _step(projection: Projection, invocation: Invocation) -> AgentStep | None:
    plan = projection.plans.get(invocation.plan or "")
    if plan is None or invocation.agent is None or not plan.resumable:
        return None
    return look_ahead(projection, plan, invocation)


def _kept(projection: Projection, invocation: Invocation) -> Iterator[KeptResult]:
    responded = {response.id for event in projection.events for response in event.get_function_responses()}
    for call_id in invocation.kept:
        event = projection.event_of_call(call_id)
        calls = event.get_function_calls() if event is not None else []
        name = next((call.name for call in calls if call.id == call_id), None)
        if event is not None and call_id not in responded:
            yield KeptResult(call_id=call_id, tool=name or "", agent=event.author)


def _answers(invocation: Invocation) -> tuple[str, ...]:
    return tuple(
        response.id or "" for event in invocation.answers for response in event.get_function_responses() if response.id
    )
