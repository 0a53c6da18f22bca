"""The one pure fold of a journal into a session's projection.

Resume, continue-as-new, a lost workflow, the workers' copies and the tests all go through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from perdure.journal.credential_questions import asking_call, needed_by
from perdure.journal.entries import (
    ActivityKept,
    AnswerAccepted,
    AnswerLogged,
    CallbackRan,
    CallExpired,
    CallReminded,
    Entry,
    EventLogged,
    EventRewound,
    FailureCaught,
    InvocationPinned,
    InvocationResumed,
    InvocationSettled,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    ModelCalled,
    PlanLoaded,
    ResumeAccepted,
    RunBegan,
    ScopeBegan,
    SessionCreated,
    SharedStateRead,
    StateChanged,
    TempStateSet,
    ToolKept,
    ToolRan,
    ToolStarted,
    Within,
)
from perdure.journal.events import (
    QUESTIONS,
    REQUEST_CONFIRMATION,
    REQUEST_CREDENTIAL,
    REQUEST_INPUT,
    REQUEST_RECONCILE,
    Event,
)
from perdure.journal.interning import share_field_sets
from perdure.journal.invocations import Call, Invocation, Turn, restart_deadline, set_deadline
from perdure.journal.open_calls import PendingCall
from perdure.journal.projection import SHARED, Projection, stored_part
from perdure.journal.questions import lets_run_again, target_of
from perdure.journal.run_paths import agent_in
from perdure.journal.scopes import begin_scope, parts_for_scopes, pin_scopes, resume_scopes, show_questions
from perdure.journal.secrets import redacted_args
from perdure.journal.tasks import is_reply
from perdure.journal.tool_runs import add_run
from perdure.journal.unusable_answers import is_refused
from perdure.plan.contents import types
from perdure.plan.nodes import CustomNode, Plan


def fold_journal(entries: Iterable[Entry]) -> Projection:
    """Return the projection of a whole journal."""
    projection = Projection()
    for entry in entries:
        apply_entry(projection, entry)
    return projection


def apply_entry(projection: Projection, entry: Entry) -> None:  # noqa: C901 -- one case for each kind of entry
    """Fold one more entry in: the only way in which a projection changes."""
    share_field_sets(entry)
    projection.entries.append(entry)
    match entry:
        case SessionCreated():
            projection.state.update(stored_part(entry.state))
        case EventLogged():
            _log(projection, entry)
        case MessageAccepted() | AnswerAccepted():
            _accept(projection, entry)
        case AnswerLogged():
            _log_answer(projection, entry)
        case ResumeAccepted():
            _resume(projection, entry)
        case InvocationStarted():
            _start(projection, entry)
        case InvocationResumed():
            _go_on(projection, projection.invocations[entry.invocation_id])
        case InvocationSettled():
            _settle(projection, entry)
        case PlanLoaded():
            _take_plan(projection, entry)
        case SharedStateRead():
            _share(projection, entry)
        case TempStateSet():
            projection.invocations[entry.invocation_id].keep_temp(entry)
        case ModelCalled():
            _count_call(projection, entry)
        case ToolKept():
            _keep_tool(projection, entry)
        case ActivityKept() | FailureCaught() | RunBegan() | CallbackRan():
            projection.invocations[entry.invocation_id].entries.append(entry)
        case ToolStarted():
            projection.invocations[entry.invocation_id].started[entry.call_id] = entry
        case ToolRan():
            add_run(projection.tool_runs, entry)
            if entry.outcome == "not_started":
                _allow_start(projection.invocations.values(), entry.call_id)
        case CallExpired():
            _expire(projection, projection.calls[entry.call_id])
        case CallReminded():
            projection.calls[entry.call_id].remind_at = None
        case LogImported():
            _take_over(projection, entry)
        case InvocationPinned():
            _pin(projection, entry)
        case StateChanged():
            _show(projection, entry.event)
        case ScopeBegan():
            begin_scope(projection, entry)
        case Within():
            _apply_within(projection, entry)
        case EventRewound():
            projection.call_ids.update(call.id or "" for call in entry.event.get_function_calls())
            _show(projection, entry.event)
        case _:
            assert_never(entry)


def _take_plan(projection: Projection, entry: PlanLoaded) -> None:
    projection.newest_plan = entry.digest or entry.plan.digest
    projection.plans[projection.newest_plan] = entry.plan


def _share(projection: Projection, entry: SharedStateRead) -> None:
    own = {key: value for key, value in projection.state.items() if not key.startswith(SHARED)}
    projection.state = own | entry.state


def _apply_within(projection: Projection, entry: Within) -> None:
    scope = projection.scopes[entry.call_id]
    apply_entry(scope, entry.entry)
    show_questions(projection, scope)


def _log(projection: Projection, entry: EventLogged) -> None:
    event = entry.event
    invocation = projection.invocations.get(event.invocation_id)
    if invocation is not None:
        _add_to_invocation(invocation, entry)
    if entry.hidden:
        return
    if invocation is not None and is_refused(event) and not _is_adk(projection, invocation):
        invocation.refused.add(event.id)
    _show(projection, event)
    for response in event.get_function_responses():
        if response.id in projection.calls:
            projection.calls[response.id].responded = True
        if invocation is not None:
            invocation.started.pop(response.id or "", None)
    for call in event.get_function_calls():
        projection.call_ids.add(call.id or "")
        if call.id and event.long_running_tool_ids and call.id in event.long_running_tool_ids:
            plan = projection.plan_of(invocation) if invocation is not None else None
            made = _long_running_call(projection, event, call, plan)
            # No tool of a custom agent's responds to what its own event asks.
            of_code = plan is not None and isinstance(plan.nodes.get(agent_in(entry.run)), CustomNode)
            made.responded |= of_code
            projection.calls[call.id] = made
            if made.expiry or made.remind_at:
                projection.timed[call.id] = made


def _count_call(projection: Projection, entry: ModelCalled) -> None:
    projection.model_calls[entry.agent] += 1
    invocation = projection.invocations.get(entry.invocation_id)
    if invocation is None:
        return
    invocation.model_calls[entry.agent] += 1
    asked = invocation.asked_again.pop(entry.run, ())
    if entry.again is not None:
        invocation.asked_again[entry.run] = (*asked, entry.again)


def _show(projection: Projection, event: Event) -> None:
    projection.events.append(event)
    projection.state.update(event.actions.state_delta)


def _resume(projection: Projection, entry: ResumeAccepted) -> None:
    invocation = projection.invocations[entry.invocation_id]
    projection.turns.append(Turn("resume", invocation.id))
    invocation.status, invocation.granted, invocation.streaming = "queued", entry.max_llm_calls, entry.streaming
    invocation.model_calls.clear()
    if entry.request_id:
        projection.requests[entry.request_id] = invocation.id


def _accept(projection: Projection, entry: MessageAccepted | AnswerAccepted) -> None:
    event = entry.event
    if entry.request_id:
        projection.requests[entry.request_id] = event.invocation_id
    for response in event.get_function_responses():
        if response.id in projection.calls:
            projection.calls[response.id].answer = "accepted"
            projection.timed.pop(response.id, None)
            # A person's answer lets the imported call run that it is about; answers in the import are data.
            _unblock(projection, _asked_about(projection.calls[response.id].pending))
    if isinstance(entry, MessageAccepted):
        projection.invocations[event.invocation_id] = Invocation(
            event.invocation_id, event, asked=entry.max_llm_calls, streaming=entry.streaming
        )
        projection.turns.append(Turn("message", event.invocation_id))
        return
    invocation = projection.invocations[event.invocation_id]
    invocation.answers.append(event)
    invocation.streaming = entry.streaming
    if invocation.status in ("waiting", "failed"):
        projection.turns.append(Turn("answer", event.invocation_id))
        invocation.status = "queued"


def _unblock(projection: Projection, call_id: str) -> None:
    projection.blocked_calls.discard(call_id)
    for scope in projection.scopes.values():
        _unblock(scope, call_id)


def _log_answer(projection: Projection, entry: AnswerLogged) -> None:
    for invocation in projection.invocations.values():
        for event in invocation.answers:
            if event.id == entry.event_id:
                invocation.answers.remove(event)
                _deliver(projection, _at(_in_graph(projection, invocation, event), entry.timestamp))
                return


def _deliver(projection: Projection, event: Event) -> None:
    """Log an answer, and in the scopes whose calls it answers."""
    _mark_answered(projection, event)
    _show(projection, event)
    for scope, part in parts_for_scopes(projection, event):
        projection.of_scopes.add(event.id)
        _deliver(scope, part)


def _start(projection: Projection, entry: InvocationStarted) -> None:
    invocation = projection.invocations[entry.invocation_id]
    # A log from elsewhere names no plan: the invocation takes the newest one when it goes on.
    invocation.status, invocation.agent, invocation.plan = "running", entry.agent, entry.plan or None
    _drop_turns(projection, entry.invocation_id)
    if entry.content is not None:
        invocation.message = invocation.message.model_copy(update={"content": entry.content})
    _mark_answered(projection, invocation.message)
    _show(projection, _at(_in_graph(projection, invocation, invocation.message), entry.timestamp))


def _in_graph(projection: Projection, invocation: Invocation, event: Event) -> Event:
    """Return a user's event as it is logged: where agents run as nodes, it is of none. As in ADK 2."""
    plan = projection.plan_of(invocation)
    if plan is None or not (plan.is_graph or plan.has_tasks) or event.node_info is not None:
        return event
    return event.model_copy(update={"node_info": {"path": ""}})


def _go_on(projection: Projection, invocation: Invocation) -> None:
    invocation.status, invocation.failures, invocation.reason = "running", (), None
    invocation.at_limit = False
    if _is_adk(projection, invocation):
        # ADK has read the session anew by then.
        invocation.temp.clear()
    _drop_turns(projection, invocation.id)
    resume_scopes(projection, invocation.id)


def _add_to_invocation(invocation: Invocation, entry: EventLogged) -> None:
    invocation.entries.append(entry)
    for key in entry.event.actions.state_delta:
        # What was written past the deltas before is older.
        invocation.temp.pop(key, None)


def _is_adk(projection: Projection, invocation: Invocation) -> bool:
    plan = projection.plan_of(invocation)
    return plan is not None and plan.adk is not None


def _settle(projection: Projection, entry: InvocationSettled) -> None:
    invocation = projection.invocations[entry.invocation_id]
    invocation.status = entry.status
    invocation.failures, invocation.reason = entry.failures, entry.reason
    invocation.refused.clear()
    invocation.at_limit, invocation.settled = entry.at_limit, entry.timestamp
    if entry.status != "waiting":
        _forget_expired(projection.calls.values(), entry.invocation_id)
    if entry.status in ("stopped", "finished"):
        _drop_turns(projection, entry.invocation_id)
    if entry.status == "finished":
        invocation.forget()
        _begin_with_replies(projection, invocation)


def _begin_with_replies(projection: Projection, invocation: Invocation) -> None:
    """Let what the user said to the agent of a task that ended meanwhile begin invocations of its own."""
    for reply in [event for event in invocation.answers if is_reply(event)]:
        invocation.answers.remove(reply)
        event = reply.model_copy(update={"invocation_id": f"e-{reply.id}", "isolation_scope": None})
        _accept(projection, MessageAccepted(event=event, streaming=invocation.streaming))


def _keep_tool(projection: Projection, entry: ToolKept) -> None:
    projection.invocations[entry.invocation_id].kept[entry.call_id] = entry.output
    if entry.call_id in projection.calls and not entry.output.result:
        projection.calls[entry.call_id].responded = True


def _drop_turns(projection: Projection, invocation_id: str) -> None:
    projection.turns = [turn for turn in projection.turns if turn.invocation_id != invocation_id]


def _long_running_call(projection: Projection, event: Event, call: types.FunctionCall, plan: Plan | None) -> Call:
    pending = PendingCall(
        id=call.id or "",
        name=call.name or "",
        # Shown by queries, and to whoever may answer.
        args=redacted_args(call.name, call.args or {}),
        agent=event.author,
        invocation_id=event.invocation_id,
        branch=event.branch,
        since=event.timestamp,
        about=needed_by(call, projection.event_of_call(asking_call(call))) if call.name == REQUEST_CREDENTIAL else "",
    )
    # A request of the framework has no tool of its own whose response could be late.
    made = Call(pending, responded=call.name in QUESTIONS or call.name == REQUEST_INPUT)
    set_deadline(made, plan, event.timestamp)
    share_field_sets(made.pending)
    return made


def _at(event: Event, timestamp: float) -> Event:
    """Return an event as it is logged at a time."""
    logged = event.model_copy(update={"timestamp": timestamp})
    share_field_sets(logged)
    return logged


def _mark_answered(projection: Projection, event: Event) -> None:
    for response in event.get_function_responses():
        call = projection.calls.get(response.id or "")
        if call is None:
            continue
        call.answer = "logged"
        pending = call.pending
        if pending.name == REQUEST_RECONCILE and lets_run_again(response.response or {}):
            projection.invocations[pending.invocation_id].started.pop(target_of(pending.args), None)


def _expire(projection: Projection, call: Call) -> None:
    """Let a deadline fail the invocation: in its turn if it waits, at once if it is at work."""
    invocation = projection.invocations[call.pending.invocation_id]
    if invocation.status in ("running", "waiting", "queued"):
        call.expired = call.pending.deadline
    call.pending = call.pending.model_copy(update={"deadline": None})
    if invocation.status == "waiting":
        projection.turns.append(Turn("answer", invocation.id))
        invocation.status = "queued"


def _forget_expired(calls: Iterable[Call], invocation_id: str) -> None:
    """A resume opens the calls again whose deadline failed the invocation."""
    for call in calls:
        if call.pending.invocation_id == invocation_id:
            call.expired = None


def _allow_start(invocations: Iterable[Invocation], call_id: str) -> None:
    for invocation in invocations:
        invocation.started.pop(call_id, None)


def _pin(projection: Projection, entry: InvocationPinned) -> None:
    """Give an imported invocation its plan, and its open calls the deadlines that they have in it."""
    invocation = projection.invocations[entry.invocation_id]
    invocation.agent, invocation.plan = entry.agent, entry.plan
    if entry.runs:
        invocation.name_runs(entry.runs)
    pin_scopes(projection, invocation.id)
    if entry.timestamp is None:
        return
    for call in projection.calls.values():
        pending = call.pending
        if pending.invocation_id == invocation.id and call.answer == "open" and pending.id not in projection.timed:
            set_deadline(call, projection.plans.get(entry.plan), entry.timestamp)
            if call.expiry or call.remind_at:
                projection.timed[pending.id] = call


def _take_over(projection: Projection, entry: LogImported) -> None:
    """Take no code and no permission from outside, and let nothing run by itself."""
    projection.imported_at, projection.imported_bare = entry.timestamp, entry.bare
    projection.key_salt = entry.key_salt
    if entry.timestamp is not None:
        for call in projection.timed.values():
            restart_deadline(call, entry.timestamp)
    projection.blocked_calls = set[str]() if entry.allow_pending_calls else set(projection.call_ids)
    if not entry.allow_pending_calls:
        # Readers do not see hidden events, but a re-entry does.
        logged = (item for invocation in projection.invocations.values() for item in invocation.entries)
        hidden = (item.event for item in logged if isinstance(item, EventLogged) and item.hidden)
        projection.blocked_calls.update(call.id or "" for event in hidden for call in event.get_function_calls())
    for scope in projection.scopes.values():
        _take_over(scope, entry)
    projection.imported_plan, projection.newest_plan = entry.plan_digest, None
    projection.imported_shared = projection.shared_state()
    projection.plans.clear()
    projection.turns.clear()
    for invocation in projection.invocations.values():
        invocation.plan = None
        if invocation.status in ("running", "queued"):
            invocation.status, invocation.reason = "stopped", "it was at work when its log was taken"


def _asked_about(call: PendingCall) -> str:
    """Return the id of the call that a confirmation asks about; empty if this is none."""
    return target_of(call.args) if call.name == REQUEST_CONFIRMATION else ""
